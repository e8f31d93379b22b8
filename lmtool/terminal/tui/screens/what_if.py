"""What opens for `W`: sliders of sampling parameters over what was recorded of the token under the cursor."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen

from lmtool.terminal.tui.widgets import LinePane

if TYPE_CHECKING:
    from textual import events
    from textual.app import ComposeResult

    from lmtool.terminal.tui.documents.what_if import WhatIfDocument
    from lmtool.terminal.tui.styles import Styles
    from lmtool.terminal.tui.view import View

SLICE = 0.005
"""Seconds of looking through the stream between two keys."""
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


class WhatIfScreen(ModalScreen[None]):
    """Closes with esc; what is under the cursor of the view may move meanwhile."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,W", "dismiss", "close"),
        Binding("ctrl+c,ctrl+q", "app.quit", "quit", priority=True),
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

    def __init__(self, view: View, document: WhatIfDocument, styles: Styles) -> None:
        """Look at the token under the view's cursor."""
        super().__init__(classes="ascii" if styles.ascii else None)
        self._view = view
        self.document = document
        self.pane = SliderPane(document, styles, id="reading-pane")

    def compose(self) -> ComposeResult:
        """One pane with a border."""
        with Vertical(id="reading") as box:
            box.border_subtitle = Content("arrows: sliders  n p: token  f: first other  0: as recorded  esc")
            yield self.pane

    def on_mount(self) -> None:
        """Draw it once it has a size, and look through the stream meanwhile."""
        self.pane.focus()
        self.call_after_refresh(self.draw)
        self.set_interval(EVERY, self._look_on)

    def on_resize(self, _: events.Resize) -> None:
        """Another width breaks lines elsewhere."""
        self.call_after_refresh(self.draw)

    def draw(self) -> None:
        """Look at everything again."""
        row = self._view.token
        place = "" if row is None else f" #{self._view.position(row)} {self._view.measures.quote_token(row)}"
        self.query_one("#reading").border_title = Content(f"What if: {self.document.stream.label}{place}")
        self.pane.draw()

    def _look_on(self) -> None:
        if self.document.advance(SLICE):
            self.draw()

    def action_slider(self, steps: int) -> None:
        """To another slider."""
        self.document.move(steps)
        self.draw()

    def action_step(self, steps: int) -> None:
        """Move the slider."""
        self.document.step(steps)
        self.draw()

    def action_token(self, steps: int) -> None:
        """To another token of the stream."""
        self._view.move_token(steps)
        self.draw()

    def action_first(self) -> None:
        """To the first token that these parameters change."""
        place = self.document.first_other()
        if place is not None:
            self._view.choose_token(self.document.stream.rows[place])
        self.draw()

    def action_reset(self) -> None:
        """The parameters of the request again."""
        self.document.reset()
        self.draw()

    def on_line_pane_chosen(self, _: LinePane.Chosen) -> None:
        """A slider was dragged."""
        self.draw()
