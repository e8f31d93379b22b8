"""Read trace files: one event at a time, by event number, or in blocks with TOKEN frames left unparsed."""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from array import array
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal, TypeAlias, cast

import msgspec
from msgspec import Meta

from lmtool.core.errors import FileError
from lmtool.protocol.lmtp.frames import NO_TOKEN, TokenEntry
from lmtool.trace import codec as lines
from lmtool.trace.codec import HeaderError, LineError, put_back
from lmtool.trace.events import Blob, End, count_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lmtool.trace.codec import Header
    from lmtool.trace.events import Event

LONGEST_LINE = 2**26
"""Bytes; a longer line is refused."""
LARGE_UNPACKED, MOST_UNPACKED = 2**25, 100
"""Unpacked bytes from which a packed file is refused if it unpacks to this many times its size; a recording that
repeats one token unpacks to 46 times its size."""
MOST_EMPTY, _SHORTEST_EVENT = 2**20, 8
"""Lines that are too short for an event; bytes of the shortest event with its line feed."""
BLOCK = 2**16
"""Bytes per read: objects made of them fit the processor's cache."""
_BLOBS_KEPT = 2**23
"""Bytes of blob lines that are cached; as Python objects they take about ten times as much."""
State: TypeAlias = Literal["complete", "cut", "altered"]


@dataclass(frozen=True, slots=True)
class Ending:
    """State of a trace's end, known once its last event has been read."""

    state: State
    """`complete`: matches the end record. `cut`: no end record. `altered`: differs from the end record."""
    reason: str
    """Reason it is not complete; empty if it is."""


class TraceReader:
    """Events of one trace file, plain or gzip, in constant memory.

    Iterate over it, any number of times; `header` is known at once, `ending` after the last event. A file that breaks
    the format raises `FileError` with line and reason; one that only stops early does not.
    """

    def __init__(self, path: str | Path) -> None:
        """Read the header. Raises `FileError`."""
        self.path = Path(path)
        self.ending: Ending | None = None
        with self.open() as file:
            source = Lines(self.path, file)
            first = next((line for line in source if not is_comment(line)), None)
            if first is None:
                raise FileError(f"{self.path} is empty", "a trace begins with a header line")
            try:
                self.header: Header = lines.read_header(first)
            except HeaderError as error:
                hint = "traces are written by `lmtool trace record`; other logs: `lmtool trace convert`"
                hint = "install the lmtool that wrote it, or a later one" if "version" in str(error) else hint
                raise FileError(f"{self.path}, line {source.number}: {error}", hint) from None
            self.start = source.offset
            """Offset of the line after the header, in bytes of the unpacked file."""
            self.first_line = source.number
            """Number of the header's line."""
            self._first = first

    def __iter__(self) -> Iterator[Event]:
        for _, event in self.with_offsets():
            yield event

    def with_offsets(self, *, whole: bool = False) -> Iterator[tuple[int, Event]]:
        """Pairs of (offset of its line in bytes of the unpacked file, event), in order.

        whole: replace references to blobs by their values; `Blob` events are included anyway.
        """
        self.ending = None
        blobs = _BlobStore(self)
        check = self.check()
        with self.open() as file:
            file.seek(self.start)
            source = Lines(self.path, file, self.start, self.first_line)
            for line in source:
                if is_comment(line):
                    continue
                event = self.read(line, source)
                if event is None:
                    break
                self.in_order(check, event.time, source.number)
                check.add(event, line)
                if isinstance(event, Blob):
                    blobs.add(event, source.begin, len(line))
                yield source.begin, blobs.whole(event) if whole else event
        self.ending = check.ending(source.torn)

    def check(self) -> EndCheck:
        """A new check of the end record; pass it every event, in order."""
        return EndCheck(self._first)

    def read(self, line: bytes, source: Lines) -> Event | None:
        """Event of the latest line; None if it is torn and cannot be parsed. Raises `FileError`."""
        try:
            return lines.read_event(line, self.header.json)
        except LineError as error:
            if source.complete:
                raise FileError(f"{self.path}, line {source.number}: {error}") from None
            source.torn = source.torn or f"line {source.number} breaks off"
            return None

    def in_order(self, check: EndCheck, time: float, number: int) -> None:
        """Raise `FileError` if the event of a line cannot follow the previous ones."""
        if check.end is not None:
            raise FileError(f"{self.path}, line {number}: an event after the end record")
        if time < check.time:
            raise FileError(
                f"{self.path}, line {number}: time {time:.6f} is before {check.time:.6f} of the event above it",
                "events are in order of time; `lmtool trace merge` puts several recordings in order",
            )

    def at(self, offset: int) -> Event:
        """Event whose line begins at an offset from `with_offsets` or `index`."""
        try:
            with self.open() as file:
                file.seek(offset)
                line = file.readline()
            if not line:
                raise FileError(f"{self.path} became shorter while it was read")
            return lines.read_event(line, self.header.json)
        except (OSError, EOFError, zlib.error, LineError) as error:
            raise FileError(f"{self.path}, byte {offset}: {error}") from None

    def index(self) -> array[int]:
        """Offsets of all events, 8 bytes each: `at(index[i])` is event number i."""
        return array("Q", (offset for offset, _ in self.with_offsets()))

    @property
    def packed(self) -> bool:
        """True if the file is packed with gzip. Raises `FileError`."""
        try:
            with self.path.open("rb") as file:
                return file.read(2) == b"\x1f\x8b"
        except OSError as error:
            raise FileError(f"cannot read {self.path}: {error.strerror}") from None

    def open(self) -> BinaryIO:
        """The unpacked file, from its first byte. Raises `FileError`."""
        packed = self.packed
        try:
            return cast("BinaryIO", gzip.open(self.path)) if packed else self.path.open("rb")
        except OSError as error:
            raise FileError(f"cannot read {self.path}: {error.strerror}") from None


