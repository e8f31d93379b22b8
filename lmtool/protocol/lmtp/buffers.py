"""The buffers of one connection: named rows of token ids, bounded in number and bytes (SPEC.md, BUF)."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lmtool.core.errors import RequestError, UnknownBufferError
from lmtool.core.types import BufferSlice, GenerateRequest, MixedPrompt

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lmtool.core.types import ScoreRequest

ID_BYTES = array("i").itemsize
"""Bytes that a token id takes in a buffer."""


@dataclass(slots=True)
class _Buffer:
    ids: array[int] = field(default_factory=lambda: array("i"))
    ttl: float | None = None
    """Seconds without use after which it expires; None: never."""
    used: float = 0.0
    """When it was last used."""
    expired: bool = False
    """True if its ids are gone; the name stays known, so that nobody takes what is appended next for all of it."""
    reserved: int | None = None
    """Ids that a running stream may append at its end; None where no stream will."""


class Buffers:
    """Named rows of token ids. Times are seconds of any one clock. Every refusal leaves everything as it was.

    `UnknownBufferError` is for a buffer that is not there or has expired, `RequestError` for what cannot be done.
    """

    def __init__(self, max_buffers: int, max_bytes: int) -> None:
        """max_buffers: expired ones count too. max_bytes: of all together, at `ID_BYTES` an id."""
        self._max_buffers = max_buffers
        self._max_ids = max_bytes // ID_BYTES
        self._buffers: dict[str, _Buffer] = {}

    def length(self, name: str) -> int:
        """Ids of a buffer, 0 of one that is not there."""
        buffer = self._buffers.get(name)
        return 0 if buffer is None else len(buffer.ids)

    @property
    def memory_bytes(self) -> int:
        """Of the ids of all buffers."""
        return ID_BYTES * sum(len(buffer.ids) for buffer in self._buffers.values())

    def append(self, name: str, ids: Iterable[int], now: float) -> int:
        """Append ids, and make the buffer where there is none; its length then."""
        added = array("i", ids)
        buffer = self._to_write(name, len(added), now)
        buffer.ids.extend(added)
        return len(buffer.ids)

    def drop(self, name: str, now: float) -> None:
        """Forget a buffer, also one that has expired."""
        self.expire(now)
        buffer = self._buffers.get(name)
        if buffer is None:
            raise _unknown(name)
        _check_free(name, buffer)
        del self._buffers[name]

    def set_ttl(self, name: str, ttl: float, now: float) -> int:
        """Let a buffer expire after these seconds without use; its length."""
        buffer = self._known(name, now)
        buffer.ttl = ttl
        return len(buffer.ids)

    def ids(self, part: BufferSlice, now: float) -> array[int]:
        """The first ids of a buffer."""
        buffer = self._known(part.buffer, now)
        if part.length is not None and part.length > len(buffer.ids):
            raise RequestError(
                f"length is {part.length}, but buffer {part.buffer!r} has {len(buffer.ids)} ids",
                "append the rest first",
            )
        return buffer.ids[: part.length]

    def size(self, part: BufferSlice) -> int:
        """How many ids `ids` returns, at most."""
        length = self.length(part.buffer)
        return length if part.length is None else min(length, part.length)

    def reserve(self, name: str, most: int, now: float) -> None:
        """Keep room for the ids that a stream appends at its end, and make the buffer where there is none.

        Until `release` or `append_reserved` nothing else may change the buffer, and it does not expire.
        """
        self._to_write(name, most, now).reserved = most

    def append_reserved(self, name: str, ids: Iterable[int], now: float) -> None:
        """Append the ids of a stream that has ended, for which `reserve` was called."""
        buffer = self._buffers[name]
        buffer.ids.extend(array("i", ids))
        self.release(name, now)

    def release(self, name: str, now: float) -> None:
        """Give reserved room back: the stream has ended."""
        buffer = self._buffers[name]
        buffer.reserved, buffer.used = None, now

    def expire(self, now: float) -> None:
        """Give back the ids of the buffers that were not used for too long."""
        for buffer in self._buffers.values():
            if (at := _expiry(buffer)) is not None and at <= now:
                buffer.expired, buffer.ids = True, array("i")

    def next_expiry(self) -> float | None:
        """When the next buffer expires unless it is used before; None where none does."""
        return min((at for one in self._buffers.values() if (at := _expiry(one)) is not None), default=None)

    def _known(self, name: str, now: float) -> _Buffer:
        """A buffer that is there and has not expired, which is used now."""
        self.expire(now)
        buffer = self._buffers.get(name)
        if buffer is None:
            raise _unknown(name)
        if buffer.expired:
            raise UnknownBufferError(
                f"buffer {name!r} has expired: it was not used for {buffer.ttl:g} s", "drop it, and send its ids again"
            )
        buffer.used = now
        return buffer

    def _to_write(self, name: str, more: int, now: float) -> _Buffer:
        """A buffer that this many ids may be added to, a new one where there is none."""
        self.expire(now)
        buffer = self._known(name, now) if name in self._buffers else None
        if buffer is not None:
            _check_free(name, buffer)
        elif len(self._buffers) >= self._max_buffers:
            raise RequestError(f"{len(self._buffers)} buffers are the most that a connection may have", "drop one")
        used = sum(len(one.ids) + (one.reserved or 0) for one in self._buffers.values())
        if used + more > self._max_ids:
            raise RequestError(
                f"buffer {name!r} cannot take {more} ids more: of the {self._max_ids} that a connection's buffers may "
                f"have together, {used} are taken",
                "drop a buffer",
            )
        return self._buffers.setdefault(name, _Buffer(used=now))


def names_of(request: GenerateRequest | ScoreRequest) -> list[str]:
    """The buffers that a request names."""
    parts = request.prompt.parts if isinstance(request.prompt, MixedPrompt) else ()
    names = [part.buffer for part in parts if isinstance(part, BufferSlice)]
    if isinstance(request, GenerateRequest) and request.into is not None:
        names.append(request.into)
    return names


def _expiry(buffer: _Buffer) -> float | None:
    """When a buffer expires; None where it does not, or has."""
    if buffer.ttl is None or buffer.expired or buffer.reserved is not None:
        return None
    return buffer.used + buffer.ttl


def _check_free(name: str, buffer: _Buffer) -> None:
    if buffer.reserved is not None:
        raise RequestError(
            f"a stream that runs appends to buffer {name!r} at its end", "wait for its finish_reason, or cancel it"
        )


def _unknown(name: str) -> UnknownBufferError:
    return UnknownBufferError(f"buffer {name!r} is not known on this connection", "append to it first")
