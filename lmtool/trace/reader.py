"""Trace files, read from the disk: one event at a time, or any event by its number."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from array import array
from collections import OrderedDict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, TypeAlias, cast

from lmtool.errors import FileError
from lmtool.trace import format as lines
from lmtool.trace.blobs import put_back
from lmtool.trace.events import Blob, End, Frame, Parsed, Request, count_tokens
from lmtool.trace.format import LineError
from lmtool.trace.header import HeaderError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lmtool.trace.events import Event
    from lmtool.trace.header import Header

LONGEST_LINE = 2**26
"""Bytes; a longer line is refused."""
_BLOBS_KEPT = 8
State: TypeAlias = Literal["complete", "cut", "altered"]


@dataclass(frozen=True, slots=True)
class Ending:
    """How a trace ends, known once its last event has been read."""

    state: State
    """`complete`: as its end record says. `cut`: no end record. `altered`: the record does not fit."""
    reason: str
    """A sentence on why it is not complete; empty where it is."""


class TraceReader:
    """Events of one trace file, plain or gzip, in constant memory.

    Iterate over it (any number of times); `header` is known at once, `ending` after the last event. A file that does
    not follow the format raises `FileError` naming the line and the reason; one that merely stops early does not.
    """

    def __init__(self, path: str | Path) -> None:
        """Read the header. Raises `FileError`."""
        self.path = Path(path)
        self.ending: Ending | None = None
        with self.open() as file:
            source = _Lines(self.path, file)
            first = source.next()
            while first is not None and is_comment(first):
                first = source.next()
            if first is None:
                raise FileError(f"{self.path} is empty", "a trace begins with a header line")
            try:
                self.header: Header = lines.read_header(first)
            except HeaderError as error:
                raise FileError(f"{self.path}, line {source.number}: {error}", _hint(error)) from None
            self.start = source.offset
            """Where the line after the header begins, in bytes of the unpacked file."""
            self.first_line = source.number
            """Number of the header's line."""
            self._first = first

    def __iter__(self) -> Iterator[Event]:
        for _, event in self.located():
            yield event

    def located(self, *, whole: bool = False) -> Iterator[tuple[int, Event]]:
        """Pairs of (offset of its line in bytes of the unpacked file, event), in order.

        whole: leave no reference to a blob in an event; `Blob` events come all the same.
        """
        self.ending = None
        blobs = _BlobStore(self)
        check = self.check()
        with self.open() as file:
            file.seek(self.start)
            source = _Lines(self.path, file, self.start, self.first_line)
            while (line := source.next()) is not None:
                if is_comment(line):
                    continue
                event = self.read(line, source.number, torn=not line.endswith(b"\n"))
                if event is None:
                    source.torn = f"line {source.number} breaks off"
                    break
                self.in_order(check, event.time, source.number)
                check.add(event, line)
                if isinstance(event, Blob):
                    blobs.seen(event, source.begin)
                yield source.begin, blobs.whole(event) if whole else event
        self.ending = check.ending(source.torn)

    def check(self) -> EndCheck:
        """What must be told of every event, in order, to know the trace's ending."""
        return EndCheck(self._first)

    def read(self, line: bytes, number: int, *, torn: bool) -> Event | None:
        """The event of a line; None where it is torn and makes no sense. torn: whether it ends with the file."""
        try:
            return lines.read_event(line, self.header.json)
        except LineError as error:
            if torn:
                return None
            raise FileError(f"{self.path}, line {number}: {error}") from None

    def in_order(self, check: EndCheck, time: float, number: int) -> None:
        """Raise `FileError` where the event of a line cannot follow what `check` was told."""
        if check.end is not None:
            raise FileError(f"{self.path}, line {number}: an event after the end record")
        if time < check.time:
            raise FileError(
                f"{self.path}, line {number}: time {time:.6f} is before {check.time:.6f} of the event above it",
                "events are in order of time; `lmtool trace merge` puts several recordings in order",
            )

    def at(self, offset: int) -> Event:
        """The event whose line begins at an offset that `located` or `index` gave."""
        with self.open() as file:
            file.seek(offset)
            source = _Lines(self.path, file, offset)
            line = source.next()
            if line is None:
                raise FileError(f"{self.path} has become shorter while it was read")
            try:
                return lines.read_event(line, self.header.json)
            except LineError as error:
                raise FileError(f"{self.path}, byte {offset}: {error}") from None

    def index(self) -> array[int]:
        """Offsets of all events, 8 bytes each: `at(index[i])` is event number i."""
        return array("Q", (offset for offset, _ in self.located()))

    @property
    def packed(self) -> bool:
        """Whether the file is packed with gzip. Raises `FileError`."""
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