class Lines:
    """Lines of an unpacked file, without their line feeds; a block is read at a time."""

    def __init__(
        self, path: Path, file: BinaryIO, offset: int = 0, number: int = 0, copy: BinaryIO | None = None
    ) -> None:
        """The file's position is `offset`, after line `number`. copy: gets the bytes that are read."""
        self._path = path
        self._file = file
        self._copy = copy
        self.offset = offset
        """Offset of the next line."""
        self.begin = offset
        """Offset of the latest line."""
        self.number = number
        """Number of the latest line."""
        self.complete = True
        """True if the latest line ended with a line feed, not with the file."""
        self._unpacked = offset
        self._empty = 0
        self.torn = ""
        """Reason the file ends in the middle of something; empty if it does not."""

    def __iter__(self) -> Iterator[bytes]:
        """The lines, once. Raises `FileError`."""
        parts, size = list[bytes](), 0  # of an incomplete line; joined once, when it ends
        while data := self._read():
            parts.append(data)
            size += len(data)
            if b"\n" in data:
                *whole, rest = b"".join(parts).split(b"\n")
                for line in whole:
                    yield self._next(line, len(line) + 1)
                parts, size = [rest], len(rest)
            if size > LONGEST_LINE:
                self._next(b"".join(parts), 0)
        if size:
            self.complete = False
            yield self._next(b"".join(parts), size)

    def _next(self, line: bytes, size: int) -> bytes:
        self.number += 1
        self.begin, self.offset = self.offset, self.offset + size
        if len(line) > LONGEST_LINE:
            raise FileError(f"{self._path}, line {self.number}: longer than {LONGEST_LINE} bytes")
        if size < _SHORTEST_EVENT:
            self._empty += 1
            if self._empty > MOST_EMPTY:
                raise FileError(f"{self._path}, line {self.number}: more than {MOST_EMPTY} lines without an event")
        return line

    def _read(self) -> bytes:
        try:
            data: bytes = self._file.read1(BLOCK)  # type: ignore[attr-defined] # `read` loses what precedes broken gzip data
        except EOFError:
            self.torn = "the gzip data breaks off"
            return b""
        except (OSError, zlib.error) as error:
            raise FileError(f"{self._path}, after line {self.number}: {error}") from None
        self._unpacked += len(data)
        if self._unpacked > LARGE_UNPACKED and isinstance(cast("object", self._file), gzip.GzipFile):
            packed = os.fstat(self._file.fileno()).st_size
            if self._unpacked > packed * MOST_UNPACKED:
                sentence = f"{self._path}: its {packed} bytes unpack to more than {MOST_UNPACKED} times as many"
                raise FileError(
                    sentence, "recordings do not compress that far; gunzip it if you know where it comes from"
                )
        if self._copy is not None:
            self._copy.write(data)
        return data


