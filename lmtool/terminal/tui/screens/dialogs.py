"""Screens over the panes: a question, a document to read, the list of actions, the sliders of what-if."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from lmtool.terminal.tui.documents.help import ActionList, matching
from lmtool.terminal.tui.styles import TO_ASCII
from lmtool.terminal.tui.widgets import LinePane

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual import events
    from textual.app import ComposeResult

    from lmtool.terminal.tui.action import Keymap
    from lmtool.terminal.tui.documents.document import Document
    from lmtool.terminal.tui.documents.help import Entry
    from lmtool.terminal.tui.documents.what_if import WhatIfDocument
    from lmtool.terminal.tui.styles import Glyphs, Styles
    from lmtool.terminal.tui.view import View

LONGEST = 100_000
"""Characters of an answer."""
Result = TypeVar("Result")
_QUIT = Binding("ctrl+c,ctrl+q", "app.quit", "quit", priority=True)


class AskScreen(ModalScreen["str | None"]):
    """Returns the typed text, None after esc. Up and down recall earlier texts."""

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
        """hint: what can be typed. check: returns the problem with an answer; an empty text accepts it."""
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
        """Show the problem with the text while it is typed."""
        self.query_one("#hint", Static).update(Content(self._check(event.value) or self._hint))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Return the answer if it is valid."""
        if not self._check(event.value):
            self.dismiss(event.value)

    def action_recall(self, steps: int) -> None:
        """Recall an earlier or later text."""
        self._place = min(len(self._history) - 1, max(0, self._place + steps))
        answer = self.query_one("#answer", Input)
        answer.value = self._history[self._place]
        answer.cursor_position = len(answer.value)


class PaneScreen(ModalScreen[Result]):
    """Base of screens that show one document in a border over the panes."""

    def __init__(self, title: str, keys: str, pane: LinePane, styles: Styles, glyphs: Glyphs) -> None:
        """keys: for the border, after the number of lines out of sight."""
        super().__init__(classes="ascii" if styles.ascii else None)
        self._title, self._keys, self._glyphs = title, keys, glyphs
        self.pane = pane

    def compose(self) -> ComposeResult:
        """One pane with a border."""
        with Vertical(id="reading") as box:
            box.border_title = Content(self._title)
            yield self.pane

    def on_mount(self) -> None:
        """Draw it once it has a size."""
        self.pane.focus()
        self.call_after_refresh(self.draw)

    def on_resize(self, _: events.Resize) -> None:
        """Break and count the lines again."""
        self.call_after_refresh(self.draw)

    def draw(self) -> None:
        """Draw the document, and the number of lines out of sight."""
        self.pane.draw()
        below = f"{self._glyphs.down}{self.pane.below}  " if self.pane.below else ""
        self.query_one("#reading").border_subtitle = Content(f"{below}{self._keys}")


class ReadingScreen(PaneScreen["int | None"]):
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
        keys = "enter chooses, esc closes" if chooses else "esc closes"
        super().__init__(title, keys, LinePane(document, styles, id="reading-pane"), styles, glyphs)
        self.document = document
        self._chooses = chooses

    def action_move(self, rows: int) -> None:
        """Move the cursor, or scroll a document without one."""
        if self._chooses:
            self.document.move(rows)
            self.pane.tie()
        else:
            self.pane.scroll_rows(rows)
        self.draw()

    def action_page(self, pages: int) -> None:
        """Move by a page."""
        self.action_move(pages * max(1, self.pane.rows - 1))

    def action_choose(self) -> None:
        """Return the target under the cursor."""
        self.dismiss(self.document.chosen if self._chooses else None)

    def on_line_pane_chosen(self, _: LinePane.Chosen) -> None:
        """A click chooses."""
        if self._chooses:
            self.action_choose()


LONGEST_QUERY = 2000
"""Characters that may be typed."""
_CLOSING = ("?", ":")
"""Typed alone they close the list that they opened."""


