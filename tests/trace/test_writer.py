"""Trace files being written: crash-safe, packed, with times or without."""

from __future__ import annotations

import gzip
import resource
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lmtool.core.errors import FileError
from lmtool.trace.codec import Header
from lmtool.trace.events import Event, Remark, Style
from lmtool.trace.reader import TraceReader
from lmtool.trace.writer import TraceWriter
from tests.trace.conftest import CONVERSATION
from tests.trace.strategies import events, style

if TYPE_CHECKING:
    from tests.trace.conftest import WriteTrace


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.lists(events, max_size=6), style, st.sampled_from(["a.jsonl", "a.jsonl.gz"]))
def test_round_trip(tmp_path: Path, some: list[Event], name: Style, file: str) -> None:
    """Any events, in order of time, are read as they were written, and the file is complete."""
    some.sort(key=lambda event: event.time)
    writer = TraceWriter(tmp_path / file, Header(json=name), overwrite=True)
    for event in some:
        writer.write(event)
    writer.close(1e6)
    reader = TraceReader(tmp_path / file)
    assert list(reader)[:-1] == some
    assert reader.ending is not None
    assert reader.ending.state == "complete"


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_what_was_flushed_can_be_read_at_once(tmp_path: Path, name: str) -> None:
    """Another program reads what was flushed, while the file is still open: so does the one after a crash."""
    writer = TraceWriter(tmp_path / name, Header())
    for event in CONVERSATION:
        writer.write(event)
    assert writer.waiting_bytes > 0
    writer.flush()
    assert writer.waiting_bytes == 0
    reader = TraceReader(tmp_path / name)
    assert tuple(reader) == CONVERSATION
    assert reader.ending is not None
    assert reader.ending.state == "cut"
    writer.close(1)


def test_a_packed_file_holds_the_same_lines(write_trace: WriteTrace) -> None:
    """`.gz` packs the plain file; the same events give the same bytes each time."""
    plain, packed, again = (write_trace(name=name) for name in ("a", "b.gz", "c.gz"))
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    assert again.read_bytes() == packed.read_bytes()


def test_numbered_times(tmp_path: Path) -> None:
    """`--no-time`: an event's time is its number / 1000, whatever the clock says."""
    writer = TraceWriter(tmp_path / "a", Header(times="numbered"))
    assert writer.time(123.456) == 0.0
    writer.write(CONVERSATION[0])
    assert writer.time(234.567) == 0.001
    writer.close(345.678)
    assert b"345" not in (tmp_path / "a").read_bytes()


def test_an_existing_file_is_not_lost(write_trace: WriteTrace, tmp_path: Path) -> None:
    """A file that exists is only replaced when that was asked for."""
    path = write_trace()
    with pytest.raises(FileError, match="exists already") as refused:
        TraceWriter(path, Header())
    assert refused.value.hints == ("choose another name",)  # no --force where there is none
    with pytest.raises(FileError, match="exists already") as refused:
        TraceWriter(path, Header(), overwrite=False)
    assert refused.value.hints == ("choose another name, or --force to replace it",)
    TraceWriter(path, Header(), overwrite=True).abandon()
    with pytest.raises(FileError, match="cannot write"):
        TraceWriter(tmp_path / "no" / "folder", Header())


@pytest.mark.parametrize("name", ["a", "a.gz"])
def test_a_full_disk_is_told_by_flush(tmp_path: Path, name: str) -> None:
    """`flush` raises what the system says; the file is then cut, and what was flushed before can be read."""
    writer = TraceWriter(tmp_path / name, Header())
    writer.write(CONVERSATION[0])
    writer.flush()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (writer.path.stat().st_size + 10, limit[1]))
    try:
        writer.write(Remark(1, "note", 0, "long enough to be too much " * 9))
        with pytest.raises(OSError, match="too large"):
            writer.flush()
        writer.abandon()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    reader = TraceReader(writer.path)
    assert list(reader) == [CONVERSATION[0]]
    assert reader.ending is not None
    assert reader.ending.state == "cut"


def test_a_disk_that_is_full_at_the_start_is_told() -> None:
    """Not even the header can be written: exit 7 with the system's reason."""
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    with pytest.raises(FileError, match="No space"):
        TraceWriter(full, Header(), overwrite=True)