class EndCheck:
    """Counts and hash of the lines read, to compare with the end record."""

    def __init__(self, header_line: bytes) -> None:
        self._hash = hashlib.sha256(_unended(header_line) + b"\n")
        self._events = 0
        self._tokens = 0
        self.time = 0.0
        """Time of the last event, in seconds."""
        self.end: End | None = None

    def add(self, event: Event, line: bytes) -> None:
        """Count an event and hash its line."""
        self.time = event.time
        if isinstance(event, End):
            self.end = event
            return
        self.count(1, count_tokens(event))
        self.hash(_unended(line) + b"\n")

    def count(self, events: int, tokens: int) -> None:
        """Count `events` events with `tokens` tokens."""
        self._events += events
        self._tokens += tokens

    def hash(self, data: bytes) -> None:
        """Hash the bytes of lines, each with one line feed; of all but comments and the end record."""
        self._hash.update(data)

    def ending(self, torn: str, *, hashed: bool = True) -> Ending:
        """State of the trace's end. torn: reason its file breaks off, or empty. hashed: `hash` got every line."""
        end = self.end
        if end is None:
            return Ending("cut", torn or "there is no end record")
        if end.events != self._events:
            return Ending("altered", f"the end record counts {end.events} events, the file has {self._events}")
        if end.tokens != self._tokens:
            return Ending("altered", f"the end record counts {end.tokens} tokens, the file has {self._tokens}")
        if hashed and end.sha256 != self._hash.hexdigest():
            return Ending("altered", "the lines are not those that the end record's sha256 was made of")
        return Ending("complete", "")


class _BlobStore:
    """Values of blobs; those that are not cached are read from the file again."""

    def __init__(self, reader: TraceReader) -> None:
        self._reader = reader
        self._places: dict[str, tuple[int, int]] = {}
        """Offset and size of each blob's line."""
        self._values: OrderedDict[str, object] = OrderedDict()
        self._size = 0

    def add(self, blob: Blob, offset: int, size: int) -> None:
        self._places.setdefault(blob.sha256, (offset, size))
        self._keep(blob)

    def whole(self, event: Event) -> Event:
        return put_back(event, self._value)

    def _value(self, sha256: str) -> object:
        if sha256 not in self._values:
            if sha256 not in self._places:
                raise FileError(f"{self._reader.path} refers to the blob {sha256[:12]}, which no line above gives")
            blob = self._reader.at(self._places[sha256][0])
            assert isinstance(blob, Blob)
            self._keep(blob)
        self._values.move_to_end(sha256)
        return self._values[sha256]

    def _keep(self, blob: Blob) -> None:
        if blob.sha256 not in self._values:
            self._size += self._places[blob.sha256][1]
        self._values[blob.sha256] = blob.value
        while self._size > _BLOBS_KEPT and len(self._values) > 1:
            self._size -= self._places[self._values.popitem(last=False)[0]][1]


def is_comment(line: bytes) -> bool:
    """True for a line without an event: it begins with `#`, or is blank."""
    return line.startswith(b"#") or not line.strip()


def _unended(line: bytes) -> bytes:
    return line.rstrip(b"\r\n")


class TokenLine(msgspec.Struct, array_like=True, gc=False):
    """A line of a trace that is a TOKEN frame. Alternatives, most of the text, are skipped."""

    time: Annotated[float, Meta(ge=0, le=1e12)]
    kind: Literal["<"]
    connection: Annotated[int, Meta(ge=0, lt=2**53)]
    lead: Literal["TOKEN"]
    entries: list[TokenEntry]