class FinderScreen(PaneScreen["Entry | None"]):
    """Returns the entry that enter or a click chose, None after esc."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "close"),
        _QUIT,
        Binding("down", "move(1)", "down"),
        Binding("up", "move(-1)", "up"),
        Binding("pagedown", "page(1)", "page down"),
        Binding("pageup", "page(-1)", "page up"),
    ]

    def __init__(self, entries: Sequence[Entry], keys: Keymap[Any], pane: str, styles: Styles, glyphs: Glyphs) -> None:
        """entries: all actions and words. pane: title of the pane that had the keys."""
        self._entries = entries
        self._actions = keys
        self.document = ActionList(entries, pane, glyphs.cursor)
        list_pane = LinePane(self.document, styles, id="reading-pane")
        list_pane.can_focus = False
        super().__init__("Find and run", "enter runs it, esc closes", list_pane, styles, glyphs)

    def compose(self) -> ComposeResult:
        """The line to type into, and the list below it."""
        with Vertical(id="reading") as box:
            box.border_title = Content(self._title)
            yield Input("", id="answer", placeholder="type an action, or a word such as p99", max_length=LONGEST_QUERY)
            yield self.pane

    def on_mount(self) -> None:
        """Give the line the keys."""
        self.query_one("#answer", Input).focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Narrow the list."""
        text = event.value.strip()
        if text in _CLOSING:
            self.dismiss(None)
            return
        self.document.show(matching(self._entries, self._actions, text), narrowed=bool(text))
        self.pane.tie()
        self.draw()

    def on_input_submitted(self, _: Input.Submitted) -> None:
        """Return the entry under the cursor."""
        self.dismiss(self.document.current)

    def action_move(self, rows: int) -> None:
        """The cursor down."""
        self.document.move(rows)
        self.pane.tie()
        self.draw()

    def action_page(self, pages: int) -> None:
        """A page of it, some entries having two lines."""
        self.action_move(pages * max(1, self.pane.rows // 2))

    def on_line_pane_chosen(self, _: LinePane.Chosen) -> None:
        """A click chooses."""
        self.dismiss(self.document.current)


SLICE = 0.005
"""Seconds to examine the stream between two keys."""
EVERY = 1 / 30
"""Seconds between these slices."""


class SliderPane(LinePane):
    """A pane whose sliders follow the mouse while its button is down."""

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Begin to drag."""
        self.capture_mouse()
        self._drag(event)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Drag on."""
        if event.button:
            self._drag(event)

    def on_mouse_up(self, _: events.MouseUp) -> None:
        """Let go."""
        self.release_mouse()

    def on_click(self, event: events.Click) -> None:
        """The button going down did it already."""
        event.stop()

    def _drag(self, event: events.MouseEvent) -> None:
        target = self.target(event)
        if target is not None:
            self.document.click(target)
            self.post_message(self.Chosen(self, again=False))


class WhatIfScreen(PaneScreen[None]):
    """Sliders over the current token; the view's cursor may move while it is open."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,W", "dismiss", "close"),
        _QUIT,
        Binding("j,down", "slider(1)", "next slider"),
        Binding("k,up", "slider(-1)", "slider before"),
        Binding("l,right", "step(1)", "more"),
        Binding("h,left", "step(-1)", "less"),
        Binding("L,shift+right", "step(5)", "much more"),
        Binding("H,shift+left", "step(-5)", "much less"),
        Binding("n", "token(1)", "next token"),
        Binding("N,p", "token(-1)", "token before"),
        Binding("f", "first", "first other token"),
        Binding("0", "reset", "as recorded"),
    ]

    def __init__(self, view: View, document: WhatIfDocument, styles: Styles, glyphs: Glyphs) -> None:
        """Show the token under the view's cursor."""
        pane = SliderPane(document, styles, id="reading-pane")
        keys = "arrows: sliders  n p: token  f: first other  0: as recorded  esc"
        super().__init__("What if", keys, pane, styles, glyphs)
        self._view = view
        self.document = document

    def on_mount(self) -> None:
        """Examine the stream between keys."""
        self.set_interval(EVERY, self._look_on)

    def draw(self) -> None:
        """Draw the sliders and the token's name."""
        row = self._view.token
        place = "" if row is None else f" #{self._view.position(row)} {self._view.measures.quote_token(row)}"
        box = self.query_one("#reading")
        box.border_title, box.border_subtitle = (
            Content(f"What if: {self.document.stream.label}{place}"),
            Content(self._keys),
        )
        self.pane.draw()

    def _look_on(self) -> None:
        if self.document.advance(SLICE):
            self.draw()

    def action_slider(self, steps: int) -> None:
        """Move to another slider."""
        self.document.move(steps)
        self.draw()

    def action_step(self, steps: int) -> None:
        """Move the slider."""
        self.document.step(steps)
        self.draw()

    def action_token(self, steps: int) -> None:
        """Move to another token of the stream."""
        self._view.move_token(steps)
        self.draw()

    def action_first(self) -> None:
        """Move to the first token that these parameters change."""
        place = self.document.first_other()
        if place is not None:
            self._view.choose_token(self.document.stream.rows[place])
        self.draw()

    def action_reset(self) -> None:
        """Reset to the parameters of the request."""
        self.document.reset()
        self.draw()

    def on_line_pane_chosen(self, _: LinePane.Chosen) -> None:
        """A slider was dragged."""
        self.draw()
