"""`lmtool serve --inspect`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from tests.access.knocking import KEY
from tests.cli.terminal import terminal
from tests.conftest import STORIES

if TYPE_CHECKING:
    from tests.conftest import Run


def test_the_servers_own_traffic(tmp_path: Path) -> None:
    """A client's stream is drawn, of any HTTP API too; leaving ends the server with 0 and the recording is whole."""
    ready, record = tmp_path / "ready", tmp_path / "all.lmtp.jsonl"
    words = ("serve", "--port", "0", "--inspect", "--ready-file", str(ready), "--record", str(record))
    with terminal(*words, columns=140) as screen:
        screen.until("ready")
        url = ready.read_text().strip().replace("ws://", "http://")
        body = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 8}
        answer = httpx.post(f"{url}v1/messages", json={**body, "stream": True, "temperature": 0})
        assert answer.status_code == 200, answer.text
        screen.until("CHAT")
        screen.until("a piece of text")
        screen.press("q")
        assert screen.end() == 0
    assert re.search(r'"end", 0', record.read_text().splitlines()[-1])
    assert not ready.exists()


def test_its_door(tmp_path: Path) -> None:
    """The proxy in front and the server behind it let in the same: key, pages, and the name that was asked for."""
    ready, record = tmp_path / "ready", tmp_path / "all.lmtp.jsonl"
    words = ("serve", str(STORIES), "--port", "0", "--inspect", "--ready-file", str(ready), "--record", str(record))
    with terminal(*words, "--allow-host", "models.example", columns=140, LMTOOL_API_KEY=KEY) as screen:
        screen.until("ready")
        url = ready.read_text().strip().replace("ws://", "http://")
        shown = {"authorization": f"Bearer {KEY}", "host": "models.example", "origin": "http://models.example:3000"}
        answer = httpx.get(f"{url}v1/models", headers=shown)
        assert answer.status_code == 200, answer.text
        assert answer.headers["access-control-allow-origin"] == "http://models.example:3000"
        for change, status in (
            ({"authorization": "Bearer wrong"}, 401),
            ({"origin": "https://evil.example"}, 403),
            ({"host": "evil.example"}, 421),
        ):
            assert httpx.get(f"{url}v1/models", headers={**shown, **change}).status_code == status
        screen.until("GET /v1/models")
        assert "API key" not in screen.text
        screen.press("q")
        assert screen.end() == 0
    assert "MODEL_INFO" in record.read_text()  # the inspector's own question was let in, too
    assert KEY not in record.read_text()


def test_it_needs_a_terminal(lmtool: Run) -> None:
    """Without one it does not start; with --stdio it would have none."""
    result = lmtool("serve", "--inspect", "--port", "0")
    assert result.returncode == 2
    assert "needs a terminal" in result.stderr
    assert "contradict" in lmtool("serve", "--inspect", "--stdio").stderr
