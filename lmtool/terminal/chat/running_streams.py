"""Streams in flight: submits requests, yields outputs frame by frame, each with its stream's record."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeAlias

from lmtool.core.errors import (
    ConnectError,
    LmtoolError,
    LocalProtocolError,
    RemoteProtocolError,
    ServerError,
    TimeLimitError,
    rebuilt,
)
from lmtool.core.logprobs.mode import mode_of
from lmtool.core.types import GenerateRequest, TokenOutput
from lmtool.terminal.chat.stream_record import StreamRecord

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from lmtool.core.interfaces import StreamHandle, TokenModel
    from lmtool.core.types import ScoreRequest

Arrival: TypeAlias = tuple[StreamRecord, float, TokenOutput]
"""The stream's record, the time in seconds, the output."""

CANCEL_TIMEOUT = 0.5
"""Seconds to wait for the ends of cancelled streams."""

_ERRORS: tuple[type[LmtoolError], ...] = (ConnectError, LocalProtocolError, RemoteProtocolError, TimeLimitError)


class RunningStreams:
    """Submits requests to a model and yields their outputs in order of arrival."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._frames: asyncio.Queue[tuple[float, Sequence[TokenOutput] | Callable[[], None]]] = asyncio.Queue()
        self._running: dict[int, tuple[StreamRecord, StreamHandle]] = {}

    @property
    def running(self) -> list[StreamRecord]:
        """Records of the streams that have not ended."""
        return [record for record, _ in self._running.values()]

    def submit(self, model: TokenModel, request: GenerateRequest | ScoreRequest) -> StreamRecord:
        """Start a stream; its `stream_id` is an integer that no running stream has."""
        index = request.stream_id
        assert isinstance(index, int)
        assert index not in self._running
        k = request.sampling.top_logprobs if isinstance(request, GenerateRequest) else request.top_logprobs
        record = StreamRecord(index, self._clock(), k, mode_of(request))
        handle = model.submit(request, lambda outputs: self._frames.put_nowait((self._clock(), outputs)))
        self._running[index] = record, handle
        return record

    def cancel(self) -> None:
        """Cancel every running stream."""
        for _, handle in self._running.values():
            handle.cancel()

    def call(self, action: Callable[[], None]) -> None:
        """Call `action` once everything that was received before has been taken."""
        self._frames.put_nowait((self._clock(), action))

    async def frame(self) -> list[Arrival]:
        """Wait for the next outputs; those that arrived together come together."""
        moment, outputs = await self._frames.get()
        arrivals: list[Arrival] = []
        if callable(outputs):
            outputs()
            return arrivals
        for output in outputs:
            assert isinstance(output.stream_id, int)
            entry = self._running.get(output.stream_id)
            if entry is None:
                continue  # output of a cancelled stream
            record, _ = entry
            record.add(moment, output)
            if output.last:
                del self._running[output.stream_id]
            arrivals.append((record, moment, output))
        return arrivals

    async def frames(self) -> AsyncIterator[list[Arrival]]:
        """Yield outputs until every stream has ended."""
        while self._running or not self._frames.empty():
            yield await self.frame()

    async def wind_down(self) -> list[Arrival]:
        """Cancel every stream; returns the outputs until all have ended, or half a second has passed."""
        self.cancel()
        late: list[Arrival] = []
        try:
            async with asyncio.timeout(CANCEL_TIMEOUT):
                while self._running:
                    late += await self.frame()
        except TimeoutError:
            self._running.clear()
        return late


def error_of(output: TokenOutput) -> LmtoolError:
    """The exception of a failed stream, which decides the exit status: connection, protocol, or the server's."""
    kind = next((kind for kind in _ERRORS if kind.code == output.error_code), ServerError)
    return rebuilt(kind, output.error or "the stream failed", output.error_hints)
