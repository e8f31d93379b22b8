"""A document over everything else: help, a whole frame, a comparison, the tree of branches, a list to choose from."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen

from lmtool.tui.widgets import LinePane

if TYPE_CHECKING:
    from textual import events
    from textual.app import ComposeResult

    from lmtool.tui.documents.document import Document
    from lmtool.tui.glyphs import Glyphs
    from lmtool.tui.styles import Styles


class ReadingScreen(ModalScreen["int | None"]):
    """Shows a document until esc or q; returns the target that enter or a click chose."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark", "dismiss", "close"),
        Binding("enter", "choose", "choose"),
        Binding("ctrl+c,ctrl+q", "app.quit", "quit", priority=True),
        Binding("j,down", "move(1)", "down"),
        Binding("k,up", "move(-1)", "up"),
        Binding("pagedown,space", "page(1)", "page down"),
        Binding("pageup", "page(-1)", "page up"),
        Binding("g,home", "move(-1000000)", "first"),
        Binding("G,end", "move(1000000)", "last"),
    ]

    def __init__(self, title: str, document: Document, styles: Styles, glyphs: Glyphs, *, chooses: bool) -> None:
        """chooses: whether enter returns a line's target; otherwise the document is only read."""
        super().__init__(classes="ascii" if styles.ascii else None)
        self._title = title
        self._document = document
        self._glyphs = glyphs
        self._chooses = chooses
        self.pane = LinePane(document, styles, id="reading-pane")

    def compose(self) -> ComposeResult:
        """One pane with a border."""
        with Vertical(id="reading") as box:
            box.border_title = Content(self._title)
            yield self.pane

    def on_mount(self) -> None:
        """Draw it once it has a size."""
        self.call_after_refresh(self._draw)
        self.pane.focus()

    def on_resize(self, _: events.Resize) -> None:
        """Say again how much is out of sight."""
        self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        self.pane.draw()
        below = f"{self._glyphs.down}{self.pane.below}  " if self.pane.below else ""
        keys = "enter chooses, esc closes" if self._chooses else "esc closes"
        self.query_one("#reading").border_subtitle = Content(f"{below}{keys}")

    def action_move(self, rows: int) -> None:
        """The cursor where there is one, else the page."""
        if self._chooses:
            self._document.move(rows)
            self.pane.tie()
        else:
            self.pane.scroll_rows(rows)
        self._draw()

    def action_page(self, pages: int) -> None:
        """A page of it."""
        self.action_move(pages * max(1, self.pane.rows - 1))

    def action_choose(self) -> None:
        """Return what the cursor is on."""
        chosen = getattr(self._document, "chosen", None)
        self.dismiss(chosen if self._chooses else None)

    def on_line_pane_chosen(self, _: LinePane.Chosen) -> None:
        """A click chooses."""
        if self._chooses:
            self.action_choose()
