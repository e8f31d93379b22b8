"""What was said in a case, as a trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmtool.conformance.keeping import keep
from lmtool.conformance.outcome import Outcome, Problem
from lmtool.conformance.seen import Closed, Message
from lmtool.errors import FileError
from lmtool.trace.events import Close, Frame, Open, Remark
from lmtool.trace.reader import TraceReader
from tests.conformance.conftest import said, token
from tests.conformance.test_outcome import CASE

OUTCOME = Outcome(CASE, "fail", (Problem("fail", "one is missing"),))


def test_the_trace_can_be_read(tmp_path: Path) -> None:
    """Frames of all connections byte for byte, closes with their codes, problems as marks, rules in the header."""
    frame = token(logprob=float("-inf"))
    seen = said(token(), frame)
    seen.handshakes["a"] = 101
    seen.add(Message.of(0.3, "b", ">", "GENERATE " + "x" * 100_000))
    seen.closed["b"] = Closed(0.4, 1009, "too big", "server")
    path = keep(tmp_path / "new", OUTCOME, seen)
    assert path.name == "server-a.lmtp.jsonl"
    reader = TraceReader(path)
    events = list(reader)
    assert reader.ending is not None
    assert reader.ending.state == "complete"
    assert (reader.header.title, reader.header.covers) == ("a: A holds", ("GEN-3",))
    frames = [event for event in events if isinstance(event, Frame)]
    assert [one.wire() for one in frames[:2]] == [token(), frame]
    assert len(str(frames[2].wire())) == 2**16
    assert [(one.connection, one.code, one.by) for one in events if isinstance(one, Close)] == [(2, 1009, "server")]
    assert [one.text for one in events if isinstance(one, Remark) and one.kind == "mark"] == ["one is missing"]
    assert len([one for one in events if isinstance(one, Open)]) == 2
    assert keep(tmp_path / "new", OUTCOME, seen) == path


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """It is a FileError."""
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot make the folder"):
        keep(tmp_path / "file", OUTCOME, said())
