"""The app as actions see it: view, source, messages."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from textual.app import App

from lmtool.core.errors import LmtoolError
from lmtool.terminal.tui.documents.bars import Status
from lmtool.terminal.tui.documents.comparison import Branches
from lmtool.terminal.tui.documents.help import word_of
from lmtool.terminal.tui.event_store import EventStore, TraceFile
from lmtool.terminal.tui.screens.dialogs import ReadingScreen
from lmtool.terminal.tui.styles import ASCII, UNICODE, Styles, chrome
from lmtool.terminal.tui.view import View

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.screen import Screen

    from lmtool.terminal.tui.action import Action, Keymap
    from lmtool.terminal.tui.documents.document import Document
    from lmtool.terminal.tui.options import InspectorOptions
    from lmtool.terminal.tui.screens.main import MainScreen
    from lmtool.terminal.tui.sources.source import Source

MESSAGE_SECONDS = 6.0
"""Seconds that a message is shown; long messages are shown longer."""


class ActionContext(App[int]):
    """The app as actions know it; `InspectorApp` adds the keys and the panes."""

    keys: Keymap[ActionContext]
    main: MainScreen
    """The panes."""

    def __init__(
        self,
        store: EventStore | TraceFile,
        source: Source | None,
        options: InspectorOptions,
        other: EventStore | TraceFile | None,
    ) -> None:
        """Show `store`. other: a second trace, or the events of a second server, to compare with."""
        super().__init__()
        self.store, self.source, self.options, self.other = store, source, options, other
        live = isinstance(store, EventStore)
        self.view = View(store.state, store, live=live, heat=options.heat, palette=options.palette)
        self.glyphs = ASCII if options.ascii else UNICODE
        self.looks = Styles(ascii=options.ascii)
        self.branches = Branches()
        self.prompts: list[str] = []
        """Prompts typed so far, the latest last."""
        self.next_stream: str | None = None
        """Label of the stream to move the cursor to once it begins."""
        name = store.path.name if isinstance(store, TraceFile) else ""
        self.status = Status(source.title if source is not None else name, "LIVE" if live else "FILE")
        """State of the source, for the header."""
        self.failure: Exception | None = None
        """Error that ended the app; None if the user did."""
        self.message: tuple[str, bool, float] | None = None
        """Message in the footer: text, True for a warning, expiry by the monotonic clock."""
        self.is_changed = True
        """True if the next frame draws everything."""

    @property
    def top_screen(self) -> Screen[object] | None:
        """Screen on top; None while the app ends, because screens close before timers and workers."""
        stack = self.screen_stack
        return stack[-1] if stack else None

    def do(self, action: Action[ActionContext]) -> None:
        """Run an action, or show why it is unavailable or failed. If the cursor moved, it is scrolled into view."""
        self._run(action, lambda: action.run(self))

    def do_with(self, action: Action[ActionContext], value: str) -> None:
        """Run an action with a typed value; otherwise as `do`."""
        if (takes := action.value) is not None:
            self._run(action, lambda: takes.apply(self, value))

    def _run(self, action: Action[ActionContext], run: Callable[[], object]) -> None:
        before = self._cursor()
        why = "" if action.unavailable is None else action.unavailable(self)
        if why:
            self.say(why, warning=True)
        else:
            self.attempt(run)
        if self._cursor() != before:
            self.main.tie()
        self.changed()

    def attempt(self, run: Callable[[], object]) -> None:
        """Call `run`; show its `LmtoolError`."""
        try:
            run()
        except LmtoolError as error:
            self.say_error(error)

    def explain(self, name: str) -> None:
        """Show the meaning of a word of the screen."""
        word = word_of(name)
        if word is not None:
            self.say(f"{word.name}: {word.sentence}")

    def _cursor(self) -> tuple[object, ...]:
        view = self.view
        return view.stream, view.row, view.frame, view.bar, view.moment, view.mode

    def changed(self) -> None:
        """Draw everything with the next frame."""
        self.is_changed = True

    def say(self, text: str, *, warning: bool = False, stays: bool = False) -> None:
        """Show a message in place of the footer for a few seconds. stays: until a key is pressed."""
        self.message = (text, warning, math.inf if stays else time.monotonic() + MESSAGE_SECONDS + len(text) / 40)
        self.changed()

    def say_error(self, error: LmtoolError, *, stays: bool = False) -> None:
        """Show an error and its hints."""
        self.say(" · ".join([error.message, *error.hints]), warning=True, stays=stays)

    def get_css_variables(self) -> dict[str, str]:
        """Variables of the theme, and readable colours for borders and titles."""
        variables = super().get_css_variables()
        return variables | chrome(variables)

    def restyle(self) -> None:
        """Take the colours of the theme and the palette."""
        self.looks.change(
            self.get_css_variables(),
            self.view.palette,
            color=not self.no_color,
            dark=self.current_theme.dark,
            sixteen=self.console.color_system == "standard" and not self.is_headless,
        )
        self.changed()

    def read(self, title: str, document: Document, on_choice: Callable[[int], None] | None = None) -> None:
        """Open a document over the panes. on_choice: called with the target of the line that enter was pressed on."""

        def closed(target: int | None) -> None:
            if target is not None and on_choice is not None:
                on_choice(target)
            self.changed()

        chooses = on_choice is not None
        self.push_screen(ReadingScreen(title, document, self.looks, self.glyphs, chooses=chooses), closed)

    # The source.

    async def observe(self, source: Source) -> None:
        """Feed the events of a source until it ends."""
        try:
            await source.run(self.store.feed)
        except LmtoolError as error:
            self.fail(error, "remote has gone")
            return
        if source.live:
            self.status = replace(self.status, word="OVER")
            if self.options.exit_at_end:
                self.exit(0)
        self.changed()

    def resume_source(self) -> None:
        """Observe a failed source again, after its server took a request."""
        if self.source is not None and self.source.live and self.status.trouble:
            self.status = replace(self.status, word="LIVE", trouble=False)
            self.run_worker(self.observe(self.source))
        self.changed()

    def fail(self, error: LmtoolError, word: str) -> None:
        """The source is over; the last screen stays, unless there is nothing on it."""
        state = self.view.state
        self.status = replace(self.status, word=word, trouble=True)
        self.say_error(error, stays=True)
        if self.options.exit_at_end or not (state.streams or state.connections):
            self.failure = error
            self.exit(error.exit_code)
