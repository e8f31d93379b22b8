"""What becomes of events while they are recorded: redacted, token ids explained, large values kept once, written."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeAlias

from lmtool.trace.content import JsonText, decoded
from lmtool.trace.events import Frame, Message, Request, Vocab, token_entries
from lmtool.trace.large_values import LargeValues, may_be_large
from lmtool.trace.redaction import Redaction, entry_token_ids, likely_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lmtool.trace.events import Event
    from lmtool.trace.writer import TraceWriter

MAX_WAITING = 2**28
"""Characters that may wait for the disk."""
LONGEST_NAME = 64
"""Characters of a special token's name."""
_ID_FIELDS = ("prompt", "scored", "append")

TokenBytes: TypeAlias = "Callable[[int], bytes]"
"""The bytes that a token id adds to a text."""


class NamesTokens(Protocol):
    """A tokenizer, as far as traces need one."""

    def piece(self, token: int, /) -> bytes:
        """The bytes that an id adds to a text; none for a special one."""

    def token(self, token: int, /) -> str | None:
        """An id's spelling in the vocabulary."""


@dataclass(frozen=True, slots=True)
class TokenSpelling:
    """`TokenBytes` of a tokenizer, which knows the names of special tokens as well."""

    tokenizer: NamesTokens

    def __call__(self, token: int) -> bytes:
        """The bytes that an id adds to a text."""
        return self.tokenizer.piece(token)

    def name(self, token: int) -> str:
        """What a token is called that adds no text; empty for any other."""
        return "" if self.tokenizer.piece(token) else (self.tokenizer.token(token) or "")[:LONGEST_NAME]


class VocabularyEvents:
    """Explains each token id once, before the event that first names it."""

    def __init__(self, token_bytes: TokenBytes) -> None:
        """token_bytes: spells ids; a `TokenSpelling` names special ones, too."""
        self._token_bytes = token_bytes
        self._explained: set[int] = set()

    def new_ids(self, event: Event) -> list[int]:
        """The ids that an event names and that have not been explained, each once."""
        if not isinstance(event, Frame):
            return []
        explained = self._explained
        if event.direction == "<":
            ids = [i for entry in token_entries(event) for i in entry_token_ids(entry) if i not in explained]
        else:
            ids = [i for i in _request_ids(event) if i not in explained]
        return list(dict.fromkeys(ids))

    def vocab(self, time: float, ids: Iterable[int]) -> Vocab | None:
        """The event that explains these ids, which count as explained from now on; None for no ids."""
        tokens = {i: decoded(self._token_bytes(i)) for i in ids}
        self._explained.update(tokens)
        spelling = self._token_bytes
        names = {i: name for i in tokens if (name := spelling.name(i))} if isinstance(spelling, TokenSpelling) else {}
        return Vocab(time, 0, tokens, names) if tokens else None


def _request_ids(frame: Frame) -> list[int]:
    payload = frame.content.value if isinstance(frame.content, JsonText) else None
    if not isinstance(payload, dict):
        return []
    lists = [payload.get(name) for name in _ID_FIELDS]
    return [i for ids in lists if isinstance(ids, list) for i in ids if type(i) is int and i >= 0]


class Recorder:
    """Records events into one trace, as they come. `record` never touches the disk; call `flush` every 100 ms.

    Times must not go backwards.
    """

    def __init__(self, writer: TraceWriter, redaction: Redaction, token_bytes: TokenBytes | None = None) -> None:
        """Record into `writer`; token_bytes: explains ids, none are explained without it."""
        self._writer = writer
        self._redaction = redaction
        self._vocabulary = None if token_bytes is None else VocabularyEvents(token_bytes)
        self._large_values = LargeValues()
        self.suspects: Counter[str] = Counter()
        """What looked like a key, with its middle left out, and how often."""

    def explain_by(self, token_bytes: TokenBytes) -> None:
        """Explain the ids of events to come."""
        self._vocabulary = VocabularyEvents(token_bytes)

    @property
    def overrun(self) -> bool:
        """Whether more waits for the disk than may stay in memory."""
        return self._writer.waiting_bytes > MAX_WAITING

    def record(self, events: Iterable[Event]) -> None:
        """Record these events."""
        for event in events:
            redacted = self._redaction.apply(event)
            if redacted is None:
                continue
            is_sent = isinstance(redacted, Frame | Message) and redacted.direction == ">" and not may_be_large(redacted)
            if is_sent or isinstance(redacted, Request):
                self.suspects.update(likely_keys(redacted))
            if self._vocabulary is not None and self._redaction.explains:
                new_ids = self._vocabulary.new_ids(redacted)
                if (vocab := self._vocabulary.vocab(event.time, new_ids)) is not None:
                    self._write(vocab)  # first, so that whoever reads on can read the event
            for one in self._large_values.take_out(redacted) if may_be_large(redacted) else (redacted,):
                self._write(one)

    def _write(self, event: Event) -> None:
        time = self._writer.time(event.time)
        self._writer.write(event if time == event.time else replace(event, time=time))

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
