"""A trace file read in blocks: the same as event by event, however it is cut, commented or packed."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lmtool.core.errors import FileError
from lmtool.protocol.lmtp import frames
from lmtool.trace import reader
from lmtool.trace.events import Frame, Remark
from lmtool.trace.reader import Ending, Run, Scan, TraceReader
from tests.trace.conftest import generate, token, tokens

if TYPE_CHECKING:
    from lmtool.trace.events import Event
    from tests.trace.conftest import WriteTrace

EVENTS: tuple[Event, ...] = (
    generate(0.001),
    *(tokens(0.01 * i, token(i), token(i, 2, text="日")) for i in range(1, 8)),
    Remark(0.1, "mark", 1, "TOKEN \u2028"),
    tokens(0.2, token(9) | {"stream_id": "name"}, {"stream_id": None, "token": 3}),
    tokens(0.3),
    tokens(0.4, token(3) | {"finish_reason": "stop"}),
)
SMALL = 97
"""Bytes of a block, so that lines lie across several."""


def entries_of(event: Event) -> list[frames.TokenEntry]:
    """What the entries of a TOKEN frame mean, read the patient way."""
    command, entries = event.answer() if isinstance(event, Frame) else (None, [])
    return frames.token_entries(entries) if command == "TOKEN" else []


def patiently(path: Path) -> tuple[list[object], Ending | None] | str:
    """Offsets and events as the reader tells them one by one, and the ending; or the error."""
    try:
        reader = TraceReader(path)
        found: list[object] = []
        for offset, event in reader.with_offsets():
            entries = entries_of(event)
            found.append((offset, event.time, event.connection, entries) if entries else (offset, event))
    except FileError as error:
        return error.message
    return found, reader.ending


def in_blocks(path: Path, copy: io.BytesIO | None = None) -> tuple[list[object], Ending | None] | str:
    """The same by `Scan`."""
    try:
        reader = TraceReader(path)
        scan = Scan(reader, copy)
        found: list[object] = []
        for items in scan.blocks():
            for item in items:
                if isinstance(item, Run):
                    pairs = zip(item.offsets, item.lines, strict=True)
                    found += [(at, line.time, line.connection, line.entries) for at, line in pairs if line.entries]
                    empty = [
                        (at, reader.at(at))
                        for at, line in zip(item.offsets, item.lines, strict=True)
                        if not line.entries
                    ]
                    found += empty
                else:
                    entries = entries_of(item[1])
                    event = item[1]
                    found.append((item[0], event.time, event.connection, entries) if entries else item)
        for _ in scan.verify():
            pass
    except FileError as error:
        return error.message
    return sorted(found, key=lambda one: one[0]), reader.ending  # type: ignore[index] # pairs or longer


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file of these tests lies in many blocks."""
    monkeypatch.setattr(reader, "BLOCK", SMALL)


@pytest.mark.parametrize("name", ["a.lmtp.jsonl", "a.lmtp.jsonl.gz"])
def test_the_same_as_event_by_event(write_trace: WriteTrace, name: str) -> None:
    """Offsets, events, entries and ending are those of `TraceReader.with_offsets`."""
    path = write_trace(EVENTS, name)
    found = in_blocks(path)
    assert found == patiently(path)
    assert isinstance(found, tuple)
    assert found[1] == Ending("complete", "")
    runs = [item for items in Scan(TraceReader(path)).blocks() for item in items if isinstance(item, Run)]
    assert sum(len(run.lines) for run in runs) == 9  # all but the frame with an id that is null


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(st.data())
def test_whatever_happened_to_the_file(write_trace: WriteTrace, tmp_path: Path, data: st.DataObject) -> None:
    """Cut anywhere, a byte changed, lines ended otherwise, comments between: both ways tell the same."""
    path = write_trace(EVENTS, f"{len(list(tmp_path.iterdir()))}.jsonl")
    whole = path.read_bytes()
    lines = whole.split(b"\n")
    if data.draw(st.booleans()):
        place = data.draw(st.integers(1, len(lines)))
        lines.insert(place, data.draw(st.sampled_from([b"# note", b"", b"  ", b"#\xff", b"[5, 6", lines[2]])))
    changed = data.draw(st.sampled_from([b"\n", b"\r\n"])).join(lines)
    changed = changed[: data.draw(st.integers(60, len(changed)))]
    if data.draw(st.booleans()):
        at = data.draw(st.integers(60, len(changed))) - 1
        changed = changed[:at] + bytes([data.draw(st.sampled_from(b'0"],{x\n\r\xff'))]) + changed[at + 1 :]
    path.write_bytes(changed)
    assert in_blocks(path) == patiently(path)


def test_packed_data_that_breaks_off(write_trace: WriteTrace) -> None:
    """What can be unpacked is told; the ending says why there is no more."""
    path = write_trace(EVENTS, "a.lmtp.jsonl.gz")
    path.write_bytes(path.read_bytes()[:-40])
    found = in_blocks(path)
    assert isinstance(found, tuple)
    assert len(found[0]) > 3
    assert found[1] is not None
    assert (found[1].state, "breaks off" in found[1].reason) == ("cut", True)


def test_packed_data_is_copied(write_trace: WriteTrace) -> None:
    """The copy is the unpacked file, so that offsets lead to their lines."""
    path = write_trace(EVENTS, "a.lmtp.jsonl.gz")
    copy = io.BytesIO()
    in_blocks(path, copy)
    assert copy.getvalue() == gzip.decompress(path.read_bytes())


def test_the_hash_is_looked_at_last(write_trace: WriteTrace) -> None:
    """Counts are compared when the last block was given, bytes by `verify`."""
    path = write_trace(EVENTS)
    path.write_bytes(path.read_bytes().replace(b"0.040000", b"0.040001"))
    reader = TraceReader(path)
    scan = Scan(reader)
    assert sum(1 for _ in scan.blocks()) > 1
    assert reader.ending == Ending("complete", "")
    list(scan.verify())
    assert reader.ending is not None
    assert reader.ending.state == "altered"


@pytest.mark.parametrize("end", [b"\r\n", b"\n# here\n", b"\n\n"])
def test_comments_are_no_part_of_the_hash(write_trace: WriteTrace, end: bytes) -> None:
    """They may be added anywhere, as may other line ends; the trace stays complete."""
    path = write_trace(EVENTS)
    path.write_bytes(path.read_bytes().replace(b"\n", end))
    reader = TraceReader(path)
    scan = Scan(reader)
    assert list(scan.blocks())
    list(scan.verify())
    assert reader.ending == Ending("complete", "")


def test_a_line_too_long(write_trace: WriteTrace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line above the limit is refused before it is whole."""
    path = write_trace((Remark(0.0, "note", 1, "x" * 3000), *EVENTS[1:]))
    monkeypatch.setattr(reader, "LONGEST_LINE", 1000)
    with pytest.raises(FileError, match="longer than 1000 bytes"):
        list(Scan(TraceReader(path)).blocks())
