"""The text of one stream, or of several side by side, each token in its colour."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from lmtool.logprobs.heat import STREAM_COLORS
from lmtool.tui.documents.document import ViewDocument
from lmtool.tui.runs import Run, cut, length, split, visible, width

if TYPE_CHECKING:
    from lmtool.tui.runs import Line
    from lmtool.tui.state import State
    from lmtool.tui.streams import Stream
    from lmtool.tui.styles import Glyphs
    from lmtool.tui.view import View

NARROWEST = 26
"""Columns of a stream in the split view."""


class Part(NamedTuple):
    """A token, or a part of it, on a line."""

    position: int
    """Of the token in its stream; -1: of the prompt."""
    text: str


class Layout:
    """Lines of parts. A token that does not fit goes to the next line whole, unless it is wider than a line."""

    def __init__(self, state: State, stream: Stream, columns: int, *, blanks: bool = False) -> None:
        """Begin with the prompt. columns: at least 2."""
        self._state = state
        self._stream = stream
        self.columns = max(2, columns)
        self.blanks = blanks
        self.corrections = state.texts.corrections
        """Of the texts that are laid out; after another one they are no longer what tokens mean."""
        self.lines: list[list[Part]] = [[]]
        self.line_of: list[int] = []
        """For each token the line that it begins on."""
        self._used = 0
        prompt = state.prompt_text(stream)
        if prompt:
            self._put(-1, prompt)

    def extend(self, count: int) -> None:
        """Lay out the first `count` tokens."""
        while len(self.line_of) < count:
            position = len(self.line_of)
            text = self._state.texts.text_at(self._stream, position)
            first = visible(text.partition("\n")[0], blanks=self.blanks)
            if self._used and self._used + width(first) > self.columns and width(first) <= self.columns:
                self._break()
            self.line_of.append(len(self.lines) - 1)
            self._put(position, text)

    def _put(self, position: int, text: str) -> None:
        if not text:
            self.lines[-1].append(Part(position, ""))
        pieces = text.split("\n")
        for i, piece in enumerate(pieces):
            shown = visible(piece, blanks=self.blanks)
            if i < len(pieces) - 1 and (self.blanks or not shown):
                shown += "⏎" if self.blanks else ""
            self._piece(position, shown)
            if i < len(pieces) - 1:
                self._break()

    def _piece(self, position: int, text: str) -> None:
        while text:
            left = self.columns - self._used
            part, text = split(text, left) if width(text) > left else (text, "")
            if part:
                self.lines[-1].append(Part(position, part))
                self._used += width(part)
            if text:
                self._break()

    def _break(self) -> None:
        self.lines.append([])
        self._used = 0


class TextDocument(ViewDocument):
    """The stream under the cursor: prompt, then tokens; the cursor's token stands between signs and needs no colour."""

    def __init__(self, view: View, glyphs: Glyphs, *, cursor: bool = True) -> None:
        """cursor: whether its token is shown as such."""
        super().__init__(view, glyphs)
        self._cursor = cursor
        self._layouts: dict[int, Layout] = {}

    def height(self, columns: int) -> int:
        """Lines of text."""
        stream = self._view.current
        return 1 if stream is None else self.lines(stream, columns)

    def lines(self, stream: Stream, columns: int) -> int:
        """Lines of a stream's text up to the moment."""
        layout, count = self._layout(stream, columns)
        if count == len(layout.line_of):
            return len(layout.lines)
        return layout.line_of[count] + 1

    def _layout(self, stream: Stream, columns: int) -> tuple[Layout, int]:
        # Two columns less: the signs around the cursor's token.
        room, blanks = max(2, columns - 2), self._view.show_blanks
        layout = self._layouts.get(stream.index)
        shape = room, blanks, self._view.state.texts.corrections
        if layout is None or (layout.columns, layout.blanks, layout.corrections) != shape:
            if len(self._layouts) > 16:
                self._layouts.clear()
            layout = self._layouts[stream.index] = Layout(self._view.state, stream, room, blanks=blanks)
        count = stream.count(self._view.token_count)
        layout.extend(count)
        return layout, count

    def anchor(self, columns: int) -> int | None:
        """The line of the cursor's token, or the last one."""
        stream = self._view.current
        return None if stream is None else self.anchor_of(stream, columns)

    def anchor_of(self, stream: Stream, columns: int) -> int:
        """The same for any stream."""
        layout, _ = self._layout(stream, columns)
        row = self._view.row
        if row is None or self._view.stream != stream.index:
            return self.lines(stream, columns) - 1
        place = bisect_left(stream.rows, row)
        return layout.line_of[place] if place < len(layout.line_of) else len(layout.lines) - 1

    def line_at(self, stream: Stream, position: int, columns: int) -> int:
        """The line on which a token of any stream begins."""
        layout, _ = self._layout(stream, columns)
        return layout.line_of[position]

    def move(self, rows: int) -> None:
        """The cursor to the token this many lines down."""
        stream = self._view.current
        row = self._view.token
        if stream is None or row is None:
            return
        layout = self._layouts.get(stream.index)
        if layout is None:
            return
        place = bisect_left(stream.rows, row)
        there = layout.line_of[place] + rows
        if there >= len(layout.lines):
            self._view.end()
            return
        position = bisect_left(layout.line_of, max(0, there))
        if position < stream.count(self._view.token_count):
            self._view.choose_token(stream.rows[position])
        else:
            self._view.end()

    def line(self, y: int, columns: int) -> Line:
        """A line of text."""
        stream = self._view.current
        return [Run(" no stream yet", "dim")] if stream is None else self.line_of(stream, y, columns)

    def line_of(self, stream: Stream, y: int, columns: int) -> Line:
        """A line of any stream's text."""
        layout, count = self._layout(stream, columns)
        if y >= len(layout.lines):
            return []
        view, glyphs = self._view, self._glyphs
        here = view.token if self._cursor and view.stream == stream.index else None
        line: Line = []
        for position, text in layout.lines[y]:
            if position < 0:
                line.append(Run(text, "dim"))
            elif position < count:
                row = stream.rows[position]
                shown = f"{glyphs.open}{text}{glyphs.close}" if row == here else text
                line.append(Run(shown, f"{view.style(row)} {'here' if row == here else ''}", row))
        return line


