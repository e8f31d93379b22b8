"""Widgets that draw lines of runs, and redraw only changed lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from lmtool.terminal.tui.runs import visible
from lmtool.terminal.tui.styles import TO_ASCII

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from textual import events
    from textual.color import Color

    from lmtool.terminal.tui.documents.document import Document
    from lmtool.terminal.tui.runs import Line, Run
    from lmtool.terminal.tui.styles import Styles

STRIPS = 256
"""Drawn lines that a widget caches."""
WHEEL = 3
"""Rows of a turn of the mouse wheel."""


def strip_of(line: Iterable[Run], styles: Styles, columns: int, base: Style) -> Strip:
    """A line as Textual draws it, exactly this wide; no control in it reaches the terminal."""
    of = styles.of
    segments = [Segment(visible(run.text), base + of(run.style)) for run in line if run.text]
    if styles.ascii:
        segments = [Segment(text.translate(TO_ASCII), style) for text, style, _ in segments]
    return Strip(segments).adjust_cell_length(columns, base)


def target_at(line: Line, column: int) -> int | None:
    """Target of the run in a column; None if it has none."""
    used = 0
    for run in line:
        used += cell_len(run.text)
        if column < used:
            return run.target
    return None


class Canvas(Widget):
    """Lines of runs; redraws only changed lines."""

    ALLOW_SELECT = False

    def __init__(self, styles: Styles, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self._styles_by_name = styles
        self._lines: list[Line] = []
        self._version = -1
        self._base = Style.null()
        self._rows: dict[tuple[Run, ...], Strip] = {}
        """Cache of drawn lines: a scrolled line is the same in another row."""
        self._edges = Strip([]), Strip([])
        """Border of a row, left and right."""
        self._shape: object = None
        """Width, border and colours that rows and edges were drawn for."""

    def put(self, lines: list[Line]) -> None:
        """Show these lines."""
        before, self._lines = self._lines, lines
        if self._version != self._styles_by_name.version or len(before) != len(lines):
            self._version = self._styles_by_name.version
            self._rows.clear()
            self._base = self.rich_style
            self.refresh()
            return
        columns = self.size.width
        pairs = enumerate(zip(before, lines, strict=True))
        if changed := [Region(0, y, columns, 1) for y, (old, new) in pairs if old != new]:
            self.refresh(*changed)

    def render_line(self, y: int) -> Strip:
        """One row of the content."""
        return strip_of(self._line(y), self._styles_by_name, self.size.width, self._base)

    def _line(self, y: int) -> tuple[Run, ...]:
        return tuple(self._lines[y]) if y < len(self._lines) else ()

    def render_lines(self, crop: Region) -> list[Strip]:
        """Rows of the widget, border included. Textual's own way composes them anew, and takes three times as long."""
        gutter, (width, height) = self.gutter, self.outer_size
        inner = range(gutter.top, height - gutter.bottom)
        shape = width, self.styles.border, self.background_colors, self._version
        if shape != self._shape or len(self._rows) > STRIPS:
            self._shape = shape
            self._rows.clear()
            if gutter.width and inner:
                edge = super().render_lines(Region(0, gutter.top, width, 1))[0]
                self._edges = edge.crop(0, gutter.left), edge.crop(width - gutter.right, width)
        background, whole = self.background_colors[1], crop.column_span == (0, width)
        strips: list[Strip] = []
        for y in crop.line_range:
            strip = (
                self._row(y - gutter.top, background) if y in inner else super().render_lines(Region(0, y, width, 1))[0]
            )
            strips.append(strip if whole else strip.crop(*crop.column_span))
        return strips

    def _row(self, y: int, background: Color) -> Strip:
        """A row of the content between the edges, through Textual's filters."""
        line = self._line(y)
        strip = self._rows.get(line)
        if strip is None:
            columns = self.outer_size.width - self.gutter.width
            strip = strip_of(line, self._styles_by_name, columns, self._base)
            for one in self.get_line_filters():
                strip = strip.apply_filter(one, background)
            if self.gutter.width:
                strip = Strip.join([self._edges[0], strip, self._edges[1]])
            self._rows[line] = strip
        return strip

    @property
    def text(self) -> list[str]:
        """Visible lines, without colours."""
        return ["".join(run.text for run in line).rstrip() for line in self._lines]

    def target(self, event: events.MouseEvent) -> int | None:
        """Target that was clicked; None if there is none."""
        place = event.get_content_offset(self)
        if place is None or not 0 <= place.y < len(self._lines):
            return None
        return target_at(self._lines[place.y], place.x)


