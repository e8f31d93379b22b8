"""A trace file read on in blocks: its TOKEN frames as they stand in their lines, everything else as events."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from lmtool.errors import FileError
from lmtool.lmtp.frames import NO_TOKEN, TokenEntry
from lmtool.trace.events import End, count_tokens
from lmtool.trace.reader import LONGEST_LINE, is_comment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from lmtool.trace.events import Event
    from lmtool.trace.reader import TraceReader

BLOCK = 2**16
"""Bytes that are read at a time: what is made of them stays in the processor's cache."""


class TokenLine(msgspec.Struct, array_like=True, gc=False):
    """A line of a trace that is a TOKEN frame. Alternatives are passed over: they are most of the text."""

    time: Annotated[float, Meta(ge=0, le=1e12)]
    kind: Literal["<"]
    connection: Annotated[int, Meta(ge=0, lt=2**53)]
    lead: Literal["TOKEN"]
    entries: list[TokenEntry]


_LINES = msgspec.json.Decoder(TokenLine)


def read_line(line: bytes) -> TokenLine | None:
    """The TOKEN frame of a line, four times as fast as `read_event`; None for every other line, and for odd ones."""
    if line.find(b'"TOKEN"', 0, 80) < 0:
        return None
    try:
        return _LINES.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class Run:
    """TOKEN frames that follow each other."""

    offsets: list[int]
    """Of their lines, in bytes of the unpacked file."""
    lines: list[TokenLine]


Item: TypeAlias = "Run | tuple[int, Event]"
"""TOKEN frames, or the offset of a line and the event that stands there."""


class Scan:
    """Gives the items of a trace file in lists, one for each block: what `TraceReader.located` gives, faster.

    When there is no further list, the reader's `ending` is what the end record's counts say; `verify` hashes.
    """

    def __init__(self, reader: TraceReader, copy: BinaryIO | None = None) -> None:
        """Begin behind the header. copy: gets the bytes of the unpacked file, ahead of what is given."""
        self._reader = reader
        self._copy = copy
        self._check = reader.check()
        self._number = reader.first_line
        self._torn = ""
        self._plain = True
        """Whether every line is hashed as it stands."""
        self._end_at: int | None = None
        """Offset of the end record."""
        self.offset = reader.start
        """Bytes of the unpacked file that were read."""

    def blocks(self) -> Iterator[list[Item]]:
        """The lists, each for about `BLOCK` bytes. Raises `FileError`."""
        reader = self._reader
        reader.ending = None
        rest = b""
        with reader.open() as file:
            header = file.read(reader.start)
            if self._copy is not None:
                self._copy.write(header)
            while data := self._next(file):
                whole, feed, rest = (rest + data).rpartition(b"\n")
                if feed:
                    yield self._items(whole, torn=False)
                if len(rest) > LONGEST_LINE:
                    raise FileError(f"{reader.path}, line {self._number + 1}: longer than {LONGEST_LINE} bytes")
        if rest:
            yield self._items(rest, torn=True)
        reader.ending = self._check.ending(self._torn, hashed=False)

    def verify(self) -> Iterator[None]:
        """Compare the lines with the end record's hash, a MiB at each step; the reader's `ending` is known afterwards.

        Call it after the last block. Raises `FileError`.
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
        self._reader.ending = self._check.ending(self._torn)

    def _next(self, file: BinaryIO) -> bytes:
        try:
            data: bytes = file.read1(BLOCK)  # type: ignore[attr-defined] # `read` loses what precedes broken gzip data
        except EOFError:
            self._torn = "the gzip data breaks off"
            return b""
        except (OSError, zlib.error) as error:
            raise FileError(f"{self._reader.path}, after line {self._number}: {error}") from None
        if self._copy is not None:
            self._copy.write(data)
        return data

    def _items(self, whole: bytes, *, torn: bool) -> list[Item]:
        """whole: lines without the last one's line feed. torn: whether the file ends here, and not with a line feed."""
        items: list[Item] = []
        run: Run | None = None
        check, offset = self._check, self.offset
        lines = whole.split(b"\n")
        for line in lines:
            self._number += 1
            frame = read_line(line)
            if frame is None:
                run = None
                if not is_comment(line) and not self._other(line, offset, items, torn=torn):
                    return items
            else:
                if frame.time < check.time or check.end is not None:
                    self._reader.in_order(check, frame.time, self._number)
                check.time = frame.time
                if run is None:
                    run = Run([], [])
                    items.append(run)
                run.offsets.append(offset)
                run.lines.append(frame)
            offset += len(line) + 1
        self.offset = offset
        self._count(items)
        seen = sum(len(item.lines) if isinstance(item, Run) else 1 for item in items)
        self._plain = self._plain and seen == len(lines) and b"\r" not in whole
        return items

    def _other(self, line: bytes, offset: int, items: list[Item], *, torn: bool) -> bool:
        """Read a line that is no usual TOKEN frame; whether it makes sense."""
        check = self._check
        event = self._reader.read(line, self._number, torn=torn)
        if event is None:
            self._torn = self._torn or f"line {self._number} breaks off"
            return False
        self._reader.in_order(check, event.time, self._number)
        check.time = event.time
        if isinstance(event, End):
            check.end, self._end_at = event, offset
        items.append((offset, event))
        return True

    def _count(self, items: list[Item]) -> None:
        for item in items:
            if isinstance(item, Run):
                tokens = sum([entry.token != NO_TOKEN for frame in item.lines for entry in frame.entries])
                self._check.count(len(item.lines), tokens)
            elif not isinstance(item[1], End):
                self._check.count(1, count_tokens(item[1]))
