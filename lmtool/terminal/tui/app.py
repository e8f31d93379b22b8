"""The inspector: one view of one state, drawn at most thirty times a second at any token rate."""

from __future__ import annotations

import asyncio
import errno
import gc
import math
import os
import re
import signal
import sys
import termios
import time
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from textual.binding import Binding, BindingType
from textual.filter import Monochrome, NoColor

from lmtool.core.errors import LmtoolError
from lmtool.core.logprobs import numbers
from lmtool.terminal.tui.action import Keymap
from lmtool.terminal.tui.actions.context import ActionContext
from lmtool.terminal.tui.actions.navigation import compare
from lmtool.terminal.tui.documents.help import keys_line, message_lines
from lmtool.terminal.tui.event_store import EventStore, TraceFile
from lmtool.terminal.tui.keymap import ACTIONS
from lmtool.terminal.tui.screens.main import MainScreen
from lmtool.trace.filter import parse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual.screen import Screen

    from lmtool.terminal.tui.action import Action
    from lmtool.terminal.tui.documents.bars import Status
    from lmtool.terminal.tui.options import InspectorOptions
    from lmtool.terminal.tui.runs import Line
    from lmtool.terminal.tui.sources.source import Source
    from lmtool.trace.reader import Ending

TIPS = (
    "{surprising} goes to the next surprising token, {least_likely} to the least likely one",
    "{branch} on an alternative goes on from it in a new stream; {tree} shows the tree of branches",
    '{filter} shows only some tokens: p<.1, gap>50ms, "text", /regex/',
    "{compare} shows two streams of one prompt side by side, where they part in sight",
    "{pause} stops the screen, not the recording; {frame_back} and {frame_on} go frame by frame",
    "{heat} colours by another figure: surprisal, entropy, rank, the gap in time",
    "{palette} runs what is typed, such as  heat entropy  or  export answer.html",
    "{what_if} asks what another temperature or top-p would have left, and where this seed would have gone",
    "{score} has a stream's tokens scored, as they are or edited",
    "{record} writes everything from now on to a trace that opens here again",
    "{raw} shows the whole frame that brought a token",
)
"""Sentences; `{action}` is replaced by the action's key."""
_LINE = re.compile(r"(\d{4}-\d\d-\d\d) (\d{1,9})\s*")


def tips_file() -> Path:
    """File with the day of the last tip, in the platform's folder for program state."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library/Application Support"
    else:
        base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state")
    return base / "lmtool" / "inspector-tip"


def next_tip(keys: Keymap[Any], file: Path, today: date) -> str:
    """Today's tip; empty if there was one today, or if the day cannot be stored.

    file: has the day of the last tip, and how many there were.
    """
    try:
        last, count = _read(file)
        if last == today:
            return ""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{today.isoformat()} {count + 1}\n", encoding="utf-8")
    except OSError:  # a read-only home: better no tip than the same one at every start
        return ""
    possible = [tip for tip in (_with_keys(tip, keys) for tip in TIPS) if tip]
    return possible[count % len(possible)] if possible else ""


def _read(file: Path) -> tuple[date | None, int]:
    """The day of the last tip and their number. Anything else in the file counts as no tip yet."""
    if not file.exists():
        return None, 0
    match = _LINE.fullmatch(file.read_text(encoding="utf-8", errors="replace")[:100])
    if match is None:
        return None, 0
    try:
        return date.fromisoformat(match[1]), int(match[2])
    except ValueError:
        return None, 0


def _with_keys(tip: str, keys: Keymap[Any]) -> str:
    """A tip with the user's keys; empty if one of its actions has none."""
    signs = {name: keys.sign(name) for name in re.findall(r"{(\w+)}", tip)}
    return tip.format(**signs) if all(signs.values()) else ""


def terminal_is_lost() -> bool:
    """True if the terminal at stdin was closed; False if stdin is not a terminal."""
    try:
        termios.tcgetattr(0)
    except termios.error as error:
        return bool(error.args[0] != errno.ENOTTY)
    return False


