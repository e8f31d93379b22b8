"""Trace files as they come: whole, cut, altered, packed, broken."""

from __future__ import annotations

import gzip
import io
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lmtool.core.errors import FileError
from lmtool.protocol.lmtp import frames
from lmtool.trace import reader
from lmtool.trace.events import Blob, Event, Frame, JsonText, Remark
from lmtool.trace.reader import BLOCK, Ending, Lines, Run, Scan, TraceReader
from tests.trace.conftest import CONVERSATION, generate, token, tokens

if TYPE_CHECKING:
    from tests.trace.conftest import WriteTrace

HEADER = b'{"lmtp_trace": 1}\n'


def read(path: Path) -> tuple[list[object], str]:
    """All events and the state of the ending."""
    reader = TraceReader(path)
    events: list[object] = list(reader)
    assert reader.ending is not None
    return events, reader.ending.state


@pytest.mark.parametrize("name", ["a.lmtp.jsonl", "a.lmtp.jsonl.gz"])
def test_what_was_written_is_read(write_trace: WriteTrace, name: str) -> None:
    """All events in order, then the end record; plain or packed."""
    events, state = read(write_trace(name=name))
    assert tuple(events[:-1]) == CONVERSATION
    assert state == "complete"


def test_it_can_be_read_twice(write_trace: WriteTrace) -> None:
    """Each iteration begins at the first event."""
    reader = TraceReader(write_trace())
    assert list(reader) == list(reader)


def test_packing_is_told_by_content(write_trace: WriteTrace, tmp_path: Path) -> None:
    """The first two bytes say whether a file is packed, not its name."""
    path = write_trace(name="a.lmtp.jsonl.gz").rename(tmp_path / "plain.jsonl")
    assert read(path)[1] == "complete"


def test_comments_and_empty_lines_mean_nothing(write_trace: WriteTrace) -> None:
    """Comments may be added anywhere, before the header too; the trace stays complete."""
    path = write_trace()
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"# first\n\n" + b"\r\n# more \xff\r\n\n".join(lines) + b"\n")
    events, state = read(path)
    assert len(events) == len(CONVERSATION) + 1
    assert state == "complete"


def test_unknown_kinds_are_kept(tmp_path: Path) -> None:
    """An event of an unknown kind is read, and the ones after it."""
    path = tmp_path / "a"
    path.write_bytes(HEADER + b'[1, "weather", 0, {"sun": true}]\n[2, "mark", 0, "x"]\n')
    events, _ = read(path)
    assert len(events) == 2


@pytest.mark.parametrize("name", ["a.lmtp.jsonl", "a.lmtp.jsonl.gz"])
def test_a_cut_file_is_read_as_far_as_it_goes(write_trace: WriteTrace, name: str) -> None:
    """FORMAT.md, The end: without an end record the trace is cut, and every whole line is still read."""
    events, state = read(write_trace(name=name, end=False))
    assert tuple(events) == CONVERSATION
    assert state == "cut"


def test_a_file_may_be_cut_at_any_byte(write_trace: WriteTrace) -> None:
    """Whatever byte a file ends at, after its header, it is cut: the whole lines before it are read."""
    path = write_trace()
    data = path.read_bytes()
    for length in range(data.index(b"\n") + 1, len(data) - 1):
        path.write_bytes(data[:length])
        events, state = read(path)
        assert state == "cut"
        whole_lines = data[:length].count(b"\n") - 1
        assert whole_lines <= len(events) <= whole_lines + 1


def test_packed_data_may_be_cut_at_any_byte(write_trace: WriteTrace) -> None:
    """A packed file that breaks off anywhere is read as far as it goes, or refused; nothing else."""
    path = write_trace(name="a.gz")
    data = path.read_bytes()
    for length in range(2, len(data) - 8, 3):
        path.write_bytes(data[:length])
        try:
            assert read(path)[1] in ("cut", "complete")
        except FileError as error:
            assert "empty" in error.message or "header" in error.message  # noqa: PT017 - either outcome is right


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b'"token": 12', b'"token": 99', "sha256"),
        (b'"events":5', b'"events":6', "counts 6 events, the file has 5"),
        (b'"tokens":3', b'"tokens":9', "counts 9 tokens, the file has 3"),
    ],
)
def test_an_altered_file_is_told(write_trace: WriteTrace, old: bytes, new: bytes, reason: str) -> None:
    """FORMAT.md, The end: the record does not fit the lines; they are read all the same."""
    path = write_trace()
    assert old in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(old, new))
    reader = TraceReader(path)
    assert len(list(reader)) == 6
    assert reader.ending is not None
    assert reader.ending.state == "altered"
    assert reason in reader.ending.reason


