"""A source that plays events from a list, and the app on it, for tests of what is drawn."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from lmtool.core.errors import LmtoolError, UsageError
from lmtool.terminal.tui.app import InspectorApp
from lmtool.terminal.tui.event_store import EventStore
from lmtool.terminal.tui.options import InspectorOptions
from lmtool.terminal.tui.request_builder import Abilities, Continuation, HttpContinuation, TextToScore
from lmtool.terminal.tui.sources.event_pipeline import RecordingStatus
from lmtool.trace.codec import read_event

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from textual.pilot import Pilot

    from lmtool.core.types import GenerateRequest
    from lmtool.terminal.tui.sources.event_pipeline import Feed
    from lmtool.trace.events import Event

WORDS = {5: "Hello", 6: " there", 7: " the", 8: " fox", 9: ".", 10: b"\xf0\x9f", 11: b"\x99\x82", 12: "\n", 13: " dog"}


def event(time: float, kind: str, *rest: object) -> Event:
    """An event, written as a line of a trace has it."""
    connection = rest[0] if rest and isinstance(rest[0], int) else 1
    return read_event(json.dumps([time, kind, connection, *[r for r in rest if not isinstance(r, int)]]).encode(), "py")


def request(time: float, stream_id: int, **payload: object) -> Event:
    """A GENERATE."""
    fields = {"model": "tiny", "prompt": [5, 6], "stream_id": stream_id, "max_tokens": 8, "top_logprobs": 3, **payload}
    return event(time, ">", "GENERATE", fields)


def tokens(time: float, *entries: tuple[int, int, float], end: str | None = None) -> Event:
    """A TOKEN frame of (stream id, token, logprob); `end`: finish reason of the last one."""
    outputs = [
        {
            "token": token,
            "stream_id": stream_id,
            "logprob": logprob,
            "finish_reason": end if i == len(entries) - 1 else None,
            "top_logprobs": {str(token): logprob, "13": -1.0, "9": -3.0},
        }
        for i, (stream_id, token, logprob) in enumerate(entries)
    ]
    return event(time, "<", "TOKEN", outputs)


def conversation() -> list[Event]:
    """Two streams: one ends, one goes on; a surprising token, an emoji in two tokens, a line feed, a mark."""
    return [
        event(0.0, "open", {"peer": "client"}),
        event(0.0, "vocab", 0, {str(i): w if isinstance(w, str) else {"hex": w.hex()} for i, w in WORDS.items()}),
        event(0.1, "<", "MSG", [{"model_info": {"model": "tiny", "vocab_size": 100}}]),
        request(0.2, 1),
        request(0.3, 2, temperature=0.7, seed=4),
        tokens(0.4, (1, 7, -0.1), (2, 7, -0.5)),
        tokens(0.5, (1, 8, -5.0), (2, 9, -0.2)),
        event(0.55, "mark", 1, "half"),
        tokens(0.6, (1, 10, -0.3), (1, 11, -0.01)),
        tokens(0.7, (1, 12, -0.2), (1, 9, -0.05), end="stop"),
        tokens(0.9, (2, 13, -1.5)),
    ]


class Scripted:
    """A `Source`: feeds its events at once, then whatever a test pushes; remembers what it is asked for."""

    live = True
    no_requests = "this one only plays"
    advice = ""

    def __init__(
        self, events: Sequence[Event] = (), *, asks: bool = True, http: bool = False, error: LmtoolError | None = None
    ) -> None:
        self.title = "scripted :8081→:8080"
        self._events = list(events)
        self._asks = asks
        self._asks_http = http
        self._error = error
        self._feed: Feed | None = None
        self._over = asyncio.Event()
        self.requests: list[GenerateRequest] = []
        self.answers: list[HttpContinuation] = []
        self.next_answer: list[Event] = []
        """What an answer over HTTP brings."""
        self.scores: list[TextToScore] = []
        self.cancelled: list[str] = []
        self.closed = False
        self.recording: RecordingStatus | None = None
        self.history: list[Event] = []
        """What a recording was begun with."""

    @property
    def takes_requests(self) -> bool:
        return self._asks

    @property
    def takes_http(self) -> bool:
        return self._asks_http

    async def send(self, asked: GenerateRequest | Continuation | TextToScore | HttpContinuation) -> str:
        if isinstance(asked, HttpContinuation):
            assert self._asks_http
            self.answers.append(asked)
            if not asked.is_score:
                self.push(self.next_answer)
            return "1/98" if asked.is_score else "7/1"
        assert self._asks
        if isinstance(asked, TextToScore):
            self.scores.append(asked)
            return "1/99"
        if isinstance(asked, Continuation):
            asked = asked.request_for(Abilities())[0]
        return await self._generate(asked)

    async def _generate(self, asked: GenerateRequest) -> str:
        if asked.prompt == "refuse me":
            raise UsageError("that prompt is refused", "type another")
        self.requests.append(asked)
        number = 10 + len(self.requests)
        self.push([request(1.0 + number / 10, number), tokens(1.05 + number / 10, (number, 8, -0.4))])
        return f"1/{number}"

    def cancel(self, label: str) -> None:
        self.cancelled.append(label)

    def push(self, events: Sequence[Event]) -> None:
        assert self._feed is not None
        self._feed(events)

    def end(self, error: LmtoolError | None = None) -> None:
        self._error = error
        self._over.set()

    async def run(self, feed: Feed) -> None:
        self._feed = feed
        feed(self._events)
        if self._error is not None:
            raise self._error
        await self._over.wait()
        if self._error is not None:
            raise self._error

    def start_recording(self, path: Path, history: Sequence[Event] = ()) -> None:
        path.touch()
        self.history = list(history)
        self.recording = RecordingStatus(path, 3, 2, 1234)

    async def stop_recording(self) -> RecordingStatus | None:
        recorded, self.recording = self.recording, None
        return recorded

    async def close(self) -> None:
        self.closed = True


class Watched:
    """The app while it runs, and what is on its screen."""

    def __init__(self, app: InspectorApp, pilot: Pilot[int], source: Scripted) -> None:
        self.app, self.pilot, self.source = app, pilot, source

    async def press(self, *keys: str) -> None:
        """Press keys, and wait until they are drawn."""
        await self.pilot.press(*keys)
        await self.settle()

    async def settle(self) -> None:
        """Wait until everything that came is drawn."""
        await self.pilot.pause()
        self.app.changed()
        await self.wait_for(lambda: not self.app.is_changed, "everything to be drawn")
        await self.pilot.pause()

    async def wait_for(self, holds: Callable[[], object], what: str) -> None:
        """Wait until something holds. Raises what ended the app, and `AssertionError` after 3,000 looks, a minute."""
        for _ in range(3000):
            if self.app.failure is not None:
                raise self.app.failure
            if holds():
                return
            await self.pilot.pause(0.02)
        raise AssertionError(f"waited a minute for {what}")

    def rows(self) -> list[str]:
        """The screen, without colours."""
        return [strip.text.rstrip() for strip in self.app.screen._compositor.render_strips()]

    def text(self) -> str:
        """The same as one text."""
        return "\n".join(self.rows())


@asynccontextmanager
async def watching(
    events: Sequence[Event] | None = None,
    options: InspectorOptions | None = None,
    *,
    size: tuple[int, int] = (120, 36),
    source: Scripted | None = None,
) -> AsyncIterator[Watched]:
    """The app on a scripted source, everything fed and drawn. Raises what made the app fail."""
    source = source or Scripted(conversation() if events is None else events)
    spool = EventStore()
    app = InspectorApp(spool, source, options or InspectorOptions())
    try:
        async with app.run_test(size=size) as pilot:
            watched = Watched(app, pilot, source)
            await watched.settle()
            yield watched
    finally:
        spool.close()
    if app.failure is not None:
        raise app.failure
