"""Longest waits of a client for its server, and the end of streams that exceed them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmtool.core.errors import TimeLimitError, deadline_error
from lmtool.core.resuming import STREAM_SECONDS

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from lmtool.core.errors import LmtoolError
    from lmtool.core.resuming import ResumeOptions
    from lmtool.protocol.lmtp.remote_stream import RemoteStream


@dataclass(frozen=True, slots=True)
class WaitLimits:
    """Seconds; each counts from the last message of the server about the same request."""

    answer: float = 60.0
    """For an answer to MODEL_INFO, MODELS, BUFFER or WATCH."""
    load: float = 600.0
    """The same once the server has reported a load, and for the first answer of a process that this client started."""
    stream: float = STREAM_SECONDS
    """For the next entry of a stream, or a notice of what holds it up (SYS-1)."""

    @classmethod
    def of(cls, resume: ResumeOptions) -> WaitLimits:
        """Those under `Resuming`, which keeps a shorter limit behind the first token itself."""
        return cls(stream=max(resume.first_token_timeout, resume.token_timeout or 0.0))


class StreamLimits:
    """Ends the streams of one connection that the server is silent about, and those past a deadline it does not keep.

    Belongs to one event loop.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        streams: Mapping[str, RemoteStream],
        silence: float,
        end: Callable[[RemoteStream, LmtoolError], None],
    ) -> None:
        """streams: those that run. silence: `WaitLimits.stream`. end: called with a stream to end, and why."""
        self._loop = loop
        self._streams = streams
        self._silence = silence
        self._end = end
        self._timer: asyncio.TimerHandle | None = None

    def start(self, stream: RemoteStream, *, keep_deadline: bool) -> None:
        """Count from now on. keep_deadline: whether the server does not know deadlines."""
        stream.heard = self._loop.time()
        if keep_deadline and stream.request.deadline is not None:
            stream.expires = stream.heard + stream.request.deadline
        due = self._due(stream)
        if self._timer is None or due < self._timer.when():
            self._schedule(due)

    def close(self) -> None:
        """Count no longer."""
        if self._timer is not None:
            self._timer.cancel()

    def _due(self, stream: RemoteStream) -> float:
        return min(stream.heard + self._silence, stream.expires)

    def _schedule(self, when: float) -> None:
        self.close()
        self._timer = self._loop.call_at(when, self._check)

    def _check(self) -> None:
        now, self._timer = self._loop.time(), None
        for stream in [one for one in self._streams.values() if self._due(one) <= now]:
            late = now >= stream.expires and stream.request.deadline is not None
            error = TimeLimitError(f"the server has sent nothing for this stream within {self._silence:g} s")
            error.retryable = False  # waiting again as long would bring nothing either
            self._end(stream, deadline_error(stream.request.deadline or 0.0) if late else error)
        if self._streams:
            self._schedule(min(map(self._due, self._streams.values())))
