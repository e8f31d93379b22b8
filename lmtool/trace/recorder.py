"""Record events into trace files while a program runs: redact, explain token ids, store large values once, flush."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from lmtool import __version__
from lmtool.core.errors import FileError, ResourceError
from lmtool.trace.codec import LargeValues, may_be_large
from lmtool.trace.events import Close, Drop, Frame, JsonText, Message, Remark, Request, Vocab, decoded, token_entries
from lmtool.trace.redaction import Redaction, entry_token_ids, likely_keys
from lmtool.trace.server_tap import ServerTap
from lmtool.trace.writer import TraceWriter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from lmtool.settings.terminal import Output
    from lmtool.trace.codec import Header
    from lmtool.trace.events import Event
    from lmtool.trace.redaction import RedactedPart

MAX_WAITING = 2**28
"""Characters that may be queued for the disk."""
LONGEST_NAME = 64
"""Characters of a special token's name."""
_ID_FIELDS = ("prompt", "scored", "append")

TokenBytes: TypeAlias = "Callable[[int], bytes]"
"""Bytes that a token id adds to a text."""


class NamesTokens(Protocol):
    """The part of a tokenizer that traces need."""

    def piece(self, token: int, /) -> bytes:
        """Bytes that an id adds to a text; empty for a special one."""

    def token(self, token: int, /) -> str | None:
        """Spelling of an id in the vocabulary."""


@dataclass(frozen=True, slots=True)
class TokenSpelling:
    """`TokenBytes` of a tokenizer, which also names special tokens."""

    tokenizer: NamesTokens

    def __call__(self, token: int) -> bytes:
        """Bytes that an id adds to a text."""
        return self.tokenizer.piece(token)

    def name(self, token: int) -> str:
        """Name of a token that adds no text; empty for any other."""
        return "" if self.tokenizer.piece(token) else (self.tokenizer.token(token) or "")[:LONGEST_NAME]


class VocabularyEvents:
    """Explains each token id once, before the first event that uses it."""

    def __init__(self, token_bytes: TokenBytes) -> None:
        """token_bytes: spells ids; a `TokenSpelling` also names special ones."""
        self._token_bytes = token_bytes
        self._explained: set[int] = set()

    def new_ids(self, event: Event) -> list[int]:
        """Unexplained ids in an event, each once."""
        if not isinstance(event, Frame):
            return []
        explained = self._explained
        if event.direction == "<":
            ids = [i for entry in token_entries(event) for i in entry_token_ids(entry) if i not in explained]
        else:
            ids = [i for i in _request_ids(event) if i not in explained]
        return list(dict.fromkeys(ids))

    def vocab(self, time: float, ids: Iterable[int]) -> Vocab | None:
        """Event that explains these ids; they then count as explained. None without ids."""
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
    """Records events into one trace. `record` never touches the disk; call `flush` every 100 ms.

    Times must not decrease.
    """

    def __init__(self, writer: TraceWriter, redaction: Redaction, token_bytes: TokenBytes | None = None) -> None:
        """token_bytes: explains token ids; without it none are explained."""
        self._writer = writer
        self._redaction = redaction
        self._vocabulary = None if token_bytes is None else VocabularyEvents(token_bytes)
        self._large_values = LargeValues()
        self.suspects: Counter[str] = Counter()
        """Strings that look like keys, shortened, with their counts."""

    def explain_by(self, token_bytes: TokenBytes) -> None:
        """Explain the ids of later events."""
        self._vocabulary = VocabularyEvents(token_bytes)

    @property
    def overrun(self) -> bool:
        """True if more data waits for the disk than may stay in memory."""
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
                    self._write(vocab)  # before the event, so that readers can explain its ids
            for one in self._large_values.take_out(redacted) if may_be_large(redacted) else (redacted,):
                self._write(one)

    def _write(self, event: Event) -> None:
        time = self._writer.time(event.time)
        self._writer.write(event if time == event.time else replace(event, time=time))

    def flush(self) -> None:
        """Hand recorded data to the operating system. Raises `OSError`."""
        self._writer.flush()

    def close(self, time: float) -> None:
        """Flush and write the end record; a trace without events is removed. Raises `OSError`."""
        if self.counts[0]:
            self._writer.close(time)
        else:
            self._writer.remove()

    def abandon(self) -> None:
        """Leave the trace on the disk as it is, without an end record."""
        self._writer.abandon()

    @property
    def counts(self) -> tuple[int, int]:
        """Events and tokens so far."""
        return self._writer.events, self._writer.tokens


