"""Writes a server's events from a separate thread, so that a slow reader never blocks the server."""

from __future__ import annotations

import os
import queue
import shutil
import threading
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TextIO

from lmtool.serving.events import Event, Finished, Loading, LoggedWarning, Ready, Started, as_json, as_lines, bar
from lmtool.settings.terminal import RESET, hidden_shown, visible

if TYPE_CHECKING:
    from collections.abc import Callable

BACKLOG = 10_000
"""Most events queued for a slow reader; further events are dropped."""
PLAIN_INTERVAL = 5.0
"""Seconds between two lines about the same load without a terminal."""
REDRAW = 0.2
"""Seconds between two redraws of an unchanged bar."""
NO_END = 10_000
"""Columns assumed for a pipe."""
CLEAR = "\r\x1b[K"
"""Moves the cursor to the beginning of an empty line."""
CLOSE_LIMIT = 1.0
"""Seconds to write the last lines at exit."""


@dataclass
class Console:
    """Writes events as text lines, with a bar while a model loads, or as JSON lines."""

    put: Callable[[str], object]
    """Writes a piece of text at once, such as `unbuffered(sys.stdout)`; may block, and raise `OSError`."""
    json: bool = False
    color: bool = False
    terminal: bool = False
    """True if output goes to a terminal, which can redraw lines."""
    quiet: bool = False
    """Write nothing."""
    columns: Callable[[], int] = field(default=lambda: shutil.get_terminal_size().columns)
    _events: queue.Queue[tuple[Event, float] | None] = field(default_factory=lambda: queue.Queue(BACKLOG))
    _bar: tuple[Loading, float] | None = None
    """Event of the bar on the screen, and the monotonic time when it was drawn."""
    _reported: float | None = None
    """Load time of the last line printed without a bar, in seconds."""

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name="console", daemon=True)
        self._thread.start()

    def emit(self, event: Event) -> None:
        """Queue an event; returns at once, from any thread. Dropped if the queue is full."""
        if not self.quiet and not self._events.full():
            self._events.put((event, time.time()))

    def close(self) -> None:
        """Write the queued events, or give up after a second without a reader."""
        try:
            self._events.put(None, timeout=CLOSE_LIMIT)
        except queue.Full:
            return
        self._thread.join(CLOSE_LIMIT)

    def _run(self) -> None:
        while (item := self._next()) is not None:
            try:
                self._write(*item)
            except OSError:  # the reader has closed the pipe: keep serving
                self.quiet = True
                return

    def _next(self) -> tuple[Event, float] | None:
        """Wait for the next event; meanwhile return the bar's event again to update its clock."""
        try:
            return self._events.get(timeout=REDRAW if self._bar else None)
        except queue.Empty:
            assert self._bar is not None
            return _later(*self._bar), time.time()

    def _write(self, event: Event, when: float) -> None:
        if self.json:
            self.put(as_json(event, datetime.fromtimestamp(when, UTC).isoformat(timespec="milliseconds")) + "\n")
        elif isinstance(event, Loading) and self.terminal:
            self._draw(event)
        elif not isinstance(event, Loading) or self._is_news(event):
            clock = datetime.fromtimestamp(when, UTC).astimezone().strftime("%H:%M:%S")
            lines = as_lines(event, clock, self.columns() if self.terminal else NO_END)
            self.put(f"{CLEAR if self._bar else ''}{self._styled(event, lines)}")
            if self._bar:
                self._draw(_later(*self._bar))

    def _draw(self, event: Loading) -> None:
        ended = event.progress.phase in {"ready", "failed"}
        self._bar = None if ended else (event, time.monotonic())
        self.put(f"{CLEAR}{hidden_shown(bar(event, self.columns()))}" + ("\n" if ended else ""))

    def _is_news(self, event: Loading) -> bool:
        if event.progress.phase in {"ready", "failed"}:
            self._reported = None
            return False
        if self._reported is None or event.seconds - self._reported >= PLAIN_INTERVAL:
            self._reported = event.seconds
            return True
        return False

    def _styled(self, event: Event, lines: list[str]) -> str:
        style = _style(event) if self.color else ""
        start, end = (f"\x1b[{style}m", RESET) if style else ("", "")
        shown = (
            visible if isinstance(event, LoggedWarning) else hidden_shown
        )  # a client's line feed must not start a line
        return "".join(f"{start}{shown(line)}{end}\n" for line in lines)


def _later(event: Loading, since: float) -> Loading:
    """The bar's event with the time that has passed since it was drawn."""
    return replace(event, seconds=event.seconds + time.monotonic() - since)


def _style(event: Event) -> str:
    match event:
        case Finished():
            return "31" if event.request.error is not None else ""
        case LoggedWarning():
            return "33"
        case Started() | Ready():
            return "1"
        case _:
            return ""


def unbuffered(stream: TextIO) -> Callable[[str], None]:
    """Write to a stream's descriptor, past its buffer: unread output must not block the interpreter's exit."""
    descriptor, encoding = stream.fileno(), stream.encoding or "utf-8"

    def put(text: str) -> None:
        left = text.encode(encoding, "replace")
        while left:
            left = left[os.write(descriptor, left) :]

    return put
