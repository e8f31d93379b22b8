"""The inspector: one view of one state, drawn some thirty times a second, whatever the rate of tokens."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.filter import Monochrome, NoColor

from lmtool.errors import LmtoolError
from lmtool.trace.filter import parse
from lmtool.tui import numbers
from lmtool.tui.actions.asking import Asking
from lmtool.tui.actions.keeping import Keeping
from lmtool.tui.actions.looking import Looking
from lmtool.tui.branches import Branches
from lmtool.tui.documents.bars import Status
from lmtool.tui.documents.footer import keys_line, message_lines
from lmtool.tui.glyphs import ASCII, UNICODE
from lmtool.tui.keys import ACTIONS, Keys
from lmtool.tui.lines import Spool, TraceFile
from lmtool.tui.pace import Pace
from lmtool.tui.palette import ActionsProvider
from lmtool.tui.screens.main import MainScreen
from lmtool.tui.sources.source import Waiting
from lmtool.tui.styles import Styles
from lmtool.tui.view import View

if TYPE_CHECKING:
    from textual.screen import Screen

    from lmtool.trace.reader import Ending
    from lmtool.tui.options import InspectorOptions
    from lmtool.tui.runs import Line
    from lmtool.tui.sources.source import Source

TICK = 1 / 60
"""Seconds between looks at whether a frame is due."""
FIGURES_EVERY = 0.25
"""Seconds between new figures: readable, and cheap."""
LOAD_SLICE = 0.02
"""Seconds for which a file is read before a key is heard."""
LOADING_PERIOD = 0.4
"""Seconds between two frames meanwhile, unless a key asks for one."""
PLAIN_THEME = "ansi-dark"
"""The theme without colours of its own."""
_CRASHED = 70


class InspectorApp(Looking, Asking, Keeping):
    """Shows a source until the user quits. Returns an exit code."""

    CSS_PATH = "app.tcss"
    TITLE = "lmtool inspect"
    ENABLE_COMMAND_PALETTE = True
    COMMANDS: ClassVar = {ActionsProvider}
    # Textual's own ctrl+c only says how to quit.
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c,ctrl+q", "quit", show=False, priority=True)]

    def __init__(
        self,
        lines: Spool | TraceFile,
        source: Source | None,
        options: InspectorOptions,
        other: TraceFile | None = None,
    ) -> None:
        """Watch what `source` feeds into `lines`, or a file that is read here (no source needed).

        other: a second trace to compare with. Raises `UsageError` for keys or a filter that make no sense.
        """
        if os.environ.get("NO_COLOR") == "":
            del os.environ["NO_COLOR"]  # empty asks for nothing; Textual would take it for a wish
        super().__init__()
        self.lines, self.source, self.options, self.other = lines, source, options, other
        self.keys = Keys(options.keys)
        self.view = View(lines.state, lines, live=isinstance(lines, Spool), heat=options.heat, palette=options.palette)
        self.glyphs = ASCII if options.ascii else UNICODE
        self.looks = Styles(ascii=options.ascii)
        self.branches = Branches()
        self.prompts = []
        self.status = Status(source.title if source is not None else _name(lines), "LIVE" if self.view.live else "FILE")
        self.failure = None
        self.wanted = None
        self.main = MainScreen(self)
        self._pace = Pace()
        self.message = None
        self.is_changed = True
        self._verified = False
        self._ending: Ending | None = None
        self._drawn = self._figures_of = (-1, -1, -1.0)
        self._drawn_at = self._figures_at = 0.0
        self.no_color = self.no_color or not options.color
        if self.no_color:
            # Textual would send greys; with the terminal's own colours as theme nothing is left but attributes.
            self._filters = [*(f for f in self._filters if not isinstance(f, Monochrome)), NoColor()]
        self._begin_view()

    def _begin_view(self) -> None:
        options, view = self.options, self.view
        view.mode = options.mode
        view.set_filter(parse(options.filter) if options.filter else None)
        if not view.live:
            played = options.at is None and math.isfinite(options.speed)
            view.speed = options.speed if math.isfinite(options.speed) else 1.0
            view.playing = played
            view.moment = options.at if options.at is not None else 0.0 if played else None

    def get_default_screen(self) -> Screen[None]:
        """The panes."""
        return self.main

    def on_mount(self) -> None:
        """Start the source and the frames."""
        if self.no_color:
            self.theme = PLAIN_THEME
        elif self.options.theme in self.available_themes:
            self.theme = self.options.theme
        else:
            self.say(f"there is no theme {self.options.theme!r}; T goes through those there are", warning=True)
        self.theme_changed_signal.subscribe(self, lambda _: self.restyle())
        self.restyle()
        if not self.is_headless:
            self._mind_signals()
            _collect_rarely()
        self._drawn_at = time.monotonic()
        self.set_interval(TICK, self._tick)
        if isinstance(self.lines, TraceFile):
            self.run_worker(self._read(self.lines))
        if self.source is not None:
            if self.options.record is not None:
                self.source.start_recording(self.options.record)
            self.run_worker(self.observe(self.source))

    def _mind_signals(self) -> None:
        """A terminal is put right before the process ends."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            loop.add_signal_handler(number, self.exit, 128 + number)

    # Keys.

    def press(self, key: str, character: str | None) -> bool:
        """Do what a key does; whether it does anything."""
        action = self.keys.action(key, character)
        if action is None:
            return False
        if self.message is not None and self.message[2] == math.inf and action != "quit":
            self.message = None
        self.do(action)
        return True

    def do(self, action: str) -> None:
        """Do an action of the table. What it does to the cursor is seen at once."""
        if action == "quit":
            self.exit(0)
            return
        before = self._cursor()
        getattr(self, f"action_{action}")()
        if self._cursor() != before:
            self.main.tie()
        self.changed()

    def _cursor(self) -> tuple[object, ...]:
        view = self.view
        return view.stream, view.row, view.frame, view.bar, view.moment, view.mode

    # What is said beside the panes.

    def footer(self, columns: int, pane: str) -> list[Line]:
        """The keys, or the message; its height is set by it."""
        if self.message is None:
            lines = [keys_line(self.keys, pane, columns)]
        else:
            lines = message_lines(self.message[0], columns, warning=self.message[1])
        self.main.footer.styles.height = len(lines)
        return lines

    @property
    def status_now(self) -> Status:
        """What the header says."""
        recorded = self.source.recorded if self.source is not None else None
        told = "" if recorded is None else f"{recorded.path.name} {numbers.size(recorded.size_bytes)}"
        if self._is_loading and not self.status.trouble:
            return replace(
                self.status, word=f"loading {numbers.count(len(self.view.state.tokens))} tokens", recording=told
            )
        return replace(self.status, recording=told)

    @property
    def _is_loading(self) -> bool:
        return isinstance(self.lines, TraceFile) and not self.lines.loaded

    def advice(self) -> str:
        """What makes a first stream come; empty where that is up to nobody."""
        if self.source is None:
            return ""
        outside = self.source.advice if isinstance(self.source, Waiting) else ""
        key = self.keys.sign("prompt") if self.source.generate is not None else ""
        return "; ".join(filter(None, (outside, f"{key} types a prompt" if key else "")))

    # Frames.

    def _tick(self) -> None:
        now = time.monotonic()
        self.is_changed = self.view.look_on() or self.is_changed
        passed = now - self._drawn_at
        period = LOADING_PERIOD if self._is_loading else self._pace.period
        if not self.is_changed and passed < period - TICK / 2:
            return
        self._drawn_at = now
        if not self._is_loading or self.view.time < self.view.state.now:
            self.view.tick(passed)
        if self.message is not None and now > self.message[2]:
            self.message = None
            self.is_changed = True
        if self._draw(now):
            self.call_after_refresh(lambda: self._pace.took(time.monotonic() - now))
        self._leave_at_end()

    async def _read(self, lines: TraceFile) -> None:
        """Read a file, then verify it; keys and frames come between the slices."""
        verified = False
        while not verified:
            try:
                if lines.loaded or lines.load(LOAD_SLICE):
                    verified = lines.verify(LOAD_SLICE)
            except LmtoolError as error:
                lines.loaded = True
                self.fail(error, "unreadable")
                return
            if lines.loaded:
                self._tell_ending(lines)
            await asyncio.sleep(0)
        self._verified = True
        other = self.other
        while other is not None and not other.loaded:
            try:
                other.load(LOAD_SLICE)
            except LmtoolError as error:
                self.say(f"only the beginning of {other.path.name} can be read: {error.message}", warning=True)
                return
            await asyncio.sleep(0)

    def _tell_ending(self, lines: TraceFile) -> None:
        """Once, whoever read the file to its end: a source reads it too."""
        ending = lines.ending
        if ending is None or ending == self._ending:
            return
        self._ending = ending
        self.changed()
        if ending.state != "complete":
            self.status = replace(self.status, word=ending.state, trouble=True)
            self.say(f"{lines.path.name} is {ending.state}: {ending.reason}", warning=True)

    def _draw(self, now: float) -> bool:
        """Draw if there is anything new; whether there was."""
        view = self.view
        self._go_to_wanted()
        drawn = (len(view.state.tokens), len(view.state.frames), view.time)
        figures = self.is_changed or now - self._figures_at >= FIGURES_EVERY
        latest = self._figures_of if figures else self._drawn  # what comes last must not leave older figures behind
        if not self.is_changed and (drawn == latest or self.screen is not self.main):
            return False
        self._drawn, self.is_changed = drawn, False
        if figures:
            self._figures_at, self._figures_of = now, drawn
        if self.main.is_mounted:
            self.main.draw(figures=figures)
        return True

    def _go_to_wanted(self) -> None:
        stream = self.view.state.find(self.wanted) if self.wanted is not None else None
        if stream is not None:
            self.wanted = None
            if not self.view.live:
                self.view.moment = None
            self.view.choose_stream(stream.index)
            self.main.tie()
            self.changed()

    def _leave_at_end(self) -> None:
        if (
            self.options.exit_at_end
            and isinstance(self.lines, TraceFile)
            and self.view.moment is None
            and self._verified
        ):
            self.exit(0)

    def _handle_exception(self, error: Exception) -> None:
        # Textual would print a traceback with the source's lines; the command line reports mistakes in its own way.
        if self.failure is None:
            self.failure = getattr(error, "error", None) or error
            self.exit(_CRASHED)


def _collect_rarely() -> None:
    """Full collections take a tenth of a second, in which no key is heard: leave out what stays, make them rare."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


async def run_inspector(
    lines: Spool | TraceFile, source: Source | None, options: InspectorOptions, other: TraceFile | None = None
) -> int:
    """Run until the user quits, then close the source; an exit code.

    Raises what ended it before, such as the source's `LmtoolError` while there was nothing to see; the terminal is
    put right by then.
    """
    try:
        app = InspectorApp(lines, source, options, other)
        code = await app.run_async()
    finally:
        if source is not None:
            await source.close()
        lines.close()
    if app.failure is not None:
        raise app.failure
    return code or 0


def _name(lines: Spool | TraceFile) -> str:
    return lines.path.name if isinstance(lines, TraceFile) else ""


assert all(hasattr(InspectorApp, f"action_{action.id}") for action in ACTIONS)
