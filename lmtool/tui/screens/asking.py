"""A question with one line for the answer, at the bottom of the screen."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from lmtool.tui.glyphs import TO_ASCII

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual.app import ComposeResult

    from lmtool.tui.styles import Styles

LONGEST = 100_000
"""Characters of an answer."""


class AskScreen(ModalScreen["str | None"]):
    """Returns what was typed, None after esc. Up and down go through what was typed before."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "cancel"),
        Binding("ctrl+c,ctrl+q", "app.quit", "quit", priority=True),
        Binding("up", "older", "the one before"),
        Binding("down", "newer", "the next one"),
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
        """hint: what can be typed. check: says what is wrong with an answer, in a sentence; empty takes it."""
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

    def action_older(self) -> None:
        """What was typed before."""
        self._go(-1)

    def action_newer(self) -> None:
        """What was typed after."""
        self._go(1)

    def _go(self, steps: int) -> None:
        self._place = min(len(self._history) - 1, max(0, self._place + steps))
        answer = self.query_one("#answer", Input)
        answer.value = self._history[self._place]
        answer.cursor_position = len(answer.value)
