"""Whose an entry of an LMTP server's frame is (LMTP, STR-2, STR-5, ERR-6)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

from lmtool.lmtp.frames import stream_key

if TYPE_CHECKING:
    from lmtool.lmtp.frames import Entry, Key

T = TypeVar("T")
_START_STREAMS = ("GENERATE", "SCORE")
ENDED_KEPT = 1000
"""Streams of a connection that are remembered after their end; what comes for an older one counts as unannounced."""


class RequestTable(Generic[T]):
    """The requests of one connection by stream id.

    What comes for an id after its stream's end is still that stream's, until another request names the id or
    `ENDED_KEPT` other streams have ended.
    """

    def __init__(self) -> None:
        self.holders: dict[Key, T] = {}
        """The stream that has an id now, or had it last."""
        self._ended: dict[Key, None] = {}
        """Ids whose stream has ended, in order."""
        self._queued: dict[Key, deque[T]] = {}
        """Requests that named the id of a stream that runs: refused, or next."""
        self._questions: dict[Key, deque[T]] = {}
        """Requests that start no stream, such as MODEL_INFO."""
        self._answered_ids: set[Key] = set()
        """Ids whose questions have all been answered; the last one is kept, for answers too many."""

    @property
    def any_queued(self) -> bool:
        """Whether an id may change hands when its stream ends."""
        return bool(self._queued)

    def add(self, command: str | None, key: Key, request: T) -> None:
        """A request that bears this id."""
        if command not in _START_STREAMS:
            if key in self._answered_ids:
                self._answered_ids.discard(key)
                del self._questions[key]
            self._questions.setdefault(key, deque()).append(request)
        elif key not in self.holders or key in self._ended:
            self._ended.pop(key, None)
            self.holders[key] = request
        else:
            self._queued.setdefault(key, deque()).append(request)

    def owner(self, command: str | None, entry: Entry) -> T | None:
        """The request that an entry answers; None where nobody asked. Call it once for each entry, in order."""
        key = stream_key(entry.get("stream_id"))
        questions = self._questions.get(key)
        if command == "MSG":
            failed = entry.get("error") is not None
            if failed and key in self._queued:
                return self._next(key)
            unanswered = questions is not None and key not in self._answered_ids
            if questions is not None and (entry.get("model_info") is not None or (failed and unanswered)):
                return self._answer(key, questions)
        return self.holders.get(key, questions[0] if questions else None)

    def _answer(self, key: Key, questions: deque[T]) -> T:
        """The oldest of these questions, which has its answer now."""
        if len(questions) > 1:
            return questions.popleft()
        self._answered_ids.add(key)
        return questions[0]

    def _next(self, key: Key) -> T:
        queued = self._queued[key]
        request = queued.popleft()
        if not queued:
            del self._queued[key]
        return request

    def end(self, key: Key) -> None:
        """The stream that has this id is over: the id is free, or the next request's."""
        if key in self._queued:
            self.holders[key] = self._next(key)
            return
        self._ended[key] = None
        if len(self._ended) > ENDED_KEPT:
            oldest = next(iter(self._ended))
            del self._ended[oldest], self.holders[oldest]

    def open_requests(self) -> list[T]:
        """Those without an end."""
        left = [request for key, request in self.holders.items() if key not in self._ended]
        left += [request for queued in self._queued.values() for request in queued]
        return left + [q for key, several in self._questions.items() if key not in self._answered_ids for q in several]
