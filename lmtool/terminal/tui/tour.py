"""The inspector with the tour above its panes: it says what to do, detects that it was done, and advances."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from lmtool.core.errors import FileError
from lmtool.terminal.tui.action import FIRST, Action, key_label
from lmtool.terminal.tui.app import InspectorApp
from lmtool.terminal.tui.keymap import ACTIONS
from lmtool.terminal.tui.runs import Run, fitted, length
from lmtool.terminal.tui.screens.main import MainScreen
from lmtool.terminal.tui.tour_steps import STEPS, THE_END, key_of, words, wrapped
from lmtool.terminal.tui.widgets import LineBar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult

    from lmtool.terminal.tui.actions.context import ActionContext
    from lmtool.terminal.tui.event_store import EventStore, TraceFile
    from lmtool.terminal.tui.options import InspectorOptions
    from lmtool.terminal.tui.runs import Line
    from lmtool.terminal.tui.sources.source import Source
    from lmtool.terminal.tui.tour_steps import Progress, Step

LOOKS_EVERY = 0.1
"""Seconds between checks of the step."""
SLIM, LOW = 70, 32
"""Columns below which texts have one more line; rows below which the bottom panes are hidden."""
_TEXT_LINES = {True: 3, False: 2}
"""Lines of text for slim and other screens."""


def _skip(app: ActionContext) -> None:
    assert isinstance(app, TourApp)
    app.skip()


SKIP: Action[ActionContext] = Action(
    "tour_skip", ("p", "o", "f9"), "Skip step", "to the tour's next step; it does this one for you where later ones "
    "need it", _skip, footer=FIRST, synonyms="pass next tour",
)  # fmt: skip
_NO_MISTAKES = ("help", "palette", "pane_help", "quit", "clear", "theme", SKIP.id)
"""Actions that one may always take without a word."""


class TourApp(InspectorApp):
    """The inspector, and a step of the tour above its panes."""

    TITLE = "lmtool tour"
    HORIZONTAL_BREAKPOINTS = [(0, "-slim"), (SLIM, "-wide")]  # noqa: RUF012 - no class variable in Textual
    actions: ClassVar[Sequence[Action[ActionContext]]] = (SKIP, *ACTIONS)

    def __init__(
        self,
        store: EventStore | TraceFile,
        source: Source | None,
        options: InspectorOptions,
        other: TraceFile | None = None,
        *,
        progress: Progress,
    ) -> None:
        """Begin or continue at `progress`; other arguments as for `InspectorApp`."""
        self.progress = progress
        self._is_performed = False
        """True if the tour has begun to perform this step itself."""
        self._is_covered = False
        """True if a screen is open over the panes."""
        self._aside: object = None
        """The message that something else was done."""
        self._key = ""
        """The key that was pressed, while its action runs."""
        super().__init__(store, source, options, other)

    def make_main(self) -> MainScreen:
        """The panes below the tour."""
        return TourScreen(self)

    def on_mount(self) -> None:
        """Look after the steps as well."""
        super().on_mount()
        self.set_interval(LOOKS_EVERY, self.follow)

    def advice(self) -> str:
        """Empty: the tour itself gives instructions."""
        return ""

    # Steps.

    def follow(self) -> None:
        """Advance past the steps that are done; stop once the app ends."""
        if self.top_screen is None:
            return
        while (step := self.progress.step) is not None:
            if step.done(self):
                self._advance()
            elif self.progress.is_performing and not self._is_performed:
                if step.perform is None:
                    self._advance()
                elif not step.perform(self):
                    break
                else:
                    self._is_performed = True
            else:
                break
        if self._is_covered != (self.top_screen is not self.main):
            self._is_covered = not self._is_covered
            self.changed()

    def _advance(self) -> None:
        try:
            self.progress.advance()
        except FileError as error:
            self.say(f"{error.message}; it begins anew next time", warning=True)
        self._is_performed = False
        if self.message is self._aside:
            self.message = None
        if (step := self.progress.step) is not None:
            step.begin(self)
        self.changed()

    def skip(self) -> None:
        """Skip to the next step; the tour performs what later steps need."""
        self.progress.skip()
        self.follow()

    # What was done instead.

    def press(self, key: str, character: str | None) -> bool:
        """Run the action of a key; one without an action is named, too."""
        self._key = key_label(character if character is not None and character.isprintable() else key)
        is_known = super().press(key, character)
        step = self.progress.step
        if not is_known and step is not None:
            self._say_aside(f"{self._key} has no meaning here", step)
        self._key = ""
        return is_known

    def do(self, action: Action[ActionContext]) -> None:
        """Run an action; if the tour waits for another one, name both."""
        step, message = self.progress.step, self.message
        super().do(action)
        self.follow()
        if step is None or step is not self.progress.step or action.id in (*step.actions, *step.allowed, *_NO_MISTAKES):
            return
        key = self._key or self.keys.sign(action.id) or action.short
        own = self.message[0] if self.message is not None and self.message is not message else ""
        self._say_aside(f"{key}: {own or action.sentence}", step)

    def _say_aside(self, text: str, step: Step) -> None:
        keys = " or ".join(key_of(self, name) for name in step.actions)
        self.say(f"{text}; the tour waits for {keys}" if keys else text)
        self._aside = self.message

    # The lines above the panes.

    def tour_lines(self, columns: int) -> list[Line]:
        """Title and instructions, always of the same height, so that nothing below moves."""
        room, slim = columns - 2, columns < SLIM
        text = wrapped(words(self, self._text()), room)[: _TEXT_LINES[slim]]
        lines = [self._title(room, slim=slim), *text, *([] for _ in range(_TEXT_LINES[slim] - len(text)))]
        return [[Run(" "), *line] for line in lines]

    def _text(self) -> str:
        step = self.progress.step
        if step is None:
            return THE_END
        if self.progress.is_performing:
            return "Welcome back: what you did before is done again, quickly." if self.progress.is_return else (
                "This step is done for you, as soon as it can be; {tour_skip} again leaves it out."
            )  # fmt: skip
        text = step.other_text(self) or step.text
        covers = self.top_screen is not self.main and step.actions
        return f"{text} ({{esc}} closes what is open.)" if covers else text

    def _title(self, columns: int, *, slim: bool) -> Line:
        step, glyphs = self.progress.step, self.glyphs
        place = min(len(STEPS), max(self.progress.index, self.progress.target if self.progress.is_return else 0))
        name = f"Tour {place + 1} of {len(STEPS)}: {STEPS[place].title}" if place < len(STEPS) else "Tour: the end"
        way = [Run(glyphs.line * place, "accent"), Run(glyphs.knob, "accent")]
        way.append(Run(glyphs.rule * (len(STEPS) - place), "dim"))
        keys: Line = []
        if step is not None and self.top_screen is self.main:  # what is open over the panes has keys of its own
            keys = [Run(key_of(self, SKIP.id), "key"), Run(" skips  ", "dim")]
            keys += [Run(key_of(self, "quit"), "key"), Run(" leaves" if slim else " leaves for later", "dim")]
        line = fitted([Run(name, "title"), Run("  "), *way, Run("  ")], columns - length(keys))
        return [*line, Run(" " * (columns - length(line) - length(keys))), *keys]


class TourScreen(MainScreen):
    """The panes, and the tour above them."""

    def __init__(self, app: TourApp) -> None:
        """Make the panes of this app."""
        super().__init__(app)
        self._steps = LineBar(app.tour_lines, app.looks, id="tour")

    def compose(self) -> ComposeResult:
        """The tour first."""
        yield self._steps
        yield from super().compose()

    def lay_out(self) -> None:
        """Hide the panes that the tour does not need on a small screen."""
        self.set_class(not self.single and self.size.height < LOW and self.pane < 3, "short")
        super().lay_out()

    def draw(self, *, figures: bool) -> None:
        """Draw the changes."""
        super().draw(figures=figures)
        self._steps.draw()
