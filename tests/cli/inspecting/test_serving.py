"""`lmtool serve --inspect`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from tests.cli.terminal import terminal

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


def test_it_needs_a_terminal(lmtool: Run) -> None:
    """Without one it does not start; with --stdio it would have none."""
    result = lmtool("serve", "--inspect", "--port", "0")
    assert result.returncode == 2
    assert "needs a terminal" in result.stderr
    assert "contradict" in lmtool("serve", "--inspect", "--stdio").stderr
