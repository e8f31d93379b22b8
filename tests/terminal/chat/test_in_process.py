"""Chatting where no server runs: a model in the same process, for people; scripts are told that nobody is there."""

from __future__ import annotations

import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from lmtool.core.errors import ModelLoadError, ResourceError
from lmtool.protocol.lmtp.endpoint import parse
from lmtool.serving import composition
from lmtool.settings.terminal import Output
from lmtool.terminal.chat import in_process
from tests.cli.terminal import terminal

if TYPE_CHECKING:
    from pathlib import Path
from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("clean_environment")
AT_HOME = "no server is running: lmtool-tiny answers in this process"
KEEPS = "(lmtool serve keeps it loaded)"


@pytest.fixture
def nowhere() -> Iterator[str]:
    """An address of this machine at which nobody listens, as long as the test runs."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"ws://127.0.0.1:{held.getsockname()[1]}/"


def lmtool_at(default: str) -> tuple[str, ...]:
    """The program with another default address: a server of somebody else may run at the usual one."""
    changed = f"from lmtool.cli import common_options as c; c.DEFAULT_ENDPOINT = {default!r}"
    source = f"{changed}; from lmtool.cli.main import main; main()"
    return (sys.executable, "-c", source)


def test_one_prompt(nowhere: str) -> None:
    """On a terminal `lmtool chat PROMPT` is answered by the embedded model, after one line that says so."""
    with terminal("chat", "Hello there max_tokens=5", program=lmtool_at(nowhere)) as screen:
        status = screen.end()
        said, _, answer = screen.text.partition("\n")
        assert (status, said.rstrip("\r").endswith(KEEPS)) == (0, True), screen.text  # behind what the load has shown
        assert AT_HOME in said
        assert answer.strip()
        assert "error" not in answer


def test_conversation(nowhere: str) -> None:
    """`lmtool chat` alone is a conversation with it."""
    with terminal("chat", "-m", "lmtool-tiny", "-n", "4", program=lmtool_at(nowhere)) as screen:
        screen.until("Ctrl-D leaves")
        assert AT_HOME in screen.text
        screen.press("Hello\r")
        screen.until("cut at 4 tokens")
        screen.press("\x04")
        assert screen.end() == 0


@pytest.mark.parametrize("words", [("chat", "Hi"), ("chat", "-e", "HERE", "Hi")], ids=["a script", "a named server"])
def test_a_script_is_told(words: tuple[str, ...], nowhere: str) -> None:
    """Status 3 where stdout is no terminal, or an endpoint was named."""
    program = [*lmtool_at(nowhere), *(nowhere if word == "HERE" else word for word in words)]
    if words[1] == "-e":
        with terminal(program=tuple(program)) as screen:
            assert (screen.end(), "connection refused" in screen.text) == (3, True), screen.text
        return
    result = subprocess.run(program, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    assert (result.returncode, result.stdout) == (3, "")
    assert result.stderr.startswith("error: no LMTP server at")


async def test_without_the_packages(nowhere: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra `serve` there is the line that installs it, with the status of what is missing here."""
    monkeypatch.setattr(composition, "is_installed", lambda name: name != "torch")
    out = Output(color=False, note_color=False, terminal=True)
    with pytest.raises(ResourceError) as caught:
        async with in_process.reachable(parse(nowhere), out, None):
            pass
    assert caught.value.exit_code == 8
    assert "torch" in caught.value.message
    assert "install it:  pip install 'lmtool[serve]'" in caught.value.hints


async def test_a_model_that_is_not_there(nowhere: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Nobody says that it answers."""
    out = Output(color=False, note_color=False, terminal=True)
    with pytest.raises(ModelLoadError):
        async with in_process.reachable(parse(nowhere), out, str(tmp_path)):
            pass
    assert "answers in this process" not in capfd.readouterr().err


async def test_who_listens_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever listens is used, and its faults are told: nothing is loaded beside it."""
    out = Output(color=False, note_color=False, terminal=True)
    with socket.create_server(("127.0.0.1", 0)) as busy:
        endpoint = parse(f"ws://127.0.0.1:{busy.getsockname()[1]}/")
        async with in_process.reachable(endpoint, out, None) as found:
            assert found is endpoint
    assert capsys.readouterr().err == ""