@pytest.mark.parametrize(
    ("data", "where", "reason"),
    [
        (b"", "", "is empty"),
        (b"# only a comment\n", "", "is empty"),
        (b"GENERATE {}\n", "line 1", "not a trace header"),
        (b"\xff\xfe\x00\n", "line 1", "not a trace header"),
        (b'{"lmtp_trace": 2}\n', "line 1", "version 2; this lmtool reads version 1"),
        (b'#\n{"lmtp_trace": 1, "covers": 1}\n', "line 2", "expected a list of strings"),
        (HEADER + b"nonsense\n", "line 2", "not JSON"),
        (HEADER + b'[1, "mark", 0, "\xff"]\n', "line 2", "not UTF-8"),
        (HEADER + b'[1, "mark", 0, "x"]\n#\n[2, "<", 1, 7, 7]\n', "line 4", "where a command or null"),
        (HEADER + b'[2, "mark", 0, "x"]\n[1, "mark", 0, "y"]\n', "line 3", "time 1.000000 is before 2.000000"),
        (
            HEADER + b'[2, "end", 0, {"events": 0, "tokens": 0, "sha256": ""}]\n[2, "mark", 0, "y"]\n',
            "line 3",
            "an event after the end record",
        ),
        (b"\x1f\x8b not gzip", "line 0", ""),
        (gzip.compress(HEADER, mtime=0)[:-8] + b"12345678" + b"x", "", ""),
    ],
)
def test_a_bad_file_is_refused_with_line_and_reason(tmp_path: Path, data: bytes, where: str, reason: str) -> None:
    """Exit 7, the line's number, and why."""
    path = tmp_path / "bad"
    path.write_bytes(data)
    with pytest.raises(FileError) as error:
        read(path)
    assert where in error.value.message
    assert reason in error.value.message
    assert error.value.exit_code == 7


def test_a_huge_line_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line above the limit is refused before it is held in memory."""
    monkeypatch.setattr("lmtool.trace.reader.LONGEST_LINE", 1000)
    path = tmp_path / "huge"
    path.write_bytes(HEADER + b'[1, "mark", 0, "' + b"x" * 5000)
    with pytest.raises(FileError, match="line 2: longer than 1000 bytes"):
        read(path)


class CountedBytes(bytes):
    """Bytes that count what is copied to append them."""

    copied = 0

    def __radd__(self, other: bytes) -> bytes:
        """Copies what stands before."""
        CountedBytes.copied += len(other) + len(self)
        return bytes(other) + bytes(self)


class OneLine(io.BytesIO):
    """A file that counts so."""

    def read1(self, size: int | None = -1) -> bytes:
        """A block."""
        return CountedBytes(super().read1(size))


def test_a_long_line_is_not_copied_for_each_block() -> None:
    """A line costs time in proportion to its length."""
    line = b"x" * (128 * BLOCK)
    CountedBytes.copied = 0
    assert list(Lines(Path("a"), OneLine(line))) == [line]
    assert CountedBytes.copied <= 2 * len(line)


@pytest.mark.parametrize("filling", [b"\n", b" \n", b"x", b"# a comment that goes on\n"])
def test_a_packed_file_that_unpacks_to_far_more_is_refused(tmp_path: Path, filling: bytes) -> None:
    """What no recording does; before the memory or the time is spent."""
    path = tmp_path / "a.gz"
    with gzip.open(path, "wb") as file:
        file.write(HEADER)
        for _ in range(64):
            file.write(filling * (2**20 // len(filling)))
    with pytest.raises(FileError, match=r"unpack to more than 100 times|lines without an event"):
        list(TraceReader(path))


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    """A file that is not there, and a folder, are refused with the system's reason."""
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(FileError, match="cannot read"):
            TraceReader(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(data=st.data())
def test_damage_is_survived(write_trace: WriteTrace, tmp_path: Path, data: st.DataObject) -> None:
    """Bytes overwritten and lines moved: the file is read or refused with `FileError`, and nothing else happens."""
    path = tmp_path / "a.lmtp.jsonl"
    path.unlink(missing_ok=True)
    lines = write_trace().read_bytes().splitlines(keepends=True)
    lines = data.draw(st.permutations(lines)) if data.draw(st.booleans()) else lines
    damaged = bytearray(b"".join(lines))
    for place in data.draw(st.lists(st.integers(0, len(damaged) - 1), max_size=4)):
        damaged[place] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(damaged))
    try:
        read(path)
    except FileError as error:
        assert str(path) in error.message  # noqa: PT017 - either outcome is right


