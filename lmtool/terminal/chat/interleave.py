"""Interleaves streams of text line by line: a line belongs to one stream, so that characters never mix."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

Piece = tuple[str, str]
"""A text, and its style as SGR parameters."""

UNFINISHED_WORD_COLUMNS = 12
"""A word whose end has not arrived is only written where this much of the line is left behind it."""
_CHUNK = re.compile(r"\n|[^\S\n]+|[^\s]+")
"""A line feed, other white space, or a word."""


@dataclass(slots=True)
class _Stream:
    label: str
    labelled: bool = False
    """True if another stream runs or ran beside it."""
    pieces: deque[Piece] = field(default_factory=deque)
    """Text that is not yet written."""
    ended: bool = False
    footer: list[Piece] = field(default_factory=list)
    """Lines behind the text, such as how the stream ended."""


@dataclass(slots=True)
class Interleaver:
    """Decides what to write next: the stream that owns the current line is written as it arrives, others queue.

    A line ends with a line feed of its stream, with its stream, or, where `columns` is known, when it is full. Lines
    are labelled once two streams run at the same time.
    """

    columns: int | None = None
    """Width to wrap at, a few more than a label takes; None never wraps."""
    always_label: bool = False
    column: int = 0
    """Columns used on the current line."""
    _streams: dict[Hashable, _Stream] = field(default_factory=dict)
    _owner: Hashable | None = None
    _indent: int = 0
    _in_word: bool = False
    """True if the last character written belongs to a word."""

    def open(self, name: Hashable, label: str) -> None:
        """Begin a stream."""
        self._streams[name] = _Stream(label, self.always_label)
        if len(self._streams) > 1:
            for other in self._streams.values():
                other.labelled = True

    def push(self, name: Hashable, text: str, style: str = "") -> None:
        """Add text to an open stream."""
        if text:
            self._streams[name].pieces.append((text, style))

    def close(self, name: Hashable, *footer: Piece) -> None:
        """End a stream; each piece of `footer` follows on a line of its own."""
        self._streams[name].ended = True
        self._streams[name].footer = list(footer)

    def drain(self) -> list[Piece]:
        """The pieces that can be written now, in order."""
        out: list[Piece] = []
        while self._owner is not None or self._take_line():
            assert self._owner is not None
            stream = self._streams[self._owner]
            if stream.pieces and not self._must_wait(stream):
                self._write(stream, out)
            elif stream.ended:
                self._finish(stream, out)
            else:
                break
        return out

    def interrupt(self) -> list[Piece]:
        """End the current line, so that something else can be shown; its stream continues on a new line."""
        out: list[Piece] = []
        if self.column:
            self._end_line(out)
        return out

    def _take_line(self) -> bool:
        """Give the line to the stream that waited longest."""
        self._owner = next((name for name, one in self._streams.items() if one.pieces or one.ended), None)
        return self._owner is not None

    def _must_wait(self, stream: _Stream) -> bool:
        """True if the next word may still grow beyond the line."""
        if self.columns is None or stream.ended:
            return False
        word, complete = _next_word(stream.pieces)
        used = self.column or (cell_width(stream.label) + 2 if stream.labelled else 0)
        return not complete and 0 < word < self.columns // 2 and used + word > self.columns - UNFINISHED_WORD_COLUMNS

    def _write(self, stream: _Stream, out: list[Piece]) -> None:
        """Write one chunk of the stream's next piece."""
        text, style = stream.pieces.popleft()
        first, *more = _CHUNK.findall(text)
        rest = "".join(more)
        if first == "\n":
            self._begin_line(stream, out)
            self._end_line(out)
        else:
            whole = max(cell_width(first), _next_word([(text, style), *stream.pieces])[0])
            rest = self._word(stream, first, whole, style, out) + rest
        if rest:
            stream.pieces.appendleft((rest, style))

    def _word(self, stream: _Stream, word: str, whole: int, style: str, out: list[Piece]) -> str:
        """Write a word or spaces, or the part of a word that is `whole` columns wide; return what did not fit."""
        self._begin_line(stream, out)
        if self.columns is None:
            return self._put(word, style, out)
        room = self.columns - self.column
        if cell_width(word) <= room and (whole <= room or word.isspace()):
            return self._put(word, style, out)
        if word.isspace():
            self._end_line(out)  # spaces at a break are not shown
            return ""
        if self.column > self._indent and not self._in_word and whole <= self.columns - self._indent:
            self._end_line(out)
            return word
        head = _head(word, room)
        if not head:  # a wide character at the last column, or a label as wide as the screen
            head = "" if self.column > self._indent else word[0]
        self._put(head, style, out)
        self._end_line(out)
        return word[len(head) :]

    def _put(self, text: str, style: str, out: list[Piece]) -> str:
        self.column += cell_width(text)
        self._in_word = not text[-1:].isspace()
        out.append((text, style))
        return ""

    def _begin_line(self, stream: _Stream, out: list[Piece]) -> None:
        if self.column:
            return
        self._indent = 0
        if stream.labelled:
            self._put(f"{stream.label}│ ", "2", out)
            self._indent = self.column

    def _end_line(self, out: list[Piece]) -> None:
        """End the current line; its stream goes to the end of the queue."""
        out.append(("\n", ""))
        self.column = 0
        if self._owner is not None:
            self._streams[self._owner] = self._streams.pop(self._owner)
            self._owner = None

    def _finish(self, stream: _Stream, out: list[Piece]) -> None:
        name = self._owner
        if self.column:
            out.append(("\n", ""))
            self.column = 0
        for line in stream.footer:
            self._begin_line(stream, out)
            out += [line, ("\n", "")]
            self.column = 0
        self._owner = None
        del self._streams[name]


def cell_width(text: str) -> int:
    """Columns of a text without line feeds: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # loaded only where it is needed: most answers are ASCII

    return cell_len(text)


def _head(text: str, columns: int) -> str:
    """The longest beginning of a text in at most so many columns; a wide character is never cut in half."""
    from rich.cells import chop_cells

    return chop_cells(text, columns)[0] if columns > 0 else ""


def _next_word(pieces: Iterable[Piece]) -> tuple[int, bool]:
    """Columns of the word at the beginning, over several pieces; 0 for other text. And whether its end has arrived."""
    columns = 0
    for text, _ in pieces:
        first = _CHUNK.match(text)[0]  # type: ignore[index] # it matches every character
        if first.isspace():
            return columns, True
        columns += cell_width(first)
        if first != text:
            return columns, True
    return columns, False