def discard_lost_output() -> None:
    """Redirect stdout and stderr to the null device if their terminal, stdin's, was closed.

    What is still to be written would fail as the interpreter exits, and replace its status with 120.
    """
    if not terminal_is_lost():
        return
    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None and os.path.samestat(os.fstat(0), os.fstat(stream.fileno())):
            os.dup2(nothing, stream.fileno())
    os.close(nothing)


TICK = 1 / 60
"""Seconds between checks for a due frame."""
FIGURES_EVERY = 0.25
"""Seconds between new figures: readable, and cheap."""
LOAD_SLICE = 0.02
"""Seconds for which a file is read before keys are handled."""
LOADING_PERIOD = 0.4
"""Seconds between frames while a file is read, unless a key needs one."""
SHORTEST_PERIOD, LONGEST_PERIOD = 1 / 30, 1 / 8
"""Seconds between two frames."""
DRAWING_SHARE = 0.2
"""Share of the time that drawing may take; the rest is for keys and events."""
_MEMORY = 0.9
"""Weight of older frames at each new one."""
PLAIN_THEME = "ansi-dark"
"""Theme with the terminal's colours."""
_CRASHED = 70
_FIRST_STEPS = (("prompt", "types a prompt"), ("demo", "runs a demo"))
"""Actions that start a first stream, and their descriptions."""
_TOUR = "new here?  lmtool tour"


class Pace:
    """Time between frames: grows at once after a slow frame, shrinks gradually after fast ones."""

    def __init__(self) -> None:
        self._seconds = 0.0
        """Seconds to draw a frame."""

    @property
    def period(self) -> float:
        """Seconds between frames now."""
        return min(LONGEST_PERIOD, max(SHORTEST_PERIOD, self._seconds / DRAWING_SHARE))

    def add(self, seconds: float) -> None:
        """Count a frame that took this long."""
        self._seconds = max(seconds, _MEMORY * self._seconds + (1 - _MEMORY) * seconds)


