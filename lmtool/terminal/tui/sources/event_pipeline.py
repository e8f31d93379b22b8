"""Pipeline between a wire and the inspector: redacts secrets, explains token ids, records on demand."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from lmtool.core.errors import UsageError
from lmtool.trace.codec import Header
from lmtool.trace.events import Close, Drop, Event, Frame, Open, Remark
from lmtool.trace.recorder import Recorder, Recording, VocabularyEvents
from lmtool.trace.redaction import Redaction
from lmtool.trace.writer import TraceWriter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lmtool.trace.recorder import TokenBytes


Feed: TypeAlias = Callable[[Sequence[Event]], None]
"""Takes events in order of time; called in the event loop, in batches; must not block or raise."""


@dataclass(frozen=True, slots=True)
class RecordingStatus:
    """Progress of a recording."""

    path: Path
    events: int
    tokens: int
    size_bytes: int
    """Size on disk, without the last tenth of a second."""
    failed: str = ""
    """Reason that it failed, such as a full disk; empty while it runs."""


class EventPipeline:
    """Passes events on, in order. Belongs to one event loop.

    Headers other than harmless ones never get through: neither to the screen nor into a recording.
    """

    def __init__(
        self, warn: Callable[[str], None], *, also: Callable[[int, Iterable[Event]], None] | None = None, at: str
    ) -> None:
        """Begin to count seconds.

        warn: gets a sentence when a recording fails. also: gets everything unchanged, such as another recording. at:
        where this listens, for the headers of recordings: `proxy`, `client`.
        """
        self._warn = warn
        self._also = also
        self._at = at
        self._began = time.monotonic()
        self._start = 0.0
        self._feed: Feed | None = None
        self._early: list[Event] = []
        self._redaction = Redaction(("headers",), secrets.token_bytes(16))
        self._spell: TokenBytes | None = None
        self._explainer: VocabularyEvents | None = None
        self._recording_explainer: VocabularyEvents | None = None
        """Explains ids again in a recording that starts late."""
        self._open: dict[int, Open] = {}
        self._zero = 0.0
        """Start of the recording by the clock, in seconds."""
        self._recording: Recording | None = None
        self._path = Path()
        self.model: dict[str, object] = {}
        """Facts of the model for the headers of recordings."""

    def clock(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began + self._start

    def set_clock(self, seconds: float) -> None:
        """Go on from here, such as from the end of a file."""
        self._began, self._start = time.monotonic(), seconds

    def feed_to(self, feed: Feed) -> None:
        """Pass everything to `feed` from now on, earlier events first."""
        self._feed = feed
        if self._early:
            early, self._early = self._early, []
            feed(early)

    def explain_by(self, spell: TokenBytes | None) -> None:
        """Explain token ids from now on."""
        self._spell = spell
        self._explainer = None if spell is None else VocabularyEvents(spell)
        self._recording_explainer = None if spell is None else VocabularyEvents(spell)

    def add(self, connection: int, events: Iterable[Event]) -> None:
        """Take the events of a connection, in order of time."""
        whole = list(events)
        if not whole:
            return
        if self._also is not None:
            self._also(connection, whole)
        some = (one if isinstance(one, Frame) else self._redaction.apply(one) for one in whole)
        clean = [event for event in some if event is not None]
        for event in clean:
            if isinstance(event, Open):
                self._open[event.connection] = event
            elif isinstance(event, Close | Drop):
                self._open.pop(event.connection, None)
        if self._recording is not None:
            self._record(clean)
        explained = _explained(self._explainer, clean)
        if self._feed is None:
            self._early += explained
        else:
            self._feed(explained)

    def note(self, sentence: str) -> None:
        """Add a note among the events."""
        self.add(0, [Remark(self.clock(), "note", 0, sentence)])

    # Recording.

    def _record(self, events: Iterable[Event]) -> None:
        """Record events and the vocabulary of their ids, with times since the start of the recording."""
        assert self._recording is not None
        explained = _explained(self._recording_explainer, events)
        self._recording.record(0, [replace(event, time=max(0.0, event.time - self._zero)) for event in explained])

    def start_recording(self, path: Path, history: Sequence[Event] = ()) -> None:
        """Record from now on, after the history of streams that still run; the trace begins with the first of it.

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
        self._recording_explainer = None if self._spell is None else VocabularyEvents(self._spell)
        self._record([*(_opened(one, zero) for one in self._open.values()), *history])

    async def stop_recording(self) -> RecordingStatus | None:
        """End the recording with its end record."""
        recording, self._recording = self._recording, None
        if recording is None:
            return None
        await recording.close()
        return self._status(recording)

    async def close(self) -> None:
        """End the recording. Raises `ResourceError` if it was cut."""
        if (recording := self._recording) is not None:
            await self.stop_recording()
            recording.refuse_cut(self._path)

    @property
    def recording(self) -> RecordingStatus | None:
        """Progress of the recording; None if nothing is recorded."""
        return None if self._recording is None else self._status(self._recording)

    def _status(self, recording: Recording) -> RecordingStatus:
        _, events, tokens = recording.counts
        try:
            size = self._path.stat().st_size
        except OSError:
            size = 0  # the file was removed while it was written
        return RecordingStatus(self._path, events, tokens, size, recording.failed)


def _opened(event: Open, zero: float) -> Open:
    """The beginning of a connection, which may be older than the recording."""
    older = zero - event.time
    return event if older <= 0 else replace(event, time=zero, facts={**event.facts, "before": round(older, 6)})


def _explained(explainer: VocabularyEvents | None, events: Iterable[Event]) -> list[Event]:
    """The events, each after the vocabulary of its new ids."""
    if explainer is None:
        return list(events)
    explained: list[Event] = []
    for event in events:
        vocab = explainer.vocab(event.time, explainer.new_ids(event))
        explained += (event,) if vocab is None else (vocab, event)
    return explained
