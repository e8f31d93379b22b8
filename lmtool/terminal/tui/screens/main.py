"""The screen of five panes, header, timeline and footer; a small terminal shows one pane at a time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import Screen

from lmtool.terminal.tui.documents import bars
from lmtool.terminal.tui.documents.frames import FramesDocument
from lmtool.terminal.tui.documents.streams import StreamsDocument, TimeDocument, spark_line
from lmtool.terminal.tui.documents.text import SplitDocument, TextDocument
from lmtool.terminal.tui.documents.tokens import DetailDocument, InterleavedDocument, TableDocument
from lmtool.terminal.tui.runs import visible
from lmtool.terminal.tui.widgets import LineBar, LinePane

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual import events
    from textual.app import ComposeResult
    from textual.widget import Widget

    from lmtool.terminal.tui.documents.bars import Status
    from lmtool.terminal.tui.options import InspectorOptions
    from lmtool.terminal.tui.runs import Line
    from lmtool.terminal.tui.styles import Glyphs, Styles
    from lmtool.terminal.tui.view import View

NARROW = 90
"""Columns below which one pane is shown at a time."""
SMALLEST = (40, 10)
"""Columns and rows below which there is a sentence only."""
PANES = ("streams", "tokens", "detail", "frames", "time")
NAMES = ("Streams", "Tokens", "Token", "Frames", "Time")
MIDDLE, STEP, FRAME = 12, 4, 4
"""Rows of text in the middle at least, and how many more it gets at once; its borders, the token's line, the legend."""
_BOTH = 12
"""Rows of the token pane from which on the text of the stream is shown below the interleaved tokens."""


class Inspector(Protocol):
    """The app as the panes see it."""

    view: View
    options: InspectorOptions
    glyphs: Glyphs
    looks: Styles

    @property
    def status_now(self) -> Status:
        """Status for the header."""

    def advice(self) -> str:
        """Instructions to start a first stream."""

    def footer(self, columns: int, pane: str) -> list[Line]:
        """The lines at the bottom."""

    def press(self, key: str, character: str | None) -> bool:
        """Run the action of a key; False if it has none."""

    def click_footer(self, target: int) -> None:
        """Run the action that was clicked."""

    def branch_here(self) -> None:
        """Go on from the alternative under the cursor."""

    def changed(self) -> None:
        """Draw everything with the next frame."""

    def explain(self, name: str) -> None:
        """Show the meaning of a word of the screen."""


