"""Streams in flight: requests go in, what arrives comes out frame by frame, each with its record."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from lmtool.cli.talking.stats import Record
from lmtool.errors import (
    ConnectError,
    LmtoolError,
    LocalProtocolError,
    RemoteProtocolError,
    ServerError,
    TimeLimitError,
)
from lmtool.logprobs.mode import mode_of
from lmtool.types import GenerateRequest, TokenOutput

if TYPE_CHECKING:
    from lmtool.interfaces import StreamHandle, TokenModel
    from lmtool.types import ScoreRequest

Arrival: TypeAlias = tuple[Record, float, TokenOutput]
"""Whose, when (seconds), what."""

CANCEL_PATIENCE = 0.5
"""Seconds that a server gets to confirm a CANCEL before we leave."""

_ERRORS: tuple[type[LmtoolError], ...] = (ConnectError, LocalProtocolError, RemoteProtocolError, TimeLimitError)


class Talk:
    """Submits requests to a model and hands out what comes back, in order of arrival."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._frames: asyncio.Queue[tuple[float, Sequence[TokenOutput]]] = asyncio.Queue()
        self._running: dict[int, tuple[Record, StreamHandle]] = {}

    @property
    def running(self) -> list[Record]:
        """Records of the streams that have not ended."""
        return [record for record, _ in self._running.values()]

    def submit(self, model: TokenModel, request: GenerateRequest | ScoreRequest) -> Record:
        """Start a stream; its `stream_id` must be a whole number, not running here."""
        index = request.stream_id
        assert isinstance(index, int)
        assert index not in self._running
        asked = request.sampling.top_logprobs if isinstance(request, GenerateRequest) else request.top_logprobs
        record = Record(index, self._clock(), asked, mode_of(request))
        self._running[index] = record, model.submit(request, self._sink)
        return record

    def cancel(self) -> None:
        """Ask for the end of every running stream."""
        for _, handle in self._running.values():
            handle.cancel()

    async def frame(self) -> list[Arrival]:
        """Wait for what arrives next; outputs that arrived together come together."""
        moment, outputs = await self._frames.get()
        arrivals = []
        for output in outputs:
            assert isinstance(output.stream_id, int)
            entry = self._running.get(output.stream_id)
            if entry is None:
                continue  # what a cancelled stream still sent
            record, _ = entry
            record.add(moment, output)
            if output.last:
                del self._running[output.stream_id]
            arrivals.append((record, moment, output))
        return arrivals

    async def frames(self) -> AsyncIterator[list[Arrival]]:
        """Yield what arrives until every stream has ended."""
        while self._running:
            yield await self.frame()

    async def wind_down(self) -> list[Arrival]:
        """Return what still comes after `cancel`, waiting half a second at most for the endings."""
        self.cancel()
        late: list[Arrival] = []
        try:
            async with asyncio.timeout(CANCEL_PATIENCE):
                while self._running:
                    late += await self.frame()
        except TimeoutError:
            self._running.clear()
        return late

    def _sink(self, outputs: Sequence[TokenOutput]) -> None:
        self._frames.put_nowait((self._clock(), outputs))


def error_of(output: TokenOutput) -> LmtoolError:
    """Return the error that a failed stream stands for, with its exit code: connection, protocol, or the server's."""
    for kind in _ERRORS:
        if output.error_code == kind.code:
            return kind(output.error or "")
    return ServerError(output.error or "the stream failed")
