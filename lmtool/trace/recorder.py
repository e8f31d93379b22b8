"""What becomes of events while they are recorded: redacted, their words explained, large values kept once, written."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from lmtool.trace.blobs import LARGE, BlobKeeper
from lmtool.trace.events import Frame, Parsed, Request
from lmtool.trace.redaction import Redaction, suspects
from lmtool.trace.vocabulary import Explainer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lmtool.trace.events import Event
    from lmtool.trace.vocabulary import Spell
    from lmtool.trace.writer import TraceWriter

MOST_WAITING = 2**28
"""Characters that may wait for the disk."""


class Recorder:
    """Records events into one trace, as they come. `take` never touches the disk; call `flush` every 100 ms.

    Times must not go backwards.
    """

    def __init__(self, writer: TraceWriter, redaction: Redaction, spell: Spell | None = None) -> None:
        """Record into `writer`; spell: explains ids, none are explained without it."""
        self._writer = writer
        self._redaction = redaction
        self._explainer = None if spell is None else Explainer(spell)
        self._blobs = BlobKeeper()
        self.suspects: Counter[str] = Counter()
        """What looked like a key, with its middle left out, and how often."""

    @property
    def overrun(self) -> bool:
        """Whether more waits for the disk than should be held in memory."""
        return self._writer.waiting_bytes > MOST_WAITING

    def take(self, events: Iterable[Event]) -> None:
        """Record these events."""
        for event in events:
            new = self._explainer.new_ids(event) if self._explainer is not None else ()
            told = self._redaction.apply(event)
            if told is None:
                continue
            self._suspect(told)
            if new and (vocab := self._vocab(event.time, new)) is not None:
                self._write(vocab)  # first, so that whoever reads on can read the event
            for one in self._blobs.lighten(told) if _is_large(told) else (told,):
                self._write(one)

    def _write(self, event: Event) -> None:
        time = self._writer.time(event.time)
        self._writer.write(event if time == event.time else replace(event, time=time))

    def _vocab(self, time: float, new: Iterable[int]) -> Event | None:
        assert self._explainer is not None
        return self._explainer.vocab(time, [i for i in new if self._redaction.wants(i)])

    def _suspect(self, event: Event) -> None:
        if isinstance(event, Request) or (isinstance(event, Frame) and event.direction == ">" and not _is_large(event)):
            self.suspects.update(suspects(event))

    def flush(self) -> None:
        """Hand what was recorded to the operating system. Raises `OSError`."""
        self._writer.flush()

    def close(self, time: float) -> None:
        """Flush and write the end record; a trace in which nothing happened is removed. Raises `OSError`."""
        if self.counts[0]:
            self._writer.close(time)
        else:
            self._writer.remove()

    def abandon(self) -> None:
        """Leave the trace as it is on the disk: cut."""
        self._writer.abandon()

    @property
    def counts(self) -> tuple[int, int]:
        """Events and tokens so far."""
        return self._writer.events, self._writer.tokens


def _is_large(event: Event) -> bool:
    """Whether an event may hold values for blobs; told without writing it again."""
    content = event.content if isinstance(event, Frame) else event.body if isinstance(event, Request) else None
    if not isinstance(content, Parsed):
        return False
    entries = content.value if isinstance(content.value, list) else [content.value]
    members = [member for entry in entries if isinstance(entry, dict) for member in entry.values()]
    # The shortest element takes three characters in a list ("1, "), seven in an object.
    return any(len(one) > LARGE // 64 for one in members if isinstance(one, dict | list | str))
