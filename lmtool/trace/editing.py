"""Cut, merge and redact traces."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import TYPE_CHECKING

from lmtool.trace.codec import LargeValues, read_event, references, write_event
from lmtool.trace.events import Blob, Close, Drop, End, Open, Vocab, token_entries
from lmtool.trace.redaction import entry_token_ids, without_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from lmtool.trace.codec import Header
    from lmtool.trace.events import Event
    from lmtool.trace.reader import TraceReader
    from lmtool.trace.redaction import Redaction


@dataclass(slots=True)
class Cut:
    """Extracts the part between two times; call `part_of` with each event, in order.

    Open connections, vocabulary and referenced blobs from before the part are added at its start.
    """

    start: float
    """Seconds; becomes time 0 of the part."""
    stop: float
    """Seconds, inclusive."""
    connections: frozenset[int]
    """Connections to keep; empty for all."""
    blob: Callable[[str], Blob]
    """Returns the blob event of a hash."""
    _open: dict[int, Open] = field(default_factory=dict)
    _vocab: dict[int, str | bytes] = field(default_factory=dict)
    _names: dict[int, str] = field(default_factory=dict)
    _written: set[str] = field(default_factory=set)
    _started: bool = False

    def part_of(self, event: Event) -> Iterator[Event]:
        """Events to write for this one."""
        if isinstance(event, End | Blob) or (self.connections and event.connection not in (0, *self.connections)):
            return
        if event.time < self.start:
            self._remember(event)
        elif event.time <= self.stop:
            yield from self._beginning()
            yield from self._missing_blobs(event)
            yield replace(event, time=max(0.0, event.time - self.start))

    def _remember(self, event: Event) -> None:
        if isinstance(event, Open):
            self._open[event.connection] = event
        elif isinstance(event, Close | Drop):
            self._open.pop(event.connection, None)
        elif isinstance(event, Vocab):
            self._vocab.update(event.tokens)
            self._names.update(event.names)

    def _beginning(self) -> Iterator[Event]:
        if self._started:
            return
        self._started = True
        for event in self._open.values():
            yield replace(event, time=0.0)
        if self._vocab:
            yield Vocab(0.0, 0, self._vocab, self._names)

    def _missing_blobs(self, event: Event) -> Iterator[Event]:
        for sha256 in references(event):
            if sha256 not in self._written:
                self._written.add(sha256)
                yield replace(self.blob(sha256), time=max(0.0, event.time - self.start))


def merge(sources: Sequence[Iterable[Event]]) -> Iterator[Event]:
    """Events of several traces in order of time, each trace starting at 0; connections are renumbered."""
    numbers: dict[tuple[int, int], int] = {}
    blobs: set[str] = set()
    tagged = (zip(repeat(which), source, strict=False) for which, source in enumerate(sources))
    for which, event in heapq.merge(*tagged, key=lambda item: item[1].time):  # at equal times the first source's first
        if isinstance(event, End) or (isinstance(event, Blob) and event.sha256 in blobs):
            continue
        if isinstance(event, Blob):
            blobs.add(event.sha256)
        number = event.connection and numbers.setdefault((which, event.connection), len(numbers) + 1)
        yield replace(event, connection=number)


def merge_headers(headers: Sequence[Header]) -> Header:
    """Header of merged traces: the first one's, with the titles, redactions and covered rules of all."""
    first = headers[0]
    titles = [header.title for header in headers if header.title]
    return replace(
        first,
        title=" + ".join(titles) or None,
        redacted=tuple(dict.fromkeys(what for header in headers for what in header.redacted)),
        covers=tuple(dict.fromkeys(rule for header in headers for rule in header.covers)),
        times="numbered" if all(header.times == "numbered" for header in headers) else "measured",
    )


def redacted(reader: TraceReader, redaction: Redaction) -> Iterator[Event]:
    """Redacted events, with `***` for strings that look like keys; token ids that remain are explained."""
    large_values, style = LargeValues(), reader.header.json
    texts: dict[int, str | bytes] = {}
    names: dict[int, str] = {}
    for event in reader:
        if isinstance(event, Vocab) and redaction.explains and redaction.apply(event) is None:
            texts |= event.tokens
            names |= event.names
    for _, event in reader.with_offsets(whole=True):
        left = None if isinstance(event, Blob | End) else redaction.apply(event)
        if left is None:
            continue
        ids = {i for entry in token_entries(left) for i in entry_token_ids(entry) if i in texts}
        if ids:
            yield Vocab(event.time, 0, {i: texts.pop(i) for i in ids}, {i: names.pop(i) for i in ids if i in names})
        line = write_event(left, style)
        clean = without_keys(line)
        yield from large_values.take_out(left if clean is line else read_event(clean.encode(), style))