class LinePane(Canvas, can_focus=True):
    """Shows the part of a document that the cursor is in."""

    class Chosen(Message):
        """A target in the pane was clicked, and passed to the document."""

        def __init__(self, pane: LinePane, *, again: bool) -> None:
            super().__init__()
            self.pane = pane
            self.again = again
            """True if the previous click had the same target."""

    class Resized(Message):
        """The pane has another size."""

    def __init__(self, document: Document, styles: Styles, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(styles, id=id)
        self.document = document
        self.top = 0
        """First visible line of the document."""
        self.height = 0
        """Lines of the document when it was drawn last."""
        self._loose = False
        self._clicked: int | None = None

    @property
    def rows(self) -> int:
        """Rows of the screen that it has."""
        return self.size.height

    @property
    def above(self) -> int:
        """Lines that are out of sight above."""
        return self.top

    @property
    def below(self) -> int:
        """Lines that are out of sight below."""
        return max(0, self.height - self.top - self.rows)

    def draw(self) -> None:
        """Lay out the document again, and draw it."""
        columns, rows = self.size.width, self.size.height
        if not self.is_mounted or not columns or not rows:
            return
        document = self.document
        document.rows = max(2, rows)
        self.height = document.height(columns)
        anchor = document.anchor(columns)
        if anchor is not None and not self._loose:
            self._show(anchor, rows)
        self.top = max(0, min(self.top, self.height - rows))
        heads = document.heads
        rest = range(self.top + heads, min(self.top + rows, self.height))
        self.put([document.line(y, columns) for y in (*range(min(heads, self.height)), *rest)])

    def _show(self, place: int, rows: int) -> None:
        if place >= self.height - 1:
            self.top = self.height - rows
        elif not self.top + self.document.heads - rows <= place < self.top + 2 * rows:
            self.top = place - rows // 3  # a jump: with what came before it, and more of what comes after
        elif place < self.top + self.document.heads:
            self.top = place - self.document.heads
        elif place >= self.top + rows:
            self.top = place - rows + 1

    def scroll_rows(self, rows: int) -> None:
        """Look further down without moving the cursor."""
        self.top = max(0, min(self.height - self.rows, self.top + rows))
        self._loose = True
        self.draw()

    def tie(self) -> None:
        """Scroll to the cursor, and follow it."""
        self._loose = False

    def on_resize(self, _: events.Resize) -> None:
        """Draw again for the new size."""
        self.draw()
        self.post_message(self.Resized())

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """The wheel looks further down."""
        event.stop()
        self.scroll_rows(WHEEL)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """The wheel looks further up."""
        event.stop()
        self.scroll_rows(-WHEEL)

    def on_click(self, event: events.Click) -> None:
        """Pass a click to the document."""
        target = self.target(event)
        if target is not None:
            self.document.click(target)
            self.post_message(self.Chosen(self, again=target == self._clicked))
        self._clicked = target


class LineBar(Canvas):
    """A line or a few that are not part of any document."""

    DEFAULT_CSS = "LineBar { height: 1; }"

    class Clicked(Message):
        """The line was clicked on a run with a target."""

        def __init__(self, bar: LineBar, target: int) -> None:
            super().__init__()
            self.bar = bar
            self.target = target

    def __init__(self, make: Callable[[int], list[Line]], styles: Styles, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(styles, id=id)
        self._make = make

    def draw(self) -> None:
        """Make the lines anew."""
        if self.is_mounted and self.size.width:
            self.put(self._make(self.size.width))

    def on_resize(self, _: events.Resize) -> None:
        """Another width has other lines."""
        self.draw()

    def on_click(self, event: events.Click) -> None:
        """Report a clicked target."""
        target = self.target(event)
        if target is not None:
            self.post_message(self.Clicked(self, target))
