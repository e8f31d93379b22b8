"""What opens over the panes: a question with one line for the answer, and a document to read or choose from."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from lmtool.terminal.tui.styles import TO_ASCII
from lmtool.terminal.tui.widgets import LinePane

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual import events
    from textual.app import ComposeResult

    from lmtool.terminal.tui.documents.document import Document
    from lmtool.terminal.tui.styles import Glyphs, Styles

LONGEST = 100_000
"""Characters of an answer."""
_QUIT = Binding("ctrl+c,ctrl+q", "app.quit", "quit", priority=True)


class AskScreen(ModalScreen["str | None"]):
    """Returns what was typed, None after esc. Up and down go through what was typed before."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "cancel"),
        _QUIT,
        Binding("up", "recall(-1)", "the one before"),
        Binding("down", "recall(1)", "the next one"),
    ]

    def __init__(
        self,
        title: str,
        hint: str,
        styles: Styles,
        *,
        value: str = "",
        check: Callable[[str], str] = lambda _: "",
        history: Sequence[str] = (),
    ) -> None:
        """hint: what can be typed. check: says what is wrong with an answer, in a sentence; empty accepts it."""
        super().__init__(classes="ascii" if styles.ascii else None)
        self._title = title
        self._hint = hint.translate(TO_ASCII) if styles.ascii else hint
        self._value = value
        self._check = check
        self._history = [*history, value]
        self._place = len(history)

    def compose(self) -> ComposeResult:
        """A line to type into, and a hint below it."""
        with Vertical(id="asking") as box:
            box.border_title = Content(self._title)
            box.border_subtitle = Content("enter takes it, esc leaves")
            yield Input(self._value, id="answer", max_length=LONGEST, select_on_focus=False)
            yield Static(self._hint, id="hint", markup=False)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Say early what is wrong."""
        self.query_one("#hint", Static).update(Content(self._check(event.value) or self._hint))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take the answer, unless something is wrong with it."""
        if not self._check(event.value):
            self.dismiss(event.value)

    def action_recall(self, steps: int) -> None:
        """Bring back what was typed before, or after."""
        self._place = min(len(self._history) - 1, max(0, self._place + steps))
        answer = self.query_one("#answer", Input)
        answer.value = self._history[self._place]
        answer.cursor_position = len(answer.value)


class ReadingScreen(ModalScreen["int | None"]):
    """Shows a document until esc or q; returns the target that enter or a click chose."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark", "dismiss", "close"),
        Binding("enter", "choose", "choose"),
        _QUIT,
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
        self.document = document
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
            self.document.move(rows)
            self.pane.tie()
        else:
            self.pane.scroll_rows(rows)
        self._draw()

    def action_page(self, pages: int) -> None:
        """A page of it."""
        self.action_move(pages * max(1, self.pane.rows - 1))

    def action_choose(self) -> None:
        """Return what the cursor is on."""
        self.dismiss(self.document.chosen if self._chooses else None)

    def on_line_pane_chosen(self, _: LinePane.Chosen) -> None:
        """A click chooses."""
        if self._chooses:
            self.action_choose()