class MainScreen(Screen[None], inherit_bindings=False):
    """Draws the app's view and passes keys to its actions."""

    def __init__(self, inspector: Inspector) -> None:
        """Make the panes of this app."""
        super().__init__()
        self._inspector = inspector
        self.pane = 0
        """The focused pane."""
        self.zoomed = False
        """True if one pane is zoomed."""
        self._titles: dict[str, tuple[str, str]] = {}
        view, glyphs, styles = inspector.view, inspector.glyphs, inspector.looks
        self._token_documents = {
            "split": SplitDocument(view, glyphs),
            "interleaved": InterleavedDocument(view, glyphs),
            "text": TextDocument(view, glyphs),
            "table": TableDocument(view, glyphs),
        }
        self._frames = FramesDocument(view, glyphs)
        documents = {
            "streams": StreamsDocument(view, glyphs, inspector.advice, inspector.explain),
            "tokens": self._token_documents[view.mode],
            "detail": DetailDocument(view, glyphs),
            "frames": self._frames,
            "time": TimeDocument(view, glyphs),
        }
        self.panes = {name: LinePane(document, styles, id=name) for name, document in documents.items()}
        self._boxes: dict[str, Widget] = {"middle": Horizontal(id="middle"), "bottom": Horizontal(id="bottom")}
        self._boxes["tokens-box"] = Vertical(id="tokens-box")
        # Not looked up on the screen: a frame may be drawn while it is taken apart.
        self._text = LinePane(TextDocument(view, glyphs), styles, id="text")
        self._below = LinePane(SplitDocument(view, glyphs), styles, id="below")
        self._text.can_focus = self._below.can_focus = False
        bar = partial(LineBar, styles=styles)
        self.header = bar(lambda columns: [bars.header(view, inspector.status_now, glyphs, columns)], id="header")
        self.tabs = bar(lambda columns: [bars.tabs(NAMES, self.pane, self._beyond(self.current), columns)], id="tabs")
        self._rule = bar(lambda columns: [bars.text_rule(view, glyphs, columns)], id="parting")
        self._legend = bar(
            lambda columns: [bars.legend(view, glyphs, columns, attributes=not styles.color)], id="legend"
        )
        self._token = bar(lambda columns: [bars.peek(view, glyphs, columns)], id="token")
        self._peek = bar(lambda columns: [bars.peek(view, glyphs, columns)], id="peek")
        self._spark = bar(lambda columns: [spark_line(view, glyphs, columns)], id="spark")
        self.timeline = bar(lambda columns: [bars.timeline(view, glyphs, columns)], id="timeline")
        self.footer = bar(lambda columns: inspector.footer(columns, self.pane_name), id="footer")
        self._small = bar(lambda columns: bars.too_small(*self.size, SMALLEST, columns), id="small")

    def compose(self) -> ComposeResult:
        """Header, panes, timeline, keys."""
        yield self.header
        yield self.tabs
        yield self.panes["streams"]
        with self._boxes["middle"]:
            with self._boxes["tokens-box"]:
                yield self.panes["tokens"]
                yield self._rule
                yield self._text
                yield self._token
                yield self._legend
            yield self.panes["detail"]
        with self._boxes["bottom"]:
            yield self.panes["frames"]
            yield self.panes["time"]
        yield self._below
        yield self._peek
        yield self._spark
        yield self.timeline
        yield self.footer
        yield self._small

    # Layout.

    def on_mount(self) -> None:
        """Begin with the streams."""
        self.set_class(self._inspector.options.ascii, "ascii")
        self.show_pane(0)

    def on_resize(self, _: events.Resize) -> None:
        """Another size may mean another layout."""
        self.lay_out()

    @property
    def small(self) -> bool:
        """True if the terminal is too small for a pane."""
        return self.size.width < SMALLEST[0] or self.size.height < SMALLEST[1]

    @property
    def single(self) -> bool:
        """True if one pane is shown at a time."""
        return self.zoomed or self.size.width < NARROW

    def lay_out(self) -> None:
        """Show the panes that fit."""
        self.set_class(self.small, "small")
        self.set_class(self.single, "single")
        self.set_class(self.size.height < 14, "low")
        for name in PANES:
            self.set_class(name == self.pane_name, f"on-{name}")
        holders = {"middle": (1, 2), "bottom": (3, 4), "tokens-box": (1,)}
        own = {name: (i,) for i, name in enumerate(PANES) if name != "tokens"}
        widgets: dict[str, Widget] = {**self._boxes, **self.panes}
        for name, panes in (holders | own).items():
            widgets[name].set_class(self.pane not in panes, "off")
        self._set_heights()
        self._inspector.changed()

    def _set_heights(self) -> None:
        """Set the heights: the table fits its streams within limits, the lower panes take spare rows."""
        rows, streams = self.size.height, self.panes["streams"]
        needed = streams.document.height(self.size.width) + 2
        alone = None if self.has_class("low") or self.pane else min(needed - 2, rows // 2)
        self._set_height(streams, alone if self.single else max(5, min(needed, rows * 3 // 10)))
        self._set_height(self._boxes["bottom"], None if self.single else self._lower_rows(rows))
        both = self._inspector.view.mode == "interleaved" and self._boxes["tokens-box"].size.height >= _BOTH
        self.set_class(both, "both")

    def _lower_rows(self, rows: int) -> int:
        """Rows of the lower panes: a share of the screen, plus rows that short texts leave free in the middle."""
        least = 5 if rows < 30 else 8 if rows < 44 else 10
        document = self._token_documents[self._inspector.view.mode]
        box = self._boxes["tokens-box"].size
        if not isinstance(document, SplitDocument) or not box.width:
            return least
        both = self._boxes["middle"].size.height + self._boxes["bottom"].size.height
        most = both - least - FRAME
        needed = max(MIDDLE, -(-document.text_rows(box.width, most) // STEP) * STEP)
        return max(least, both - FRAME - needed)

    @staticmethod
    def _set_height(widget: Widget, rows: int | None) -> None:
        before = widget.styles.inline.height
        if (None if before is None else before.value) != rows:
            widget.styles.height = rows

    def show_pane(self, pane: int) -> None:
        """Focus a pane."""
        self.pane = pane
        self.current.focus()
        self.lay_out()

    def show_next_pane(self, steps: int) -> None:
        """Focus the next pane, or for -1 the previous one."""
        self.show_pane((self.pane + steps) % len(PANES))

    def zoom(self) -> None:
        """Toggle between one pane and all."""
        self.zoomed = not self.zoomed
        self.lay_out()

    def on_descendant_focus(self) -> None:
        """A click moved the focus."""
        name = self.focused.id if self.focused is not None else None
        if name in PANES and name != self.pane_name:
            self.pane = PANES.index(name)
            self.lay_out()

    @property
    def pane_name(self) -> str:
        """Name of the focused pane."""
        return PANES[self.pane]

    @property
    def pane_title(self) -> str:
        """Title of that pane."""
        return NAMES[self.pane]

    @property
    def current(self) -> LinePane:
        """The focused pane."""
        return self.panes[self.pane_name]

    def move_page(self, pages: int) -> None:
        """The cursor of the current pane a page down, or for -1 up."""
        self.current.document.move(pages * max(1, self.current.rows - 1))

    def on_key(self, event: events.Key) -> None:
        """Run the action of a key."""
        if self._inspector.press(event.key, event.character):
            event.stop()
            event.prevent_default()

    # Drawing.

    def draw(self, *, figures: bool) -> None:
        """Draw the changes. figures: also counts and times, which are updated less often."""
        if self.small:
            self._small.draw()
            return
        self.panes["tokens"].document = self._token_documents[self._inspector.view.mode]
        for name in (self.pane_name,) if self.single else PANES:
            if figures or name in ("tokens", "frames"):
                self.panes[name].draw()
        for widget in (self._below,) if self.single else (self._rule, self._text, self._token):
            widget.draw()
        self._legend.draw()
        self.timeline.draw()
        if figures:
            self._set_heights()
            self._title_panes()
            for bar in (self.header, self.tabs, self._peek, self._spark, self.footer):
                bar.draw()

    def frame_text(self, frame: int) -> str:
        """The complete frame as it was sent; it may contain control characters."""
        return self._frames.whole(frame)

    def tie(self) -> None:
        """Scroll every pane to the cursor."""
        panes: Iterable[LinePane] = (*self.panes.values(), self._text, self._below)
        for pane in panes:
            pane.tie()

    def _title_panes(self) -> None:
        for name, title in self.titles().items():
            pane = self.panes[name]
            box = self._boxes["tokens-box"] if name == "tokens" else pane
            texts = title, self._beyond(pane)
            if self._titles.get(name) != texts:
                # Content, not text: brackets in a title would be read as markup.
                self._titles[name] = texts
                box.border_title, box.border_subtitle = Content(texts[0]), Content(texts[1])

    def _beyond(self, pane: LinePane) -> str:
        """Number of hidden lines above and below a pane's view."""
        glyphs = self._inspector.glyphs
        above = f"{glyphs.up}{pane.above}" if pane.above > 0 else ""
        below = f"{glyphs.down}{pane.below}" if pane.below > 0 else ""
        return " ".join(filter(None, (above, below)))

    def titles(self) -> dict[str, str]:
        """Title of each pane."""
        view, glyphs = self._inspector.view, self._inspector.glyphs
        names = {name: f"{i} {title}" for i, (name, title) in enumerate(zip(PANES, NAMES, strict=True), 1)}
        names["streams"] += f" {glyphs.between} filter: {'all' if view.filter is None else visible(view.filter.source)}"
        names["tokens"] = f"2 {view.mode.capitalize()} {glyphs.between} heat: {view.heat}"
        if view.followed_stream is not None:
            names["tokens"] += f" {glyphs.between} only {visible(view.state.streams[view.followed_stream].label)}"
        row = view.token
        if row is not None:
            names["detail"] = f"3 Token {visible(view.state.stream_of(row).label)} #{view.position(row)}"
        # A sign as well: without colours a border looks like any other.
        return {name: f"{glyphs.cursor if name == self.pane_name else ''}{title}" for name, title in names.items()}

    # The mouse.

    def on_line_pane_chosen(self, event: LinePane.Chosen) -> None:
        """Redraw after a click; a second click on a bar branches from it."""
        self.tie()
        self._inspector.changed()
        if event.pane is self.panes["detail"] and event.again:
            self._inspector.branch_here()

    def on_line_pane_resized(self) -> None:
        """The next frame draws for the new size."""
        self._inspector.changed()

    def on_line_bar_clicked(self, event: LineBar.Clicked) -> None:
        """Seek to a click on the timeline, open a clicked tab, run a clicked key."""
        if event.bar is self.timeline:
            self._inspector.view.seek(self._inspector.view.state.now * event.target / 1000)
        elif event.bar is self.tabs:
            self.show_pane(event.target)
        elif event.bar is self.footer:
            self._inspector.click_footer(event.target)
        self._inspector.changed()
