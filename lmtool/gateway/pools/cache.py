"""Whole answers to equal requests, in memory or in a sqlite file, limited by size and age."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
import threading
import time
from collections import OrderedDict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from lmtool.core.errors import FileError
from lmtool.core.reasoning import SignedThought  # noqa: TC001  # msgspec reads the annotation
from lmtool.net.access.caller import caller_name
from lmtool.protocol.providers.answer_events import ChoiceFinished, TextDelta, TokenUsage, ToolCallDelta

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lmtool.gateway.pools.config import CacheConfig, PoolConfig
    from lmtool.gateway.pools.pool_request import PoolRequest
    from lmtool.protocol.providers.answer_events import AnswerEvent, ChatAnswer


class StoredCall(msgspec.Struct):
    """A tool call of an answer."""

    id: str
    name: str
    arguments: str


class StoredChoice(msgspec.Struct):
    """One choice of an answer."""

    text: str
    reason: str
    stop: str | None = None
    calls: list[StoredCall] = msgspec.field(default_factory=list)
    reasoning: str = ""
    signed_thoughts: list[SignedThought] = msgspec.field(default_factory=list)
    """Parts of `reasoning`, from its beginning on."""

    def thought_events(self, number: int) -> Iterator[AnswerEvent]:
        """What it thought, as the events of the choice with this number."""
        signed = 0
        for part in self.signed_thoughts:
            yield TextDelta(number, part.text, kind="reasoning", signature=part.signature)
            signed += len(part.text)
        if rest := self.reasoning[signed:]:
            yield TextDelta(number, rest, kind="reasoning")


class StoredAnswer(msgspec.Struct):
    """A whole answer."""

    member: str
    """The id of the one that gave it."""
    choices: list[StoredChoice]
    model: str | None = None
    ids: dict[str, str] = msgspec.field(default_factory=dict)
    usage: dict[str, int | None] = msgspec.field(default_factory=dict)

    @classmethod
    def of(cls, member: str, answer: ChatAnswer, ids: dict[str, str], model: str | None) -> StoredAnswer:
        """An answer that has ended."""
        choices = [
            StoredChoice(
                one.content,
                one.finish_reason or "stop",
                one.stop,
                [StoredCall(call.id, call.name, call.arguments) for call in one.tool_calls],
                "".join(one.reasoning),
                one.signed_thoughts,
            )
            for _, one in sorted(answer.choices.items())
        ]
        return cls(member, choices, model, ids, asdict(answer.usage))

    def events(self) -> Iterator[AnswerEvent]:
        """The events of the answer, in one go."""
        for number, choice in enumerate(self.choices):
            yield from choice.thought_events(number)
            if choice.text:
                yield TextDelta(number, choice.text)
            for at, call in enumerate(choice.calls):
                yield ToolCallDelta(number, at, call.id, call.name, call.arguments)
            yield ChoiceFinished(number, choice.reason, choice.stop)
        yield TokenUsage(**self.usage)


class _Store(Protocol):
    """Keeps bytes by key."""

    def get(self, key: str, oldest: float) -> bytes | None:
        """What was stored since then."""

    def put(self, key: str, data: bytes, now: float) -> None:
        """Store it."""

    def close(self) -> None:
        """Give everything back."""


@dataclass
class _Memory:
    max_bytes: int
    _entries: OrderedDict[str, tuple[float, bytes]] = field(default_factory=OrderedDict)
    _bytes: int = 0

    def get(self, key: str, oldest: float) -> bytes | None:
        stored, data = self._entries.get(key, (oldest - 1, None))
        if stored < oldest or data is None:
            self._discard(key)
            return None
        self._entries.move_to_end(key)
        return data

    def put(self, key: str, data: bytes, now: float) -> None:
        self._discard(key)
        self._entries[key] = now, data
        self._bytes += len(key) + len(data)
        while self._bytes > self.max_bytes:
            self._discard(next(iter(self._entries)))

    def _discard(self, key: str) -> None:
        _, data = self._entries.pop(key, (0.0, None))
        self._bytes -= 0 if data is None else len(key) + len(data)

    def close(self) -> None:
        self._entries.clear()


class _Sqlite:
    """One table; the least recently stored answers go first. Safe from any thread."""

    def __init__(self, path: str, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        file = Path(path).expanduser()
        try:
            self._database = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, stored REAL, data BLOB) WITHOUT ROWID"
            )
            self._database.execute("CREATE INDEX IF NOT EXISTS by_age ON answers (stored)")
            [[total]] = self._database.execute("SELECT coalesce(sum(length(key) + length(data)), 0) FROM answers")
        except sqlite3.Error as error:
            raise FileError(f"cannot use {path} as a cache: {error}", "check cache.path") from None
        self._bytes = int(total)

    def get(self, key: str, oldest: float) -> bytes | None:
        with self._lock:
            found = self._database.execute(
                "SELECT data FROM answers WHERE key = ? AND stored >= ?", (key, oldest)
            ).fetchone()
        return None if found is None else bytes(found[0])

    def put(self, key: str, data: bytes, now: float) -> None:
        with self._lock:
            self._delete("SELECT key, length(key) + length(data) FROM answers WHERE key = ?", (key,))
            self._database.execute("INSERT INTO answers VALUES (?, ?, ?)", (key, now, data))
            self._bytes += len(key) + len(data)
            while self._bytes > self._max_bytes:
                self._delete("SELECT key, length(key) + length(data) FROM answers ORDER BY stored LIMIT 64", ())

    def _delete(self, selecting: str, values: tuple[object, ...]) -> None:
        for key, size in self._database.execute(selecting, values).fetchall():
            self._database.execute("DELETE FROM answers WHERE key = ?", (key,))
            self._bytes -= size

    def close(self) -> None:
        with self._lock:
            self._database.close()


class AnswerCache:
    """The cache of one pool. Nothing partial, failed or sampled is kept, the last unless the configuration says so."""

    def __init__(self, config: CacheConfig, pool: PoolConfig) -> None:
        """Raises `FileError` for a sqlite file that cannot be used."""
        self._config = config
        self._scope = repr([(one.id, one.model, sorted(one.defaults.items())) for one in pool.members])
        self._blocking = config.kind == "sqlite"
        self._clock = time.time if self._blocking else time.monotonic  # a file outlives what a process counts
        self._store: _Store = (
            _Sqlite(config.path or "", config.max_bytes) if self._blocking else _Memory(config.max_bytes)
        )

    def key(self, request: PoolRequest) -> str | None:
        """What equal requests of one key have in common; None for one whose answer is not kept."""
        parameters = request.chat.parameters
        drawn = parameters.get("temperature") != 0 and parameters.get("seed") is None
        if request.chat.logprobs or (drawn and not self._config.sampled):
            return None
        described = asdict(request)
        described["chat"].pop("stream")
        data = msgspec.json.encode((self._scope, caller_name(), described), order="sorted")
        return hashlib.sha256(data).hexdigest()

    async def get(self, key: str) -> StoredAnswer | None:
        """The answer that was kept, None where there is none or it is too old."""
        oldest = self._clock() - self._config.max_age
        data = await asyncio.to_thread(self._store.get, key, oldest) if self._blocking else self._store.get(key, oldest)
        try:
            return None if data is None else msgspec.json.decode(data, type=StoredAnswer)
        except msgspec.DecodeError:
            return None  # of another version

    async def put(self, key: str, answer: StoredAnswer) -> None:
        """Keep an answer."""
        data = msgspec.json.encode(answer)
        if len(data) > self._config.max_bytes:
            return
        if self._blocking:
            await asyncio.to_thread(self._store.put, key, data, self._clock())
        else:
            self._store.put(key, data, self._clock())

    def close(self) -> None:
        """Close its file."""
        self._store.close()
