"""Several streams side by side, each as flowing text, in a grid that fills the pane."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lmtool.core.logprobs.heat import STREAM_COLORS
from lmtool.terminal.tui.documents.document import ViewDocument
from lmtool.terminal.tui.documents.text import TextDocument
from lmtool.terminal.tui.runs import Run, cut, length, visible

if TYPE_CHECKING:
    from lmtool.terminal.tui.runs import Line
    from lmtool.terminal.tui.streams import Stream
    from lmtool.terminal.tui.styles import Glyphs
    from lmtool.terminal.tui.view import View

NARROWEST, LOWEST = 26, 6
"""Columns and rows of a stream at least, its heading included."""
PLEASANT = 50
"""Columns in which text is read well."""


class Grid(NamedTuple):
    """How streams are placed."""

    across: int
    down: int


def grid(streams: int, columns: int, rows: int) -> Grid:
    """The grid that shows the most of the streams, then leaves the fewest cells empty, then reads best."""

    def merit(one: Grid) -> tuple[int, int, int]:
        cells = one.across * one.down
        return min(streams, cells), min(streams, cells) - cells, -abs(columns // one.across - PLEASANT)

    most = max(1, columns // NARROWEST)
    down = max(1, rows // LOWEST)
    shapes = [Grid(i, min(down, max(1, -(-streams // i)))) for i in range(1, min(most, max(1, streams)) + 1)]
    return max(shapes, key=merit)


class SplitDocument(ViewDocument):
    """As many streams as there is room for, each at its own end, or at the cursor."""

    def __init__(self, view: View, glyphs: Glyphs, rows: int = 10) -> None:
        super().__init__(view, glyphs)
        self.rows = rows
        self._text = TextDocument(view, glyphs, whole=False)
        self._shown: list[Stream] = []
        self._shape = Grid(1, 1)
        self._begins: list[int] = []
        """Of each stream the line of its text that is shown first."""
        self._heights: list[int] = []
        """Lines of the text of each."""
        self._columns = 0

    def streams(self, columns: int) -> list[Stream]:
        """Streams that are shown: marked ones, the one under the cursor, then the latest."""
        listed = {stream.index: stream for stream in self._view.streams()}
        if self._view.followed_stream is not None:
            listed = {i: stream for i, stream in listed.items() if i == self._view.followed_stream}
        shape = grid(len(listed), columns, self.rows)
        first = [*self._view.stream_marks, self._view.stream, *reversed(listed)]
        streams = [listed[i] for i in dict.fromkeys(first) if i in listed][: shape.across * shape.down]
        return sorted(streams, key=lambda stream: stream.index)

    def height(self, columns: int) -> int:
        """As many lines as the pane has; which streams they show is decided here, for `line`."""
        self._columns, self._shown = columns, self.streams(columns)
        self._shape = grid(len(self._shown), columns, self.rows)
        self._heights = [self._text.lines(stream, self._room(i)[0]) for i, stream in enumerate(self._shown)]
        self._begins = [self._begin(i, *self._room(i)) for i in range(len(self._shown))]
        return max(2, self.rows)

    def _room(self, place: int) -> tuple[int, int]:
        """Columns and rows of a stream's text, by its place in the grid; the last ones take what division leaves."""
        (across, down), rows = self._shape, max(2, self.rows)
        each, high = self._columns // across, rows // down
        columns = each - 1 if place % across < across - 1 else self._columns - each * (across - 1)
        last = place // across == down - 1
        return columns, (rows - high * (down - 1) if last else high) - 1

    def _begin(self, place: int, columns: int, rows: int) -> int:
        """The end of its text, the beginning of a recorded one, or the cursor's line with what follows."""
        stream, last = self._shown[place], self._heights[place] - 1
        if self._view.row is None or stream.index != self._view.stream:
            return 0 if self._view.begins(stream) else max(0, last - rows + 1)
        return max(0, min(last - rows + 1, self._text.anchor_of(stream, columns) - rows // 2))

    def text_rows(self, columns: int, most: int) -> int:
        """Lines that all text of the streams takes, at most this many."""
        listed = len(self._view.streams())
        if not listed:
            return 1
        shape, shown = grid(listed, columns, most), self.streams(columns)
        each, last = columns // shape.across, shape.across - 1
        rooms = [each - 1 if i % shape.across < last else columns - each * last for i in range(len(shown))]
        # The widths that are drawn: lines of another width would be laid out anew each time.
        heights = [1 + self._text.lines(stream, room) for stream, room in zip(shown, rooms, strict=True)]
        bands = [heights[i : i + shape.across] for i in range(0, len(heights), shape.across)]
        return min(most, sum(map(max, bands)))

    def move(self, rows: int) -> None:
        """The cursor to the token this many lines down in its stream; by more than there are to its first or last."""
        stream = self._view.current
        if stream is None:
            return
        if rows <= -stream.count(self._view.token_count):
            self._view.move_token(rows)
        else:
            self._text.move(rows)

    def line(self, y: int, columns: int) -> Line:
        """A line of each stream of a band of the grid."""
        if columns != self._columns:
            self.height(columns)
        if not self._shown:
            nothing = " no stream yet" if self._view.filter is None else " no stream for this filter"
            return [Run(nothing, "dim")] if y == 0 else []
        across, down = self._shape
        high = max(2, self.rows) // down
        band = min(y // high, down - 1)
        y -= band * high
        line: Line = []
        for place in range(band * across, min((band + 1) * across, len(self._shown))):
            stream, (room, rows) = self._shown[place], self._room(place)
            part = self._heading(stream, room) if y == 0 else self._part(place, y - 1, room, rows)
            wall = self._glyphs.wall if place % across < across - 1 else ""
            line += [*part, Run(" " * max(0, room - length(part))), Run(wall, "rule")]
        return line

    def _heading(self, stream: Stream, columns: int) -> Line:
        count = stream.count(self._view.token_count)
        here = self._glyphs.cursor if stream.index == self._view.stream else " "
        color = f"stream{stream.index % len(STREAM_COLORS)}"
        phase = stream.phase(self._view.time, self._view.token_count)
        name = Run(cut(f"{here}{visible(stream.label)}", columns), f"title {color}")
        unit = "piece" if count and self._view.state.is_piece(stream.rows[0]) else "token"
        word = "tool calls" if phase == "stop" and stream.finish_reason == "tool_calls" else phase
        text = cut(f" {count} {unit}{'s' * (count != 1)} {self._glyphs.between} {word} ", columns - length([name]))
        rule = self._glyphs.rule * max(0, columns - length([name]) - len(text))
        return [name, Run(text, "dim"), Run(rule, "rule")]

    def _part(self, place: int, y: int, columns: int, rows: int) -> Line:
        y += self._begins[place]
        if y >= min(self._begins[place] + rows, self._heights[place]):
            return []
        return self._text.line_of(self._shown[place], y, columns)
