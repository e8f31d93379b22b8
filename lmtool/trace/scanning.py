"""A trace file read on in blocks: its TOKEN frames as they stand in their lines, everything else as events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from lmtool.core.errors import FileError
from lmtool.protocol.lmtp.frames import NO_TOKEN, TokenEntry
from lmtool.trace import reader as reading
from lmtool.trace.events import End, count_tokens
from lmtool.trace.reader import Lines, is_comment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from lmtool.trace.events import Event
    from lmtool.trace.reader import TraceReader


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
    """Gives the items of a trace file in lists, one for each block: what `TraceReader.with_offsets` gives, faster.

    When there is no further list, the reader's `ending` is what the end record's counts say; `verify` hashes.
    """

    def __init__(self, reader: TraceReader, copy: BinaryIO | None = None) -> None:
        """Begin behind the header. copy: gets the bytes of the unpacked file, ahead of what is given."""
        self._reader = reader
        self._copy = copy
        self._check = reader.check()
        self._lines: Lines
        self._plain = True
        """Whether every line is hashed as it stands."""
        self._end_at: int | None = None
        """Offset of the end record."""

    def blocks(self) -> Iterator[list[Item]]:
        """The lists, each for about `BLOCK` bytes. Raises `FileError`."""
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
                    if lines.offset - begin >= reading.BLOCK:
                        yield self._counted(items)
                        items, begin = [], lines.offset
            except FileError:
                yield items  # what stands before a line that cannot be read is shown
                raise
        yield self._counted(items)
        reader.ending = self._check.ending(lines.torn, hashed=False)

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
