"""What a recording that begins late has first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.terminal.tui.event_store import EventStore, TraceFile
from lmtool.terminal.tui.replay_preamble import preamble, without_other_streams
from lmtool.trace.codec import Header
from lmtool.trace.events import Close, Open
from lmtool.trace.writer import TraceWriter
from tests.terminal.tui.states import asked, chunk, sse
from tests.trace.conftest import generate, token, tokens

if TYPE_CHECKING:
    from pathlib import Path


def test_what_runs_is_whole() -> None:
    """Requests of streams that run and their tokens so far, in order; nothing of streams that are over."""
    spool = EventStore()
    together = tokens(0.3, token(5, 1), token(6, 2))
    spool.feed(
        [
            Open(0.0, 1), generate(0.1, 1), generate(0.2, 2), together,
            tokens(0.4, token(7, 1) | {"finish_reason": "stop"}), tokens(0.5, token(8, 2)), generate(0.6, 3),
        ]
    )  # fmt: skip
    assert preamble(spool) == [
        generate(0.2, 2),
        tokens(0.3, token(6, 2)),
        tokens(0.5, token(8, 2)),
        generate(0.6, 3),
    ]
    spool.feed([Close(0.7, 1, "client")])
    assert preamble(spool) == []


def test_a_stream_that_nobody_announced() -> None:
    """Without its request there is no beginning to write."""
    spool = EventStore()
    spool.feed([tokens(0.1, token(5, 9))])
    assert preamble(spool) == []


def test_an_answer_over_http() -> None:
    """A request and everything on its connection since."""
    spool, other = EventStore(), generate(0.15, 1, connection=2)
    events = [asked(0.1), other, sse(0.2, chunk(" a")), sse(0.3, chunk(" b"))]
    spool.feed(events)
    assert preamble(spool) == events


def test_a_file_runs_no_more(tmp_path: Path) -> None:
    """Streams of a file that breaks off do not run; what a server answers beside it does."""
    writer = TraceWriter(tmp_path / "a.jsonl", Header(json="py"))
    writer.write(generate(0.0))
    writer.close(1.0)
    file = TraceFile(tmp_path / "a.jsonl")
    file.load(1.0)
    file.feed([generate(2.0, 5, connection=2), tokens(2.1, token(5, 5), connection=2)])
    assert [event.time for event in preamble(file)] == [2.0, 2.1]


def test_ids_of_every_kind() -> None:
    """The number 3 and the text "3" are two streams; a frame that has one stream only stays as it is."""
    frame = tokens(0.1, token(5, 3), token(6, "3"))  # type: ignore[arg-type] # any JSON value may be an id
    assert without_other_streams(frame, {"1/3"}) == tokens(0.1, token(5, 3))
    assert without_other_streams(frame, {'1/"3"'}) == tokens(0.1, token(6, "3"))  # type: ignore[arg-type] # as above
    assert without_other_streams(frame, {"1/3", '1/"3"'}) is frame
