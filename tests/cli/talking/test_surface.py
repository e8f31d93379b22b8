"""Where a conversation takes place; terminals are tested in `test_repl`, by a program that runs on one."""

from __future__ import annotations

import asyncio
import os

import pytest

from lmtool.cli.output import Output
from lmtool.cli.talking.lineedit import Submit
from lmtool.cli.talking.render import Ink
from lmtool.cli.talking.surface import PlainSurface, TerminalSurface, surface


def ink(*, terminal: bool) -> Ink:
    """Return what writes without colours."""
    return Ink(Output(color=False, note_color=False, terminal=terminal), "none")


@pytest.mark.parametrize(("term", "plain"), [("dumb", True), ("", True), ("xterm", False)])
def test_choice(term: str, plain: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """A terminal that can move its cursor has a row for typing; others, and files, have plain lines."""
    with capfd.disabled():
        controller, side = os.openpty()
        with os.fdopen(side) as stdin:
            monkeypatch.setattr("sys.stdin", stdin)
            monkeypatch.setenv("TERM", term)
            assert isinstance(surface(ink(terminal=True)), PlainSurface if plain else TerminalSurface)
            assert isinstance(surface(ink(terminal=False)), PlainSurface)
        os.close(controller)


async def test_plain_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Lines of any portions become events, the end too; questions go to stderr, answers to stdout."""
    reading, writing = os.pipe()
    with os.fdopen(reading) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        place = PlainSurface(ink(terminal=False))
        place.start()
        os.write(writing, b"on")
        os.write(writing, b"e\r\ntwo\nthr")
        os.close(writing)
        events = [await asyncio.wait_for(place.events.get(), 30) for _ in range(4)]
        assert events == [Submit("one"), Submit("two"), Submit("thr"), "end"]
        place.put([("answer", "1")])
        place.say("note")
        place.prompt("2> ")
        place.echo("one")
        assert not place.clear_line()
        place.stop()
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("answer", "> note\n2> ")
    assert place.columns is None
