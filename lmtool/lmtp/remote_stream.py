"""The client's handle on one stream of a server, which buffers the outputs of a paused one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmtool.interfaces import Sink
    from lmtool.types import GenerateRequest, ScoreRequest, TokenOutput


class RemoteStream:
    """The handle on one stream of a server.

    The wire has no way to pause one stream of several, so a paused stream's outputs are buffered here: at most as many
    as the request allows tokens. Its neighbours go on.
    """

    __slots__ = ("_buffer", "_loop", "_on_cancel", "_paused", "ended", "key", "request", "sink")

    def __init__(
        self, key: str, request: GenerateRequest | ScoreRequest, sink: Sink, on_cancel: Callable[[RemoteStream], None]
    ) -> None:
        """on_cancel: called once when the stream is cancelled before its end."""
        self._loop = asyncio.get_running_loop()
        self._on_cancel = on_cancel
        self.key = key
        """The stream's id on the wire."""
        self.request = request
        self.sink = sink
        self.ended = False
        """Whether the last output was handed over, or is about to be."""
        self._paused = False
        self._buffer: list[TokenOutput] = []

    def cancel(self) -> None:
        """End the stream here at once, and at the server when the message gets there."""
        if not self.ended:
            self.ended = True
            self._buffer.clear()
            self._on_cancel(self)

    def pause(self) -> None:
        """Buffer outputs until `resume`."""
        self._paused = True

    def resume(self) -> None:
        """Hand over buffered outputs, in the loop's next turn, and go on."""
        self._paused = False
        if self._buffer:
            self._loop.call_soon(self._release)

    def _release(self) -> None:
        if self._buffer and not self._paused:
            outputs, self._buffer = self._buffer, []
            self.ended = outputs[-1].last
            self.sink(outputs)

    def buffers(self, output: TokenOutput) -> bool:
        """Buffer an output while paused, and until earlier ones were handed over; return whether it was buffered."""
        if self._paused or self._buffer:
            self._buffer.append(output)
            return True
        self.ended = output.last
        return False