FLUSH_EVERY = 0.05
"""Seconds; data older than twice this survives if the process is killed."""


class Recording:
    """Records events of any number of connections, into one trace or one per connection.

    A failure to write never disturbs what is recorded: it is reported once, and recording stops.
    """

    def __init__(
        self, start: Callable[[int], Recorder], warn: Callable[[str], None], clock: Callable[[], float], *, split: bool
    ) -> None:
        """Start a recording; call in its event loop.

        start: begins the trace of a connection if `split`, otherwise one trace (number 0) at once. clock: seconds since
        the recording began. Raises what `start` raises.
        """
        self._start = start
        self._warn = warn
        self._clock = clock
        self._split = split
        self._recorders: dict[int, Recorder] = {} if split else {0: start(0)}
        self._to_close: dict[int, Recorder] = {}
        """Recorders of ended connections, to be closed."""
        self._closed_connections: set[int] = set()
        self._counts = (0, 0, 0)
        """Number of closed traces, their events and tokens."""
        self._suspects: Counter[str] = Counter()
        self._token_bytes: TokenBytes | None = None
        """Token speller for recorders to come, if it became known later."""
        self._stopping = asyncio.Event()
        self._task = asyncio.create_task(self._flush_often())
        self.failed = ""
        """Reason recording stopped; empty while it continues."""

    def record(self, number: int, events: Iterable[Event]) -> None:
        """Record the events of a connection, in order of time."""
        for event in events:  # consume all: events may be generated by parsing the connection
            if not self.failed and number not in self._closed_connections:
                self._record(number if self._split else 0, event)
            if self._split and isinstance(event, Close | Drop) and number in self._recorders:
                self._closed_connections.add(number)
                self._to_close[number] = self._recorders.pop(number)

    def _record(self, key: int, event: Event) -> None:
        try:
            if key not in self._recorders:
                self._recorders[key] = recorder = self._start(key)
                if self._token_bytes is not None:
                    recorder.explain_by(self._token_bytes)
            self._recorders[key].record((event,))
        except FileError as error:
            self._stop(error.message)
        except Exception as bug:  # noqa: BLE001 - a mistake of ours must not cut the connection that is recorded
            self._stop(f"lmtool failed ({type(bug).__name__}: {bug}), this is a bug")

    def explain_by(self, token_bytes: TokenBytes) -> None:
        """Explain token ids of later events, now that the model's tokenizer is known."""
        self._token_bytes = token_bytes
        for recorder in self._recorders.values():
            recorder.explain_by(token_bytes)

    async def _flush_often(self) -> None:
        while not self._stopping.is_set() and not self.failed:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), FLUSH_EVERY)
            for recorder in list(self._recorders.values()):
                await self._try(recorder.flush)
                if recorder.overrun:
                    self._stop("the disk is too slow for what is recorded")
            await self._close_all(self._to_close)

    async def _close_all(self, recorders: dict[int, Recorder]) -> None:
        """Write the end records, one trace after the other."""
        while recorders:
            number, recorder = next(iter(recorders.items()))
            await self._try(partial(recorder.close, self._clock()))
            recorder.abandon()
            del recorders[number]
            traces, events, tokens = self._counts
            self._counts = traces + 1, events + recorder.counts[0], tokens + recorder.counts[1]
            self._suspects.update(recorder.suspects)

    async def _try(self, action: Callable[[], None]) -> None:
        if self.failed:
            return
        try:
            await asyncio.to_thread(action)
        except OSError as error:
            self._stop(error.strerror or str(error))

    def _stop(self, reason: str) -> None:
        if not self.failed:
            self.failed = reason
            self._warn(f"RECORDING STOPPED: {reason}. Traffic is still forwarded; what was written can be read.")

    async def close(self) -> None:
        """Write pending events and the end records; a trace without events leaves no file."""
        self._stopping.set()
        await self._task
        await self._close_all(self._to_close)
        await self._close_all(self._recorders)

    def refuse_cut(self, path: str | Path) -> None:
        """Raise `ResourceError` if recording stopped early. path: where the recording is."""
        if self.failed:
            raise ResourceError(f"the recording {path} is cut: {self.failed}", "what was written can be read")

    def close_at_once(self) -> None:
        """Close in a process that is about to exit, ignoring a full disk."""
        while self._recorders:
            with contextlib.suppress(OSError):
                self._recorders.popitem()[1].close(self._clock())

    async def flush(self) -> None:
        """Hand recorded data to the operating system."""
        for recorder in list(self._recorders.values()):
            await self._try(recorder.flush)

    @property
    def counts(self) -> tuple[int, int, int]:
        """Traces, events and tokens so far."""
        counts = [recorder.counts for recorder in (*self._to_close.values(), *self._recorders.values())]
        traces, events, tokens = self._counts
        return traces + len(counts), events + sum(count for count, _ in counts), tokens + sum(n for _, n in counts)

    @property
    def suspects(self) -> Counter[str]:
        """Strings that look like keys, with their counts."""
        open_now = (recorder.suspects for recorder in (*self._to_close.values(), *self._recorders.values()))
        return sum(open_now, Counter(self._suspects))


