"""The inspector opened from the command line, in a real pseudo-terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmtool.cli.inspecting.screen import default_options, need_screen
from lmtool.errors import UsageError
from tests.cli.terminal import terminal

RECORDINGS = Path(__file__).parents[3] / "recordings"
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
        screen.until("1/2")
        screen.press("\x03")
        assert screen.end() == 0
        assert LEFT in screen.drawn


def test_a_server_that_is_not_there() -> None:
    """There is nothing to see: the error is told on the terminal's own screen, with its status."""
    with terminal("inspect", "ws://127.0.0.1:1/", columns=140) as screen:
        assert screen.end() == 3
        assert "error: no LMTP server at ws://127.0.0.1:1/" in screen.text
        assert screen.drawn.rfind(LEFT) < screen.drawn.rfind(b"error:")


def test_two_traces() -> None:
    """The second one is there to be compared with."""
    paths = [str(RECORDINGS / f"{name}.lmtp.jsonl") for name in ("one_greedy_stream", "one_greedy_stream")]
    with terminal("inspect", *paths, "--speed", "max") as screen:
        screen.until("1/1")
        screen.press("q")
        assert screen.end() == 0


def test_other_commands_need_a_screen() -> None:
    """Where there is none, they say which option to leave out."""
    with pytest.raises(UsageError, match="--inspect needs a terminal"):
        need_screen("--inspect")


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