class InspectorApp(ActionContext):
    """The app: shows a source until the user quits, and returns an exit code."""

    CSS_PATH = "app.tcss"
    TITLE = "lmtool inspect"
    ENABLE_COMMAND_PALETTE = False  # `?` and `:` are ours: they show in every size, without colours and in ASCII
    # Textual's own ctrl+c only says how to quit.
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c,ctrl+q", "quit", show=False, priority=True)]
    actions: ClassVar[Sequence[Action[ActionContext]]] = ACTIONS

    def __init__(
        self,
        store: EventStore | TraceFile,
        source: Source | None,
        options: InspectorOptions,
        other: EventStore | TraceFile | None = None,
        second: Source | None = None,
    ) -> None:
        """Watch what `source` feeds into `store`, or a file that is read here (no source needed).

        other: a second trace to compare with, or what `second` feeds, with which the first one's stream is compared as
        soon as both have ended. Raises `UsageError` for keys or a filter that make no sense.
        """
        if os.environ.get("NO_COLOR") == "":
            del os.environ["NO_COLOR"]  # empty asks for nothing; Textual would take it for a wish
        super().__init__(store, source, options, other)
        self._second = second
        self.keys = Keymap(self.actions, options.keys)
        self.main = self.make_main()
        self._pace = Pace()
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
            plays = options.at is None and math.isfinite(options.speed)
            view.speed = options.speed if math.isfinite(options.speed) else 1.0
            view.playing = plays
            view.from_beginning = not plays and options.at is None
            view.moment = options.at if options.at is not None else 0.0 if plays else None

    def make_main(self) -> MainScreen:
        """The screen of the panes."""
        return MainScreen(self)

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
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):  # the terminal is restored before the end
                loop.add_signal_handler(number, self.exit, 128 + number)
            if sys.__stdin__ is not None and sys.__stdin__.isatty():
                self.set_interval(1.0, self._leave_lost_terminal)
            # Full collections take a tenth of a second, in which no key is handled: leave out what stays, be rare.
            gc.collect()
            gc.freeze()
            gc.set_threshold(10_000, 20, 50)
        self._drawn_at = time.monotonic()
        self.set_interval(TICK, self._tick)
        if isinstance(self.store, TraceFile):
            self.run_worker(self._read(self.store))
        if self.options.tips and not self.is_headless and not self.options.exit_at_end:
            self._give_tip()
        self._start_sources()

    def _start_sources(self) -> None:
        if self.source is not None:
            if self.options.record is not None:
                self.source.start_recording(self.options.record)
            self.run_worker(self.observe(self.source))
        if self._second is not None and isinstance(self.other, EventStore):
            self.run_worker(self._compare_with(self._second, self.other))

    async def _compare_with(self, second: Source, other: EventStore) -> None:
        """Feed a second server's score of the same text, and open the comparison once both have ended."""
        try:
            await second.run(other.feed)
        except LmtoolError as error:
            self.say_error(error, stays=True)
            return
        while not self.view.state.streams or any(one.ended is None for one in self.view.state.streams):  # noqa: ASYNC110 - as the frames do
            await asyncio.sleep(FIGURES_EVERY)
        if self.top_screen is self.main:
            compare(self)

    def _give_tip(self) -> None:
        tip = next_tip(self.keys, tips_file(), datetime.now().astimezone().date())
        if tip:
            self.say(f"tip: {tip}   ({self.keys.sign('help') or 'help'}: everything else)")

    def _leave_lost_terminal(self) -> None:
        """Exit if the terminal was closed without a signal, because reads from it would return at once."""
        if terminal_is_lost():
            self.exit(128 + signal.SIGHUP)

    async def action_quit(self) -> None:
        """Leave; `run_inspector` closes the source, and with it a recording in good order."""
        self.exit(0)

    # Keys.

    def press(self, key: str, character: str | None) -> bool:
        """Run the action of a key; False if it has none."""
        action = self.keys.action(key, character)
        if action is None:
            return False
        if self.message is not None and self.message[2] == math.inf and action.id != "quit":
            self.message = None
        self.do(action)
        return True

    def click_footer(self, target: int) -> None:
        """Run the action that was clicked."""
        self.do(self.keys.actions[target])

    def branch_here(self) -> None:
        """Go on from the alternative under the cursor."""
        self.do(self.keys.by_id("branch"))

    # Beside the panes.

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
        """Status for the header."""
        recording = self.source.recording if self.source is not None else None
        text = "" if recording is None else f"{recording.path.name} {numbers.size(recording.size_bytes)}"
        word = self.status.word
        if self._is_loading and not self.status.trouble:
            word = f"loading {numbers.count(len(self.view.state.tokens))} tokens"
        title = self.status.title if self.source is None else self.source.title
        return replace(self.status, title=title, word=word, recording=text)

    @property
    def _is_loading(self) -> bool:
        return isinstance(self.store, TraceFile) and not self.store.is_loaded

    def advice(self) -> str:
        """Instructions to start a first stream; empty if that is not possible."""
        if self.source is None:
            return ""
        able = self.source.takes_requests
        keys = [(self.keys.sign(name), does) for name, does in _FIRST_STEPS if able]
        how = (f"{key} {does}" for key, does in keys if key)
        return "; ".join(filter(None, (self.source.advice, *how, _TOUR if able else "")))

    # Frames.

    def _tick(self) -> None:
        now = time.monotonic()
        self.is_changed = self.view.filter_more() or self.is_changed
        elapsed = now - self._drawn_at
        period = LOADING_PERIOD if self._is_loading else self._pace.period
        if not self.is_changed and elapsed < period - TICK / 2:
            return
        self._drawn_at = now
        if not self._is_loading or self.view.time < self.view.state.now:
            self.view.tick(elapsed)
        if self.message is not None and now > self.message[2]:
            self.message = None
            self.is_changed = True
        if self._draw(now):
            self.call_after_refresh(lambda: self._pace.add(time.monotonic() - now))
        at_end = isinstance(self.store, TraceFile) and self.view.moment is None and self._verified
        if self.options.exit_at_end and at_end:
            self.exit(0)

    async def _read(self, store: TraceFile) -> None:
        """Read a file in slices, then verify it."""
        verified = False
        while not verified:
            try:
                if store.is_loaded or store.load(LOAD_SLICE):
                    verified = store.verify(LOAD_SLICE)
            except LmtoolError as error:
                store.is_loaded = True
                self.fail(error, "unreadable")
                return
            if store.is_loaded:
                self._show_ending(store)
            await asyncio.sleep(0)
        self._verified = True
        if isinstance(self.other, TraceFile):
            await self._open_other(self.other)

    async def _open_other(self, other: TraceFile) -> None:
        """Read the second trace, and compare both at their ends."""
        while not other.is_loaded:
            try:
                other.load(LOAD_SLICE)
            except LmtoolError as error:
                other.is_loaded = True
                self.say(f"only the beginning of {other.path.name} can be read: {error.message}", warning=True)
            await asyncio.sleep(0)
        if self.options.at is None and self.top_screen is self.main:
            self.view.moment = None
            compare(self)

    def _show_ending(self, store: TraceFile) -> None:
        """Show the ending of the file once, whether the app or a source read it."""
        ending = store.ending
        if ending is None or ending == self._ending:
            return
        self._ending = ending
        self.changed()
        if ending.state != "complete":
            self.status = replace(self.status, word=ending.state, trouble=True)
            self.say(f"{store.path.name} is {ending.state}: {ending.reason}", warning=True)

    def _draw(self, now: float) -> bool:
        """Draw if anything changed; True if so."""
        view = self.view
        self._go_to_next_stream()
        view.keep_to_filter()
        drawn = (len(view.state.tokens), len(view.state.frames), view.time)
        figures = self.is_changed or now - self._figures_at >= FIGURES_EVERY
        latest = self._figures_of if figures else self._drawn  # what comes last must not leave older figures behind
        if not self.is_changed and (drawn == latest or self.top_screen is not self.main):
            return False
        self._drawn, self.is_changed = drawn, False
        if figures:
            self._figures_at, self._figures_of = now, drawn
        if self.main.is_mounted:
            self.main.draw(figures=figures)
        return True

    def _go_to_next_stream(self) -> None:
        stream = self.view.state.find(self.next_stream) if self.next_stream is not None else None
        if stream is not None:
            self.next_stream = None
            if not self.view.live:
                self.view.moment = None
            self.view.choose_stream(stream.index)
            self.main.tie()
            self.changed()

    def _handle_exception(self, error: Exception) -> None:
        # Textual would print a traceback with the source's lines; the command line reports mistakes in its own way.
        if self.failure is None:
            self.failure = getattr(error, "error", None) or error
            self.exit(_CRASHED)


async def run_inspector(
    store: EventStore | TraceFile,
    source: Source | None,
    options: InspectorOptions,
    other: EventStore | TraceFile | None = None,
    second: Source | None = None,
    *,
    make: Callable[..., InspectorApp] = InspectorApp,
) -> int:
    """Run until the user quits, then close the source; an exit code. make: of the app.

    Raises what ended it before, such as the source's `LmtoolError` while the screen was empty; the terminal is
    restored by then.
    """
    try:
        app = make(store, source, options, other) if second is None else make(store, source, options, other, second)
        code = await app.run_async()
    finally:
        discard_lost_output()
        for one in (source, second):
            if one is not None:
                await one.close()
        store.close()
    if app.failure is not None:
        raise app.failure
    return code or 0
