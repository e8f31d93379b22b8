"""Several streams of text on one column of lines: a line belongs to one stream, so characters never mix."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from lmtool.cli.talking.cells import chunks, fit, width

Piece = tuple[str, str]
"""A text, and its style as SGR parameters."""

ROOM = 12
"""Columns that must be left behind a word whose end has not come yet; else it waits, so that it is not cut."""


@dataclass(slots=True)
class _Lane:
    label: str
    labelled: bool = False
    """Whether it has or had company."""
    pieces: deque[Piece] = field(default_factory=deque)
    """What has arrived and is not yet written."""
    ended: bool = False
    tail: list[Piece] = field(default_factory=list)
    """Written on a line of its own after the end."""


@dataclass(slots=True)
class Lanes:
    """Decides what to write next. Whoever owns the current line is written as it comes; others wait for their turn.

    A line ends with a line feed of its stream, with its stream, or, where `columns` is known, when it is full. A lane's
    lines bear its label unless it has always been alone.
    """

    columns: int | None = None
    """Width to wrap at, a few more than a label takes; None never wraps."""
    always_label: bool = False
    column: int = 0
    """Columns used on the current line."""
    _lanes: dict[Hashable, _Lane] = field(default_factory=dict)
    _owner: Hashable | None = None
    _indent: int = 0
    _in_word: bool = False
    """Whether the last character written belongs to a word."""

    def open(self, lane: Hashable, label: str) -> None:
        """Begin a lane; its lines are marked with this label when it has company."""
        self._lanes[lane] = _Lane(label, self.always_label)
        if len(self._lanes) > 1:
            for other in self._lanes.values():
                other.labelled = True

    def push(self, lane: Hashable, text: str, style: str = "") -> None:
        """Add text to an open lane."""
        if text:
            self._lanes[lane].pieces.append((text, style))

    def close(self, lane: Hashable, *tail: Piece) -> None:
        """End a lane; each piece of `tail` follows on a line of its own."""
        self._lanes[lane].ended = True
        self._lanes[lane].tail = list(tail)

    def drain(self) -> list[Piece]:
        """Return what can be written now, in order."""
        out: list[Piece] = []
        while self._owner is not None or self._take_line():
            assert self._owner is not None
            lane = self._lanes[self._owner]
            if lane.pieces and not self._must_wait(lane):
                self._write(lane, out)
            elif lane.ended:
                self._finish(lane, out)
            else:
                break
        return out

    def interrupt(self) -> list[Piece]:
        """End the current line, so that something else can be shown; its owner goes on with a line of its own."""
        out: list[Piece] = []
        if self.column:
            self._end_line(out)
        return out

    def _take_line(self) -> bool:
        """Give the line to the lane that waited longest."""
        for name, lane in self._lanes.items():
            if lane.pieces or lane.ended:
                self._owner = name
                return True
        return False

    def _must_wait(self, lane: _Lane) -> bool:
        """Whether the next word may still grow beyond the line."""
        if self.columns is None or lane.ended:
            return False
        word, complete = _next_word(lane.pieces)
        used = self.column or (width(lane.label) + 2 if lane.labelled else 0)
        return not complete and 0 < word < self.columns // 2 and used + word > self.columns - ROOM

    def _write(self, lane: _Lane, out: list[Piece]) -> None:
        """Write one chunk of the owner's next piece."""
        text, style = lane.pieces.popleft()
        first, *more = chunks(text)
        rest = "".join(more)
        if first == "\n":
            self._begin_line(lane, out)
            self._end_line(out)
        else:
            whole = max(width(first), _next_word([(text, style), *lane.pieces])[0])
            rest = self._word(lane, first, whole, style, out) + rest
        if rest:
            lane.pieces.appendleft((rest, style))

    def _word(self, lane: _Lane, word: str, whole: int, style: str, out: list[Piece]) -> str:
        """Write a word or spaces, or the part of a word that is `whole` columns wide; return what did not fit."""
        self._begin_line(lane, out)
        if self.columns is None:
            return self._put(word, style, out)
        room = self.columns - self.column
        if width(word) <= room and (whole <= room or word.isspace()):
            return self._put(word, style, out)
        if word.isspace():
            self._end_line(out)  # spaces at a break are not shown
            return ""
        if self.column > self._indent and not self._in_word and whole <= self.columns - self._indent:
            self._end_line(out)
            return word
        head = fit(word, room)
        if not head:  # a wide character at the last column, or a label as wide as the screen
            head = "" if self.column > self._indent else word[0]
        self._put(head, style, out)
        self._end_line(out)
        return word[len(head) :]

    def _put(self, text: str, style: str, out: list[Piece]) -> str:
        self.column += width(text)
        self._in_word = not text[-1:].isspace()
        out.append((text, style))
        return ""

    def _begin_line(self, lane: _Lane, out: list[Piece]) -> None:
        if self.column:
            return
        self._indent = 0
        if lane.labelled:
            self._put(f"{lane.label}│ ", "2", out)
            self._indent = self.column

    def _end_line(self, out: list[Piece]) -> None:
        """End the current line; its owner goes to the end of the queue."""
        out.append(("\n", ""))
        self.column = 0
        if self._owner is not None:
            self._lanes[self._owner] = self._lanes.pop(self._owner)
            self._owner = None

    def _finish(self, lane: _Lane, out: list[Piece]) -> None:
        name = self._owner
        if self.column:
            out.append(("\n", ""))
            self.column = 0
        for line in lane.tail:
            self._begin_line(lane, out)
            out += [line, ("\n", "")]
            self.column = 0
        self._owner = None
        del self._lanes[name]


def _next_word(pieces: Iterable[Piece]) -> tuple[int, bool]:
    """Columns of the word at the beginning, over several pieces; 0 for other things. Whether its end is known."""
    columns = 0
    for text, _ in pieces:
        first = chunks(text)[0]
        if first.isspace():
            return columns, True
        columns += width(first)
        if first != text:
            return columns, True
    return columns, False
