"""`lmtool trace merge`."""

from __future__ import annotations

from pathlib import Path

from lmtool.trace.reader import TraceReader
from tests.cli.trace_runner import CONVERSATION, trace


def test_two_traces_as_one(tmp_path: Path) -> None:
    """All events in order of time, connections apart, an end record; cut sources are told."""
    for name in ("a", "b"):
        (tmp_path / name).write_text(CONVERSATION)
    result = trace("merge", tmp_path / "a", tmp_path / "b", "-O", tmp_path / "c.gz")
    assert result.exit_code == 0
    assert result.stderr.count("is cut") == 2
    reader = TraceReader(tmp_path / "c.gz")
    assert {event.connection for event in reader} == {0, 1, 2}
    assert reader.ending is not None
    assert reader.ending.state == "complete"
