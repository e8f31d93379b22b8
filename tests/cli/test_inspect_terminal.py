"""The inspector opened from the command line, in a real pseudo-terminal."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import pytest

from lmtool.api import connect
from lmtool.cli.inspect_servers import default_options
from lmtool.terminal.tui.sources.demo import demo_server
from tests.cli.terminal import terminal
from tests.conftest import STORIES
from tests.net.access.knocking import KEY

if TYPE_CHECKING:
    from tests.conftest import Run

RECORDINGS = Path(__file__).parents[2] / "recordings"
LEFT = b"\x1b[?1049l"
"""Gives the terminal's own screen back."""


def test_a_trace_is_shown_and_left() -> None:
    """Its streams are drawn; q leaves with 0 and gives the terminal back."""
    with terminal("inspect", str(RECORDINGS / "two_streams_interleaved.lmtp.jsonl"), "--speed", "max") as screen:
        screen.until("1/2")
        screen.press("q")
        assert screen.end() == 0
        assert LEFT in screen.drawn


def test_control_c_leaves(embedded: str) -> None:
    """A prompt runs on a real server; Ctrl-C ends the inspector with 0, the terminal restored."""
    with terminal("inspect", embedded, "--prompt", "Who are you?", "-n", "4") as screen:
        screen.until("1/3")  # behind MODEL_INFO and WATCH
        screen.press("\x03")
        assert screen.end() == 0
        assert LEFT in screen.drawn


def test_a_lost_terminal() -> None:
    """Where the terminal goes without a signal, the inspector goes as well, with the status of a hangup."""
    with terminal("inspect", str(RECORDINGS / "two_streams_interleaved.lmtp.jsonl")) as screen:
        screen.until("1/2")
        os.close(screen.master)
        screen.master = os.open(os.devnull, os.O_RDONLY)
        assert screen.process.wait(30) == 128 + signal.SIGHUP


def test_a_server_that_is_not_there() -> None:
    """There is nothing to see: the error is told on the terminal's own screen, with its status."""
    with terminal("inspect", "ws://127.0.0.1:1/", columns=140) as screen:
        assert screen.end() == 3
        assert "error: no LMTP server at ws://127.0.0.1:1/" in screen.text
        assert screen.drawn.rfind(LEFT) < screen.drawn.rfind(b"error:")


def test_two_traces() -> None:
    """Both are compared at once; leaving the comparison leads to the first one."""
    paths = [str(RECORDINGS / f"{name}.lmtp.jsonl") for name in ("one_greedy_stream", "one_greedy_stream")]
    with terminal("inspect", *paths, "--speed", "max") as screen:
        screen.until("Compare 1/")
        screen.press("\x1b")
        screen.until("1 Streams")
        screen.press("q")
        assert screen.end() == 0


def test_settings_hold_for_other_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of the settings file reach the inspector that another command opens."""
    (tmp_path / "lmtool.toml").write_text('[inspect.keys]\npause = "p"\n')
    monkeypatch.chdir(tmp_path)
    assert default_options(Path("r")).keys == {"pause": "p"}


def test_a_branch_of_a_trace_runs_on_a_server(served: str) -> None:
    """With a server beside the file, b on an alternative makes a stream of its own, which is drawn."""
    file = str(RECORDINGS / "alternatives.lmtp.jsonl")
    with terminal("inspect", file, "--speed", "max", "--connect", served, columns=140) as screen:
        screen.until("1/1")
        screen.press("b")
        screen.until("goes on from 1/")
        screen.press("q")
        assert screen.end() == 0


class TestServeInspect:
    """`lmtool serve --inspect`: the server behind the inspector's proxy."""

    def test_the_servers_own_traffic(self, tmp_path: Path) -> None:
        """Streams of clients are drawn, of any HTTP API too; leaving ends server and recording in good order."""
        ready, record = tmp_path / "ready", tmp_path / "all.lmtp.jsonl"
        words = ("serve", "--port", "0", "--inspect", "--ready-file", str(ready), "--record", str(record))
        with terminal(*words, columns=140) as screen:
            screen.until("ready")
            url = ready.read_text().strip().replace("ws://", "http://")
            body = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 8}
            answer = httpx2.post(f"{url}v1/messages", json={**body, "stream": True, "temperature": 0})
            assert answer.status_code == 200, answer.text
            screen.until("CHAT")
            screen.until("a piece of text")
            screen.press("q")
            assert screen.end() == 0
        assert re.search(r'"end", 0', record.read_text().splitlines()[-1])
        assert not ready.exists()

    @pytest.mark.parametrize("many", [False, True], ids=["one key", "a file of keys"])
    def test_its_door(self, tmp_path: Path, many: bool) -> None:
        """The proxy in front and the server behind it let in the same: key, pages, and the name that was asked for.

        The inspector itself asks with the one key, or with one of its own beside those of the file.
        """
        keys = tmp_path / "keys.toml"
        keys.write_text(f'[[keys]]\nname = "a"\nkey = "{KEY}"\n[address]\nrequests_per_minute = 1000\n')
        own = ("--api-keys", str(keys)) if many else ()
        ready, record = tmp_path / "ready", tmp_path / "all.lmtp.jsonl"
        words = ("serve", str(STORIES), "--port", "0", "--inspect", "--ready-file", str(ready), "--record", str(record))
        one_key = {} if many else {"LMTOOL_API_KEY": KEY}
        with terminal(*words, *own, "--allow-host", "models.example", columns=140, **one_key) as screen:
            screen.until("ready")
            url = ready.read_text().strip().replace("ws://", "http://")
            shown = {"authorization": f"Bearer {KEY}", "host": "models.example", "origin": "http://models.example:3000"}
            answer = httpx2.get(f"{url}v1/models", headers=shown)
            assert answer.status_code == 200, answer.text
            assert answer.headers["access-control-allow-origin"] == "http://models.example:3000"
            for change, status in (
                ({"authorization": "Bearer wrong"}, 401),
                ({"origin": "https://evil.example"}, 403),
                ({"host": "evil.example"}, 421),
            ):
                assert httpx2.get(f"{url}v1/models", headers={**shown, **change}).status_code == status
            screen.until("GET /v1/models")
            assert "API key" not in screen.text
            screen.press("q")
            assert screen.end() == 0
        assert "MODEL_INFO" in record.read_text()  # the inspector's own question was let in, too
        assert KEY not in record.read_text()

    def test_it_needs_a_terminal(self, lmtool: Run) -> None:
        """Without one it does not start; with --stdio it would have none."""
        result = lmtool("serve", "--inspect", "--port", "0")
        assert result.returncode == 2
        assert "needs a terminal" in result.stderr
        assert "contradict" in lmtool("serve", "--inspect", "--stdio").stderr


async def test_the_embedded_model_at_a_pace() -> None:
    """It says how far it is, answers, and takes its time for each token."""
    notes: list[str] = []
    async with demo_server(notes.append, pace=50.0) as url, connect(url) as model:
        assert notes[-1] == "lmtool-tiny: ready"
        began = time.monotonic()
        outputs = [output async for output in model.generate("Tell me a story about a fox.", max_tokens=8)]
        assert len(outputs) == 8
        assert time.monotonic() - began >= 7 * 0.7 / 50