class _Lines:
    """Lines of an open file, with their numbers and offsets; each ends with a line feed, the last one perhaps not."""

    def __init__(self, path: Path, file: BinaryIO, offset: int = 0, number: int = 0) -> None:
        self._path = path
        self._file = file
        self.offset = offset
        """Where the next line begins."""
        self.begin = offset
        """Where the last line began."""
        self.number = number
        self.torn = ""
        """Why the file ends in the middle of something."""

    def next(self) -> bytes | None:
        """The next line; None at the end of the file."""
        try:
            line = self._file.readline(LONGEST_LINE + 1)
        except EOFError:
            self.torn = "the gzip data breaks off"
            return None
        except (OSError, zlib.error) as error:
            raise FileError(f"{self._path}, after line {self.number}: {error}") from None
        if not line:
            return None
        self.number += 1
        self.begin, self.offset = self.offset, self.offset + len(line)
        if len(line) > LONGEST_LINE:
            raise FileError(f"{self._path}, line {self.number}: longer than {LONGEST_LINE} bytes")
        return line


class EndCheck:
    """What the end record is compared with."""

    def __init__(self, header_line: bytes) -> None:
        self._hash = hashlib.sha256(_unended(header_line) + b"\n")
        self._events = 0
        self._tokens = 0
        self.time = 0.0
        """Of the last event, in seconds."""
        self.end: End | None = None

    def add(self, event: Event, line: bytes) -> None:
        """Take an event and its line."""
        self.time = event.time
        if isinstance(event, End):
            self.end = event
            return
        self.count(1, count_tokens(event))
        self.hash(_unended(line) + b"\n")

    def count(self, events: int, tokens: int) -> None:
        """Take so many events, with so many tokens in them."""
        self._events += events
        self._tokens += tokens

    def hash(self, data: bytes) -> None:
        """Take the bytes of lines, each with one line feed; of all but comments and the end record."""
        self._hash.update(data)

    def ending(self, torn: str, *, hashed: bool = True) -> Ending:
        """How the trace ends. torn: why its file breaks off, if it does. hashed: whether `hash` was told everything."""
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
    """Values of blobs, read again from the file when they are needed and no longer at hand."""

    def __init__(self, reader: TraceReader) -> None:
        self._reader = reader
        self._offsets: dict[str, int] = {}
        self._values: OrderedDict[str, object] = OrderedDict()

    def seen(self, blob: Blob, offset: int) -> None:
        self._offsets[blob.sha256] = offset
        self._keep(blob)

    def whole(self, event: Event) -> Event:
        if isinstance(event, Frame) and isinstance(event.content, Parsed):
            return replace(event, content=put_back(event.content, self._value))
        if isinstance(event, Request) and isinstance(event.body, Parsed):
            return replace(event, body=put_back(event.body, self._value))
        return event

    def _value(self, sha256: str) -> object:
        if sha256 not in self._values:
            if sha256 not in self._offsets:
                raise FileError(f"{self._reader.path} refers to the blob {sha256[:12]}, which no line above gives")
            blob = self._reader.at(self._offsets[sha256])
            assert isinstance(blob, Blob)
            self._keep(blob)
        self._values.move_to_end(sha256)
        return self._values[sha256]

    def _keep(self, blob: Blob) -> None:
        self._values[blob.sha256] = blob.value
        if len(self._values) > _BLOBS_KEPT:
            self._values.popitem(last=False)


def is_comment(line: bytes) -> bool:
    """Whether a line says nothing: begins with `#`, or is blank."""
    return line.startswith(b"#") or not line.strip()


def _unended(line: bytes) -> bytes:
    return line.rstrip(b"\r\n")


def _hint(error: HeaderError) -> str:
    if "version" in str(error):
        return "install the lmtool that wrote it, or a later one"
    return "traces are written by `lmtool trace record`; other logs: `lmtool trace convert`"
