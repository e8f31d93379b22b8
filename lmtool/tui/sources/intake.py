"""What events pass through between a wire and the inspector: explained, without secrets, recorded when asked."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from lmtool.errors import UsageError
from lmtool.trace.events import Close, Drop, Frame, Open
from lmtool.trace.header import Header
from lmtool.trace.recorder import Recorder
from lmtool.trace.recording import Recording
from lmtool.trace.redaction import Redaction
from lmtool.trace.vocabulary import Explainer
from lmtool.trace.writer import TraceWriter
from lmtool.tui.sources.source import Recorded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lmtool.trace.events import Event
    from lmtool.trace.vocabulary import Spell
    from lmtool.tui.sources.source import Feed


class Intake:
    """Hands on what is told, in order. Belongs to one event loop.

    Headers other than harmless ones never get through: neither to the screen nor into a recording.
    """

    def __init__(
        self, warn: Callable[[str], None], *, also: Callable[[int, Iterable[Event]], None] | None = None, at: str
    ) -> None:
        """Begin to count seconds.

        warn: gets a sentence when a recording fails. also: is told everything as it came, such as a recording of
        somebody else's. at: where this listens, for the headers of recordings: `proxy`, `client`.
        """
        self._warn = warn
        self._also = also
        self._at = at
        self._began = time.monotonic()
        self._start = 0.0
        self._feed: Feed | None = None
        self._held: list[Event] = []
        self._redaction = Redaction(("headers",), secrets.token_bytes(16))
        self._spell: Spell | None = None
        self._explainer: Explainer | None = None
        self._recorded_words: Explainer | None = None
        """A recording that starts late explains what it names once more."""
        self._open: dict[int, Open] = {}
        self._zero = 0.0
        """When the recording begins, by the clock."""
        self._recording: Recording | None = None
        self._path = Path()
        self.model: dict[str, object] = {}
        """What is known of the model, for the headers of recordings."""

    def clock(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began + self._start

    def set_clock(self, seconds: float) -> None:
        """Go on from here, such as from the end of a file."""
        self._began, self._start = time.monotonic(), seconds

    def feed_to(self, feed: Feed) -> None:
        """Hand everything to `feed` from now on, what came before first."""
        self._feed = feed
        if self._held:
            held, self._held = self._held, []
            feed(held)

    def explain_by(self, spell: Spell | None) -> None:
        """Explain token ids from now on."""
        self._spell = spell
        self._explainer = None if spell is None else Explainer(spell)
        self._recorded_words = None if spell is None else Explainer(spell)

    def tell(self, connection: int, events: Iterable[Event]) -> None:
        """Take the events of a connection, in order of time."""
        whole = list(events)
        if not whole:
            return
        if self._also is not None:
            self._also(connection, whole)
        clean = [event for one in whole if (event := self._clean(one)) is not None]
        self._follow(clean)
        if self._recording is not None:
            self._record(clean)
        self._hand_on(_explained(self._explainer, clean))

    def _clean(self, event: Event) -> Event | None:
        return event if isinstance(event, Frame) else self._redaction.apply(event)

    def _hand_on(self, events: list[Event]) -> None:
        if self._feed is None:
            self._held += events
        else:
            self._feed(events)

    # Recording.

    def _follow(self, events: Iterable[Event]) -> None:
        """Know which connections are open."""
        for event in events:
            if isinstance(event, Open):
                self._open[event.connection] = event
            elif isinstance(event, Close | Drop):
                self._open.pop(event.connection, None)

    def _record(self, events: Iterable[Event]) -> None:
        """Record events with what explains their ids, at times since the recording's own beginning."""
        assert self._recording is not None
        told = _explained(self._recorded_words, events)
        self._recording.tell(0, [replace(event, time=max(0.0, event.time - self._zero)) for event in told])

    def start_recording(self, path: Path, history: Sequence[Event] = ()) -> None:
        """Record from now on, what was told of streams that still run first; the trace begins with the first of it.

        Raises `FileError`, and `UsageError` while a recording goes on.
        """
        if self._recording is not None:
            raise UsageError(f"{self._path} is being recorded already", "stop that one first")
        now = self.clock()
        zero = history[0].time if history else now
        header = Header(
            created=(datetime.now(UTC) - timedelta(seconds=now - zero)).strftime("%Y-%m-%dT%H:%M:%SZ"),
            by="lmtool inspect",
            at=self._at,
            model=self.model,
            json="msgspec",
            redacted=("headers",),
        )
        # Nothing is left to redact; what the header says was done above.
        writer = TraceWriter(path, header)
        self._recording = Recording(
            lambda _number: Recorder(writer, Redaction((), b"")), self._warn, lambda: self.clock() - zero, split=False
        )
        self._path, self._zero = path, zero
        self._recorded_words = None if self._spell is None else Explainer(self._spell)
        self._record([*(_opened(one, zero) for one in self._open.values()), *history])

    async def stop_recording(self) -> Recorded | None:
        """End the recording with its end record."""
        recording, self._recording = self._recording, None
        if recording is None:
            return None
        await recording.close()
        return self._facts(recording)

    @property
    def recorded(self) -> Recorded | None:
        """What the recording holds so far."""
        return None if self._recording is None else self._facts(self._recording)

    def _facts(self, recording: Recording) -> Recorded:
        _, events, tokens = recording.counts
        try:
            size = self._path.stat().st_size
        except OSError:
            size = 0  # somebody removed the file while it was written
        return Recorded(self._path, events, tokens, size, recording.failed)


def _opened(event: Open, zero: float) -> Open:
    """The beginning of a connection, which may be older than the recording."""
    older = zero - event.time
    return event if older <= 0 else replace(event, time=zero, facts={**event.facts, "before": round(older, 6)})


def _explained(explainer: Explainer | None, events: Iterable[Event]) -> list[Event]:
    """The events, each after what explains the ids that it is the first to name."""
    if explainer is None:
        return list(events)
    told: list[Event] = []
    for event in events:
        vocab = explainer.vocab(event.time, explainer.new_ids(event))
        told += (event,) if vocab is None else (vocab, event)
    return told