def recorders(
    path: Path,
    header: Header,
    redact: tuple[RedactedPart, ...],
    token_bytes: TokenBytes | None = None,
    *,
    split: bool,
    prefix: str = "",
    overwrite: bool | None = None,
    note: str | None = None,
    private: bool = False,
) -> Callable[[int], Recorder]:
    """Factory for the recorders of a `Recording`.

    path: the file, or with `split` the folder, which is created. redact: parts to remove. prefix: of file names in that
    folder. overwrite, private: as for `TraceWriter`. note: a remark at the beginning. Raises `FileError`.
    """
    header, salt = replace(header, redacted=redact), secrets.token_bytes(16)
    if split:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"cannot make the folder {path}: {error.strerror}") from None

    def start(connection: int) -> Recorder:
        file = path / f"{prefix}{connection:04}.lmtp.jsonl" if split else path
        writer = TraceWriter(file, header, overwrite=overwrite, private=private)
        recorder = Recorder(writer, Redaction(redact, salt), token_bytes)
        if note is not None:
            writer.write(Remark(0.0, "note", 0, note))  # not redacted: the person who records wrote it
        return recorder

    return start


def new_clock() -> Callable[[], float]:
    """A clock that counts seconds from now."""
    start = time.monotonic()
    return lambda: time.monotonic() - start


def warn_of_keys(out: Output, recording: Recording) -> None:
    """Warn of strings in a recording that look like keys."""
    for key, times in recording.suspects.items():
        out.warn(f"the trace holds what looks like a key: {key} ({times} times); see: lmtool trace redact")


@contextlib.asynccontextmanager
async def record_session(
    out: Output,
    path: str,
    at: Literal["client", "server"],
    header: Header,
    token_bytes: TokenBytes | None = None,
    leaving: Callable[[Callable[[], None]], object] | None = None,
) -> AsyncIterator[SessionTap]:
    """Record this program's own connections into a new file, or into a folder with one file per connection.

    Headers that may hold keys are removed. leaving: called with the function that closes the recording in a process
    about to exit. A full disk ends the recording with a warning, and `ResourceError` at the end. Raises `FileError` if
    the file cannot be created.
    """
    now, split = datetime.now(UTC), path.endswith("/") or Path(path).is_dir()  # noqa: ASYNC240 - once, at the start
    created, by = now.strftime("%Y-%m-%dT%H:%M:%SZ"), f"lmtool {__version__}"
    header, prefix = replace(header, created=created, by=by, at=at, json="msgspec"), f"{now:%Y%m%d-%H%M%S}-"
    start = recorders(Path(path), header, ("headers",), token_bytes, split=split, prefix=prefix)
    clock = new_clock()
    recording = Recording(start, out.warn, clock, split=split)
    if leaving is not None:
        leaving(recording.close_at_once)
    try:
        yield SessionTap(recording, clock)
    finally:
        await recording.close()
        warn_of_keys(out, recording)
        _, events, tokens = recording.counts
        if recording.failed:
            pass
        elif not events:
            out.note(f"nothing was recorded into {path}")
        else:
            out.note(f"recorded into {path}: {events} events" + (f" · {tokens} tokens over LMTP" if tokens else ""))
    recording.refuse_cut(path)


class SessionTap(ServerTap):
    """Tap that records a program's own connections."""

    def __init__(self, recording: Recording, clock: Callable[[], float]) -> None:
        """clock: seconds since the recording began."""
        super().__init__(recording.record, clock)
        self.explain_by = recording.explain_by
