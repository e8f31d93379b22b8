"""A model slowed down to a pace that eyes can follow."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.interfaces import Sink, StreamHandle, TokenModel
    from lmtool.types import GenerateRequest, ModelInfo, ScoreRequest, TokenOutput


class Paced:
    """A `TokenModel` over another one: each stream gets about so many tokens a second, no two quite the same."""

    def __init__(self, model: TokenModel, tokens_per_second: float, seed: int = 0) -> None:
        """Slow `model` down. seed: of the differences between streams."""
        self._model = model
        self._interval = 1 / tokens_per_second
        self._random = random.Random(seed)  # noqa: S311 - a pace is no secret

    def submit(self, request: GenerateRequest | ScoreRequest, sink: Sink) -> StreamHandle:
        """Start a stream; see `TokenModel`."""
        stream = _PacedStream(sink, self._interval * self._random.uniform(0.7, 1.5))
        stream.handle = self._model.submit(request, stream.take)
        return stream

    async def info(self, model: str | None = None) -> ModelInfo:
        """What is served."""
        return await self._model.info(model)


class _PacedStream:
    """One stream: what came is handed on at its pace, and the model waits meanwhile."""

    def __init__(self, sink: Sink, interval: float) -> None:
        self._sink = sink
        self._interval = interval
        self._loop = asyncio.get_running_loop()
        self._waiting: list[TokenOutput] = []
        self._timer: asyncio.TimerHandle | None = None
        self._held = False
        self.handle: StreamHandle | None = None

    def take(self, outputs: Sequence[TokenOutput]) -> None:
        """Take what the model made."""
        self._waiting += outputs
        if self._timer is None and not self._held:
            self._hand_on()
        elif self.handle is not None:
            self.handle.pause()

    def _hand_on(self) -> None:
        self._timer = None
        if self._held or not self._waiting:
            return
        output = self._waiting.pop(0)
        if not output.last:
            self._timer = self._loop.call_later(self._interval, self._hand_on)
        if not self._waiting and self.handle is not None:
            self.handle.resume()
        self._sink([output])

    def cancel(self) -> None:
        """End the stream; what was kept back is not handed on."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.handle is not None:
            self.handle.resume()
            self.handle.cancel()

    def pause(self) -> None:
        """Hand nothing on."""
        self._held = True
        if self.handle is not None:
            self.handle.pause()

    def resume(self) -> None:
        """Go on."""
        self._held = False
        if self._timer is None:
            self._hand_on()
        elif self.handle is not None:
            self.handle.resume()
