"""The parts of `lmtool serve` that need no server: the ready file, what to try, whose end is waited for."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import TYPE_CHECKING

import pytest

from lmtool.core.errors import FileError
from lmtool.serving.config import LifeConfig, ServingConfig
from lmtool.serving.run import SWITCH_SECONDS, ReadyFile, attempt, emit_warnings, first, make_console, run
from lmtool.settings.terminal import Output

if TYPE_CHECKING:
    from pathlib import Path

    from lmtool.serving.events import Event


def test_the_ready_file_holds_the_url_as_long_as_the_server_answers(tmp_path: Path) -> None:
    """One line; what an earlier server left is taken away first; nothing else is left in the folder."""
    path = tmp_path / "ready"
    path.write_text("old")
    file = ReadyFile(str(path))
    file.prepare()
    assert not path.exists()
    file.write("ws://127.0.0.1:8080/")
    assert path.read_text() == "ws://127.0.0.1:8080/\n"
    assert list(tmp_path.iterdir()) == [path]
    file.remove()
    file.remove()
    assert not path.exists()


def test_a_ready_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """No such folder, or a folder in its place: `FileError` with the path."""
    with pytest.raises(FileError, match="no such folder"):
        ReadyFile(str(tmp_path / "no/file")).prepare()
    with pytest.raises(FileError, match="cannot remove"):
        ReadyFile(str(tmp_path)).prepare()


def test_without_a_ready_file_nothing_is_written() -> None:
    """No path, no file."""
    file = ReadyFile(None)
    file.prepare()
    file.write("ws://127.0.0.1:8080/")
    file.remove()


@pytest.mark.parametrize(
    ("where", "command"),
    [
        ("ws://127.0.0.1:8080/", 'lmtool chat "Hello there max_tokens=5"'),
        ("ws://127.0.0.1:8081/", 'lmtool chat -e :8081 "Hello there max_tokens=5"'),
        ("ws://[::1]:8080/", 'lmtool chat -e [::1]:8080 "Hello there max_tokens=5"'),
    ],
)
def test_the_command_to_try_works_as_it_stands(where: str, command: str) -> None:
    """The endpoint is named only where it is not the default."""
    assert attempt(where) == command


async def test_the_first_to_end_ends_the_wait() -> None:
    """The others are cancelled; a task that was given goes on."""
    never = asyncio.Event()
    given = asyncio.create_task(never.wait())
    await first(given, asyncio.sleep(0))
    assert not given.cancelled()
    never.set()
    assert await given


async def test_what_the_first_raises_is_raised() -> None:
    """An error is not lost in the race."""

    async def fail() -> None:
        raise FileError("no")

    with pytest.raises(FileError):
        await first(fail(), asyncio.Event().wait())


def test_stdout_is_written_to_unless_it_is_the_wire(capfd: pytest.CaptureFixture[str]) -> None:
    """What a server says is its output; with --stdio the output is the protocol."""
    from lmtool.serving.events import Stopped

    for listen, stream in ((ServingConfig().listen, "out"), (None, "err")):
        console = make_console(ServingConfig(listen=listen), Output.of())
        console.emit(Stopped())
        console.close()
        assert getattr(capfd.readouterr(), stream) == "stopped\n"


def test_warnings_of_the_rooms_become_lines() -> None:
    """A sentence with the error's kind; no traceback."""
    told: list[Event] = []
    log = logging.getLogger("lmtool.inference.engine.something")
    with emit_warnings(told.append, debug=False):
        log.warning("%s is slow", "gpt2")
        log.error("loading failed", exc_info=ValueError("no bytes"))
        log.info("not worth a line")
    assert [event.message for event in told] == ["gpt2 is slow", "loading failed (ValueError: no bytes)"]  # type: ignore[union-attr]


async def test_no_thread_keeps_the_interpreter_for_long(tmp_path: Path) -> None:
    """A server's threads take turns fifty times as often as Python's own default says."""
    before = sys.getswitchinterval()
    try:
        with pytest.raises(FileError):
            await run(ServingConfig(life=LifeConfig(ready_file=str(tmp_path / "no folder" / "ready"))), Output.of())
        assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)
    finally:
        sys.setswitchinterval(before)
