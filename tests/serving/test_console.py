"""Writing a server's events to a terminal, a pipe, or nobody."""

from __future__ import annotations

import io
import json
import os

from lmtool.core.types import LoadProgress
from lmtool.net.telemetry.request_log import RequestLog
from lmtool.serving.console import Console, unbuffered
from lmtool.serving.events import Draining, Event, Finished, Loading, Ready, Stopped

DONE = Finished(RequestLog(1, "3", "GENERATE", "gpt2", 2, 5, 0.009, 0.0187, "length"))


def loading(done: int, seconds: float, phase: str = "loading") -> Loading:
    return Loading(LoadProgress("gpt2", phase, done, 100_000_000), seconds)


def written(*events: Event, **options: object) -> str:
    stream = io.StringIO()
    console = Console(stream.write, **options)
    for event in events:
        console.emit(event)
    console.close()
    return stream.getvalue()


def test_in_a_pipe_a_load_is_told_now_and_then() -> None:
    """A log file should not hold a hundred lines for one model."""
    events = [
        loading(1_000_000, 0.1),
        loading(2_000_000, 0.2),
        loading(90_000_000, 5.2),
        loading(100_000_000, 5.3, "ready"),
    ]
    assert written(*events).splitlines() == [
        "loading gpt2 1/100 MB",
        "loading gpt2 90/100 MB",
    ]


def test_on_a_terminal_the_bar_is_drawn_over_and_ends_with_a_line() -> None:
    """On a terminal the bar is drawn over, and stays as a line when the load ends."""
    text = written(loading(50_000_000, 0.1), loading(100_000_000, 0.3, "ready"), terminal=True, columns=lambda: 60)
    assert text.count("\n") == 1
    assert text.endswith("100/100 MB  0.3 s\n")


def test_a_line_while_a_bar_is_shown_does_not_tear_it() -> None:
    """A line told while a bar is shown stands above the bar."""
    text = written(loading(50_000_000, 0.1), DONE, terminal=True, columns=lambda: 60)
    before, _, after = text.partition("#1/3 GENERATE")
    assert before.rpartition("\r\x1b[K")[2].endswith("  ")
    assert "\n\r\x1b[Kloading gpt2" in after


def test_json_lines_are_complete_even_for_a_bar() -> None:
    """As JSON, each step of a load is a line."""
    lines = written(loading(1, 0.1), DONE, Stopped(), json=True).splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["loading", "finished", "stopped"]


def test_quiet_says_nothing() -> None:
    """Quiet says nothing."""
    assert written(DONE, Draining(1), quiet=True) == ""


def test_what_a_client_wrote_cannot_steer_the_terminal() -> None:
    """Stream ids and error texts come from strangers."""
    evil = Finished(RequestLog(1, "\x1b[2J", "GENERATE", error="\x1b[2J"))
    assert "\x1b" not in written(evil)


def test_a_request_has_one_line() -> None:
    """A line feed that a client wrote begins no line of the log, which would look like another event."""
    feed = "x\nready in 1.0 s\r\n\u2028\x85"
    for evil in (
        Finished(RequestLog(1, feed, "GENERATE", error=feed)),
        Finished(RequestLog(1, "2", "GENERATE", feed, 2, 5, 0.009, 0.0187, "length", ignored=(feed,))),
    ):
        assert written(evil).splitlines() == [written(evil)[:-1]]


def test_a_reader_that_does_not_read_never_stops_the_server() -> None:
    """A parent process may hold our stdout and never look at it."""
    reading, writing = os.pipe()
    with os.fdopen(reading), os.fdopen(writing, "w") as stream:
        console = Console(unbuffered(stream))
        for _ in range(20_000):
            console.emit(Ready(None, 1.0))
        console.close()
        assert not console.quiet
    # closing the reading end has set the console's thread free


def test_a_reader_that_has_gone_never_stops_the_server() -> None:
    """A reader that has gone never stops the server."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        console = Console(unbuffered(stream))
        console.emit(Stopped())
        console.close()
        console.emit(Stopped())
        assert console.quiet