def test_any_event_by_its_number(write_trace: WriteTrace) -> None:
    """The index holds the offset of each event's line; `at` reads it alone, comments or not."""
    path = write_trace()
    path.write_bytes(path.read_bytes().replace(b"\n[0.01", b"\n# here\n[0.01"))
    reader = TraceReader(path)
    index = reader.index()
    assert [reader.at(offset) for offset in index] == list(reader)
    assert index.itemsize == 8


def test_blobs_are_put_back_when_asked(write_trace: WriteTrace) -> None:
    """`whole` leaves no reference; values that are no longer at hand are read again from the file."""
    masks = [Blob(0, 0, f"{i:02}", {"n": i}) for i in range(20)]
    users = [Frame(0, ">", 1, JsonText("GENERATE", {"logit_bias": {"$blob": f"{i:02}"}}, "py")) for i in range(20)]
    reader = TraceReader(write_trace([*masks, *users]))
    frames = [e for _, e in reader.with_offsets(whole=True) if isinstance(e, Frame)]
    assert [f.wire() for f in frames] == [f'GENERATE {{"logit_bias": {{"n": {i}}}}}' for i in range(20)]
    assert users[3] in list(reader)


class Counted(TraceReader):
    """A reader that counts how often it goes back."""

    returns = 0

    def at(self, offset: int) -> Event:
        """The event there."""
        self.returns += 1
        return super().at(offset)


@pytest.mark.parametrize(("size", "most"), [(100, 0), (700_000, 41)])
def test_blobs_in_turn(write_trace: WriteTrace, size: int, most: int) -> None:
    """Small values that are used in turn are read once; of large ones only some bytes stay in memory."""
    masks = [Blob(0, 0, f"{i:02}", {"n": "x" * size}) for i in range(20)]
    users = [Frame(0, ">", 1, JsonText("GENERATE", {"logit_bias": {"$blob": f"{i % 20:02}"}}, "py")) for i in range(40)]
    reader = Counted(write_trace([*masks, *users], "a.lmtp.jsonl.gz"))
    found = [event for _, event in reader.with_offsets(whole=True) if isinstance(event, Frame)]
    contents = [one.content.value for one in found if isinstance(one.content, JsonText)]
    assert contents == [{"logit_bias": masks[0].value}] * 40
    assert reader.returns < most or reader.returns == most == 0


def test_a_blob_that_is_nowhere_is_told(write_trace: WriteTrace) -> None:
    """A reference without its blob event makes the file invalid for whoever needs the value."""
    reader = TraceReader(write_trace([Frame(0, ">", 1, JsonText("GENERATE", {"logit_bias": {"$blob": "ab"}}, "py"))]))
    with pytest.raises(FileError, match="blob ab, which no line above gives"):
        list(reader.with_offsets(whole=True))


def test_memory_does_not_grow_with_the_file(write_trace: WriteTrace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times the events take no more memory to read, whatever a block has."""
    monkeypatch.setattr("lmtool.trace.reader.BLOCK", 4096)
    peaks = []
    for count in (500, 5000):
        path = write_trace([tokens(i / 1000, token(i)) for i in range(count)], f"{count}.jsonl")
        reader = TraceReader(path)
        tracemalloc.start()
        for _ in reader:
            pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 50_000


def test_a_file_that_shrinks_is_told(write_trace: WriteTrace) -> None:
    """An offset beyond the file's end is an error of the file, not of the program."""
    reader = TraceReader(write_trace([Remark(0, "mark", 0, "x")]))
    offset = reader.index()[0]
    reader.path.write_bytes(b"")
    with pytest.raises(FileError, match="shorter"):
        reader.at(offset)


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