class SplitDocument(ViewDocument):
    """Up to as many streams as there is room for, side by side, each at its own end."""

    def __init__(self, view: View, glyphs: Glyphs, rows: int = 10) -> None:
        super().__init__(view, glyphs)
        self._text = TextDocument(view, glyphs)
        self.rows = rows
        """Lines of the pane, which sets it."""

    def streams(self, columns: int) -> list[Stream]:
        """Streams that are shown: marked ones, the one under the cursor, then the latest."""
        most = max(1, columns // NARROWEST)
        listed = {stream.index: stream for stream in self._view.streams()}
        first = [*self._view.stream_marks, self._view.stream, *reversed(listed)]
        streams = [listed[i] for i in dict.fromkeys(first) if i in listed][:most]
        return sorted(streams, key=lambda stream: stream.index)

    def height(self, columns: int) -> int:
        """As many lines as the pane has."""
        del columns
        return max(2, self.rows)

    def move(self, rows: int) -> None:
        """To another stream."""
        self._view.move_stream(rows)

    def line(self, y: int, columns: int) -> Line:
        """A line of each stream."""
        shown = self.streams(columns)
        if not shown:
            return [Run(" no stream yet", "dim")] if y == 0 else []
        each = columns // len(shown)
        line: Line = []
        for stream in shown:
            part = self._heading(stream, each - 1) if y == 0 else self._part(stream, y - 1, each - 1)
            line += [*part, Run(" " * max(0, each - 1 - length(part)) + self._glyphs.bar, "dim")]
        return line

    def _heading(self, stream: Stream, columns: int) -> Line:
        count = stream.count(self._view.token_count)
        here = self._glyphs.cursor if stream.index == self._view.stream else " "
        color = f"stream{stream.index % len(STREAM_COLORS)}"
        phase = stream.phase(self._view.time, self._view.token_count)
        return [Run(cut(f"{here}{visible(stream.label)} {count} tok {phase}", columns), f"{color} title")]

    def _part(self, stream: Stream, y: int, columns: int) -> Line:
        last = self._text.anchor_of(stream, columns)
        begin = max(0, last - (self.rows - 2))
        return self._text.line_of(stream, begin + y, columns) if begin + y <= last + self.rows else []
