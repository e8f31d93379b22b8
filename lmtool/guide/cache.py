"""What was compiled lately: successes by bytes, failures by age."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from lmtool.errors import LmtoolError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_MAX_FAILURES = 4096


@dataclass(frozen=True, slots=True)
class _Kept(Generic[V]):
    value: V
    size: int


class Cache(Generic[K, V]):
    """Values within a number of bytes, the one unused longest out first; errors for a time. Not thread safe."""

    def __init__(self, max_bytes: int, failure_seconds: float) -> None:
        self._max_bytes = max_bytes
        self._failure_seconds = failure_seconds
        self._kept: OrderedDict[K, _Kept[V]] = OrderedDict()
        self._failures: OrderedDict[K, tuple[float, LmtoolError]] = OrderedDict()
        self.bytes = 0
        """Size of all values kept."""

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: K, now: float) -> V | LmtoolError | None:
        """Return the value kept for a key, or the error, or None. now: seconds of any clock that only goes forward."""
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
            return kept.value
        until, error = self._failures.get(key, (now, None))
        return error if now < until else None

    def put(self, key: K, value: V, size: int) -> None:
        """Keep a value of so many bytes, unless it is larger than all that may be kept."""
        self._failures.pop(key, None)
        self._drop(key)
        if size > self._max_bytes:
            return
        self._kept[key] = _Kept(value, size)
        self.bytes += size
        while self.bytes > self._max_bytes:
            self._drop(next(iter(self._kept)))

    def put_failure(self, key: K, error: LmtoolError, now: float) -> None:
        """Keep an error for the time that errors are kept."""
        self._failures[key] = (now + self._failure_seconds, error)
        self._failures.move_to_end(key)
        while self._failures and (len(self._failures) > _MAX_FAILURES or self._oldest_until() <= now):
            self._failures.popitem(last=False)

    def _oldest_until(self) -> float:
        return next(iter(self._failures.values()))[0]

    def _drop(self, key: K) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self.bytes -= kept.size
