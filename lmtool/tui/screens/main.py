"""The screen of five panes, a header, a timeline and a line of keys; one pane at a time where there is little room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import Screen

from lmtool.tui.documents import bars
from lmtool.tui.documents.detail import DetailDocument
from lmtool.tui.documents.footer import action_at
from lmtool.tui.documents.frames import FramesDocument
from lmtool.tui.documents.interleaved import InterleavedDocument
from lmtool.tui.documents.streams import StreamsDocument
from lmtool.tui.documents.table import TableDocument
from lmtool.tui.documents.text import SplitDocument, TextDocument
from lmtool.tui.documents.time import TimeDocument, spark_line
from lmtool.tui.runs import visible
from lmtool.tui.widgets import LineBar, LinePane

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from textual import events
    from textual.app import ComposeResult
    from textual.widget import Widget

    from lmtool.tui.documents.bars import Status
    from lmtool.tui.documents.document import Document
    from lmtool.tui.glyphs import Glyphs
    from lmtool.tui.options import InspectorOptions
    from lmtool.tui.runs import Line
    from lmtool.tui.styles import Styles
    from lmtool.tui.view import Mode, View

NARROW = 90
"""Columns below which one pane is shown at a time."""
SMALLEST = (40, 10)
"""Columns and rows below which there is a sentence only."""
PANES = ("streams", "tokens", "detail", "frames", "time")
NAMES = ("Streams", "Tokens", "Token", "Frames", "Time")
_BOTH = 12
"""Rows of the token pane from which on the text of the stream is shown below the interleaved tokens."""


class Owner(Protocol):
    """The app, as the panes need it."""

    view: View
    options: InspectorOptions
    glyphs: Glyphs
    looks: Styles

    @property
    def status_now(self) -> Status:
        """What the header says."""

    def advice(self) -> str:
        """What makes a first stream come."""

    def footer(self, columns: int, pane: str) -> list[Line]:
        """The lines at the bottom."""

    def press(self, key: str, character: str | None) -> bool:
        """Do what a key does; whether it does anything."""

    def do(self, action: str) -> None:
        """Do an action of the table."""

    def changed(self) -> None:
        """Draw everything with the next frame."""


class MainScreen(Screen[None], inherit_bindings=False):
    """Draws the app's view; keys go to the app's actions."""

    def __init__(self, owner: Owner) -> None:
        """Make the panes of this app."""
        super().__init__()
        self._owner = owner
        self.pane = 0
        """The pane that has the keys."""
        self.zoomed = False
        """Whether one pane is shown though there is room for all."""
        self._titles: dict[str, tuple[str, str]] = {}
        self._documents = self._make_documents()
        self._frames = FramesDocument(owner.view, owner.glyphs)
        styles = owner.looks
        self.header = LineBar(self._header_line, styles, id="header")
        self.tabs = LineBar(self._tabs, styles, id="tabs")
        self.panes: dict[str, LinePane] = {
            "streams": LinePane(StreamsDocument(owner.view, owner.glyphs, owner.advice), styles, id="streams"),
            "tokens": LinePane(self._documents[owner.view.mode], styles, id="tokens"),
            "detail": LinePane(DetailDocument(owner.view, owner.glyphs), styles, id="detail"),
            "frames": LinePane(self._frames, styles, id="frames"),
            "time": LinePane(TimeDocument(owner.view, owner.glyphs), styles, id="time"),
        }
        self._text = LinePane(TextDocument(owner.view, owner.glyphs), styles, id="text")
        self._text.can_focus = False
        self._parting = LineBar(self._parting_line, styles, id="parting")
        self._legend = LineBar(self._legend_line, styles, id="legend")
        self._below_parting = LineBar(self._parting_line, styles, id="below-parting")
        self._below = LinePane(TextDocument(owner.view, owner.glyphs), styles, id="below")
        self._below.can_focus = False
        self._peek = LineBar(self._peek_line, styles, id="peek")
        self._spark = LineBar(self._spark_line, styles, id="spark")
        self.timeline = LineBar(self._timeline_line, styles, id="timeline")
        self.footer = LineBar(lambda columns: owner.footer(columns, PANES[self.pane]), styles, id="footer")
        self._small = LineBar(self._small_lines, styles, id="small")

    def _make_documents(self) -> Mapping[Mode, Document]:
        view, glyphs = self._owner.view, self._owner.glyphs
        return {
            "interleaved": InterleavedDocument(view, glyphs),
            "split": SplitDocument(view, glyphs),
            "text": TextDocument(view, glyphs),
            "table": TableDocument(view, glyphs),
        }

    def compose(self) -> ComposeResult:
        """Header, panes, timeline, keys."""
        yield self.header
        yield self.tabs
        yield self.panes["streams"]
        with Horizontal(id="middle"):
            with Vertical(id="tokens-box"):
                yield self.panes["tokens"]
                yield self._parting
                yield self._text
                yield self._legend
            yield self.panes["detail"]
        with Horizontal(id="bottom"):
            yield self.panes["frames"]
            yield self.panes["time"]
        yield self._below_parting
        yield self._below
        yield self._peek
        yield self._spark
        yield self.timeline
        yield self.footer
        yield self._small

    # Layout.

    def on_mount(self) -> None:
        """Begin with the streams."""
        self.set_class(self._owner.options.ascii, "ascii")
        self.show_pane(0)

    def on_resize(self, _: events.Resize) -> None:
        """Another size may mean another layout."""
        self.lay_out()

    @property
    def small(self) -> bool:
        """Whether there is no room for anything but a sentence."""
        return self.size.width < SMALLEST[0] or self.size.height < SMALLEST[1]

    @property
    def single(self) -> bool:
        """Whether one pane is shown at a time."""
        return self.zoomed or self.size.width < NARROW

    def lay_out(self) -> None:
        """Show the panes that there is room for."""
        single = self.single
        self.set_class(self.small, "small")
        self.set_class(single, "single")
        self.set_class(self.size.height < 14, "low")
        for name in PANES:
            self.set_class(name == PANES[self.pane], f"on-{name}")
        holders = {"middle": (1, 2), "bottom": (3, 4), "tokens-box": (1,)}
        for name, panes in (holders | {name: (i,) for i, name in enumerate(PANES) if name != "tokens"}).items():
            self.query_one(f"#{name}").set_class(self.pane not in panes, "off")
        self._heights()
        self._owner.changed()

    def _heights(self) -> None:
        """The table is as high as its streams, within limits; the lower panes take what a tall terminal has to give."""
        rows = self.size.height
        streams, bottom = self.panes["streams"], self.query_one("#bottom")
        wanted = self.panes["streams"].document.height(self.size.width) + 2
        alone = None if self.has_class("low") or self.pane else min(wanted - 2, rows // 2)
        self._height(streams, alone if self.single else max(5, min(wanted, rows * 3 // 10)))
        self._height(bottom, None if self.single else 5 if rows < 30 else 8 if rows < 44 else 10)
        both = self._owner.view.mode == "interleaved" and self.query_one("#tokens-box").size.height >= _BOTH
        self.set_class(both, "both")

    @staticmethod
    def _height(widget: Widget, rows: int | None) -> None:
        before = widget.styles.inline.height
        if (None if before is None else before.value) != rows:
            widget.styles.height = rows

    def show_pane(self, pane: int) -> None:
        """Give a pane the keys."""
        self.pane = pane
        self.panes[PANES[pane]].focus()
        self.lay_out()

    def on_descendant_focus(self) -> None:
        """A click moved the focus."""
        name = self.focused.id if self.focused is not None else None
        if name in PANES and PANES.index(name) != self.pane:
            self.pane = PANES.index(name)
            self.lay_out()

    @property
    def current(self) -> LinePane:
        """The pane that has the keys."""
        return self.panes[PANES[self.pane]]

    def on_key(self, event: events.Key) -> None:
        """Keys do what the table of keys says."""
        if self._owner.press(event.key, event.character):
            event.stop()
            event.prevent_default()

    # Drawing.

    def draw(self, *, figures: bool) -> None:
        """Draw what has changed. figures: also what is read, not watched: counts and times."""
        if self.small:
            self._small.draw()
            return
        document = self._documents[self._owner.view.mode]
        tokens = self.panes["tokens"]
        tokens.document = document
        if isinstance(document, SplitDocument):
            document.rows = max(2, tokens.rows)
        for name in self._seen():
            if figures or name in ("tokens", "frames"):
                self.panes[name].draw()
        for widget in (self._below_parting, self._below) if self.single else (self._parting, self._text):
            widget.draw()
        self._legend.draw()
        self.timeline.draw()
        if figures:
            self._heights()
            self._title_panes()
            for bar in (self.header, self.tabs, self._peek, self._spark, self.footer):
                bar.draw()

    def frame_text(self, frame: int) -> str:
        """All of a frame, as it was sent; not harmless for a terminal."""
        return self._frames.whole(frame)

    def tie(self) -> None:
        """The cursor moved: every pane shows it."""
        for pane in (*self.panes.values(), self._text, self._below):
            pane.tie()

    def _seen(self) -> Iterator[str]:
        yield from (PANES[self.pane],) if self.single else PANES

    def _title_panes(self) -> None:
        for name, title in self.titles().items():
            pane = self.panes[name]
            box = self.query_one("#tokens-box") if name == "tokens" else pane
            told = title, self._beyond(pane)
            if self._titles.get(name) != told:
                # Content, not text: brackets in a title would be read as markup.
                self._titles[name] = told
                box.border_title, box.border_subtitle = Content(told[0]), Content(told[1])

    def _beyond(self, pane: LinePane) -> str:
        """What is out of sight in a pane."""
        glyphs = self._owner.glyphs
        above = f"{glyphs.up}{pane.above}" if pane.above > 0 else ""
        below = f"{glyphs.down}{pane.below}" if pane.below > 0 else ""
        return " ".join(filter(None, (above, below)))

    def titles(self) -> dict[str, str]:
        """What stands over each pane."""
        view, owner = self._owner.view, self._owner
        names = {name: f"{i} {title}" for i, (name, title) in enumerate(zip(PANES, NAMES, strict=True), 1)}
        dot = owner.glyphs.between
        names["streams"] += f" {dot} filter: {'all' if view.filter is None else visible(view.filter.source)}"
        names["tokens"] = f"2 {view.mode.capitalize()} {dot} heat: {view.heat}"
        if view.followed is not None:
            names["tokens"] += f" {dot} only {visible(view.state.streams[view.followed].label)}"
        row = view.token
        if row is not None:
            stream = view.state.streams[view.state.tokens.streams[row]]
            names["detail"] = f"3 Token {visible(stream.label)} #{view.position(row)}"
        lead = owner.glyphs.cursor  # told by a sign too: without colours a border looks like any other
        return {name: f"{lead if name == PANES[self.pane] else ''}{title}" for name, title in names.items()}

    # Lines.

    def _tabs(self, columns: int) -> list[Line]:
        return [bars.tabs(NAMES, self.pane, self._beyond(self.current), columns)]

    def _header_line(self, columns: int) -> list[Line]:
        return [bars.header(self._owner.view, self._owner.status_now, self._owner.glyphs, columns)]

    def _timeline_line(self, columns: int) -> list[Line]:
        return [bars.timeline(self._owner.view, self._owner.glyphs, columns)]

    def _peek_line(self, columns: int) -> list[Line]:
        return [bars.peek(self._owner.view, self._owner.glyphs, columns)]

    def _spark_line(self, columns: int) -> list[Line]:
        return [spark_line(self._owner.view, self._owner.glyphs, columns)]

    def _parting_line(self, columns: int) -> list[Line]:
        return [bars.parting(self._owner.view, self._owner.glyphs, columns)]

    def _legend_line(self, columns: int) -> list[Line]:
        return [bars.legend(self._owner.view, self._owner.glyphs, columns, attributes=not self._owner.looks.color)]

    def _small_lines(self, columns: int) -> list[Line]:
        return bars.too_small(self.size.width, self.size.height, SMALLEST, columns)

    # The mouse.

    def on_line_pane_chosen(self, event: LinePane.Chosen) -> None:
        """Something was clicked: a second click on a bar branches from it."""
        self.tie()
        self._owner.changed()
        if event.pane is self.panes["detail"] and event.again:
            self._owner.do("branch")

    def on_line_bar_clicked(self, event: LineBar.Clicked) -> None:
        """A click on the timeline goes there, one on a tab opens it, one on a key does what it says."""
        if event.bar is self.timeline:
            self._owner.view.seek(self._owner.view.state.now * event.target / 1000)
        elif event.bar is self.tabs:
            self.show_pane(event.target)
        elif event.bar is self.footer:
            self._owner.do(action_at(event.target))
        self._owner.changed()