_LINES = msgspec.json.Decoder(TokenLine)


def read_line(line: bytes) -> TokenLine | None:
    """TOKEN frame of a line, four times as fast as `read_event`; None for every other or unusual line."""
    if line.find(b'"TOKEN"', 0, 80) < 0:
        return None
    try:
        return _LINES.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive TOKEN frames."""

    offsets: list[int]
    """Offsets of their lines, in bytes of the unpacked file."""
    lines: list[TokenLine]


Item: TypeAlias = "Run | tuple[int, Event]"
"""TOKEN frames, or the offset of a line and its event."""


class Scan:
    """Items of a trace file in lists, one per block: the events of `TraceReader.with_offsets`, read faster.

    After the last list, the reader's `ending` has been judged by counts only; `verify` also hashes.
    """

    def __init__(self, reader: TraceReader, copy: BinaryIO | None = None) -> None:
        """Start after the header. copy: gets the bytes of the unpacked file as they are read, ahead of the items."""
        self._reader = reader
        self._copy = copy
        self._check = reader.check()
        self._lines: Lines
        self._plain = True
        """True if every line is hashed unchanged."""
        self._end_at: int | None = None
        """Offset of the end record."""

    def blocks(self) -> Iterator[list[Item]]:
        """Lists of items, each for about `BLOCK` bytes. Raises `FileError`."""
        reader = self._reader
        reader.ending = None
        with reader.open() as file:
            header = file.read(reader.start)
            if self._copy is not None:
                self._copy.write(header)
            lines = self._lines = Lines(reader.path, file, reader.start, reader.first_line, self._copy)
            items: list[Item] = []
            begin = reader.start
            try:
                for line in lines:
                    self._add(line, items)
                    if lines.offset - begin >= BLOCK:
                        yield self._counted(items)
                        items, begin = [], lines.offset
            except FileError:
                yield items  # show what precedes an unreadable line
                raise
        yield self._counted(items)
        reader.ending = self._check.ending(lines.torn, hashed=False)

    def verify(self) -> Iterator[None]:
        """Compare the lines with the end record's hash, one MiB per step; then the reader's `ending` is final.

        Call after the last block. Raises `FileError`.
        """
        if self._end_at is None:
            return
        left = self._end_at - self._reader.start
        with self._reader.open() as file:
            file.seek(self._reader.start)
            while left > 0 and (data := file.read(min(left, 2**20)) if self._plain else file.readline(left)):
                left -= len(data)
                if self._plain:
                    self._check.hash(data)
                elif not is_comment(data):
                    self._check.hash(data.rstrip(b"\r\n") + b"\n")
                yield
        self._reader.ending = self._check.ending(self._lines.torn)

    def _add(self, line: bytes, items: list[Item]) -> None:
        frame, lines, check = read_line(line), self._lines, self._check
        if frame is None:
            self._add_event(line, items)
        else:
            if frame.time < check.time or check.end is not None:
                self._reader.in_order(check, frame.time, lines.number)
            check.time = frame.time
            run = items[-1] if items else None
            if not isinstance(run, Run):
                run = Run([], [])
                items.append(run)
            run.offsets.append(lines.begin)
            run.lines.append(frame)
        if line.endswith(b"\r"):
            self._plain = False

    def _add_event(self, line: bytes, items: list[Item]) -> None:
        """Read a line that is no usual TOKEN frame."""
        if is_comment(line):
            self._plain = False
            return
        lines, check = self._lines, self._check
        event = self._reader.read(line, lines)
        if event is None:
            return
        self._reader.in_order(check, event.time, lines.number)
        check.time = event.time
        if isinstance(event, End):
            check.end, self._end_at = event, lines.begin
        items.append((lines.begin, event))

    def _counted(self, items: list[Item]) -> list[Item]:
        for item in items:
            if isinstance(item, Run):
                tokens = sum([entry.token != NO_TOKEN for frame in item.lines for entry in frame.entries])
                self._check.count(len(item.lines), tokens)
            elif not isinstance(item[1], End):
                self._check.count(1, count_tokens(item[1]))
        return items
