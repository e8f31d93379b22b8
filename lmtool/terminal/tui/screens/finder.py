"""What opens for `?` and `:`: a line to type into, and the actions and words that it finds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input

from lmtool.terminal.tui.documents.action_list import ActionList, matching
from lmtool.terminal.tui.widgets import LinePane

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual import events
    from textual.app import ComposeResult

    from lmtool.terminal.tui.action import Keymap
    from lmtool.terminal.tui.documents.action_list import Entry
    from lmtool.terminal.tui.styles import Glyphs, Styles

LONGEST = 2000
"""Characters that may be typed."""
_CLOSING = ("?", ":")
"""Typed alone they close the list that they opened."""


class FinderScreen(ModalScreen["Entry | None"]):
    """Returns the entry that enter or a click chose, None after esc."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "close"),
        Binding("ctrl+c,ctrl+q", "app.quit", "quit", priority=True),
        Binding("down", "move(1)", "down"),
        Binding("up", "move(-1)", "up"),
        Binding("pagedown", "page(1)", "page down"),
        Binding("pageup", "page(-1)", "page up"),
    ]

    def __init__(self, entries: Sequence[Entry], keys: Keymap[Any], pane: str, styles: Styles, glyphs: Glyphs) -> None:
        """entries: all there are. pane: what the pane is called that had the keys."""
        super().__init__(classes="ascii" if styles.ascii else None)
        self._entries = entries
        self._keys = keys
        self._glyphs = glyphs
        self.document = ActionList(entries, pane, glyphs.cursor)
        self.pane = LinePane(self.document, styles, id="reading-pane")
        self.pane.can_focus = False

    def compose(self) -> ComposeResult:
        """The line, and the list below it."""
        with Vertical(id="reading") as box:
            box.border_title = Content("Find and run")
            yield Input("", id="answer", placeholder="type an action, or a word such as p99", max_length=LONGEST)
            yield self.pane

    def on_mount(self) -> None:
        """Draw it once it has a size."""
        self.query_one("#answer", Input).focus()
        self.call_after_refresh(self._draw)

    def on_resize(self, _: events.Resize) -> None:
        """Say again how much is out of sight."""
        self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        self.pane.draw()
        below = f"{self._glyphs.down}{self.pane.below}  " if self.pane.below else ""
        self.query_one("#reading").border_subtitle = Content(f"{below}enter runs it, esc closes")

    def on_input_changed(self, event: Input.Changed) -> None:
        """Narrow the list."""
        text = event.value.strip()
        if text in _CLOSING:
            self.dismiss(None)
            return
        self.document.show(matching(self._entries, self._keys, text), narrowed=bool(text))
        self.pane.tie()
        self._draw()

    def on_input_submitted(self, _: Input.Submitted) -> None:
        """Return what the cursor is on."""
        self.dismiss(self.document.current)

    def action_move(self, rows: int) -> None:
        """The cursor down."""
        self.document.move(rows)
        self.pane.tie()
        self._draw()

    def action_page(self, pages: int) -> None:
        """A page of it, some entries having two lines."""
        self.action_move(pages * max(1, self.pane.rows // 2))

    def on_line_pane_chosen(self, _: LinePane.Chosen) -> None:
        """A click chooses."""
        self.dismiss(self.document.current)
