"""The client's handle on one stream of a server: cancelled there, paused here."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

from lmtool.core.interfaces import QueuePlace
from lmtool.core.streams import failure
from lmtool.core.types import TokenOutput
from lmtool.protocol.lmtp.messages import System

if TYPE_CHECKING:
    import asyncio

    from lmtool.core.errors import LmtoolError
    from lmtool.core.interfaces import Sink
    from lmtool.core.types import GenerateRequest, ScoreRequest
    from lmtool.protocol.lmtp.notices import Notice


class Link(Protocol):
    """The connection that a stream is on."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that it belongs to."""

    def cancel(self, stream: RemoteStream) -> None:
        """End the stream at the server."""


class RemoteStream:
    """The handle on one stream of a server.

    The wire has no way to pause one stream of several, so a paused stream's outputs are buffered here: at most as many
    as the request allows tokens. Its neighbours go on.
    """

    __slots__ = ("_buffer", "_link", "_paused", "ended", "expires", "heard", "key", "place", "request", "sink")

    def __init__(self, link: Link, key: str, request: GenerateRequest | ScoreRequest, sink: Sink) -> None:
        self._link = link
        self.key = key
        """The stream's id on the wire."""
        self.request = request
        self.sink = sink
        self.ended = False
        """True if the last output was handed over, or is about to be."""
        self.place: QueuePlace | None = None
        self.heard = 0.0
        """When the server last sent something about it, in the loop's time."""
        self.expires = math.inf
        """When its deadline is over, where the server does not keep it."""
        self._paused = False
        self._buffer: list[TokenOutput] = []

    def cancel(self) -> None:
        """End the stream here at once, and at the server when the message gets there."""
        if not self.ended:
            self.ended = True
            self._buffer.clear()
            self._link.cancel(self)

    def ending(self, error: LmtoolError | None) -> TokenOutput:
        """The last output of a stream that this client ends. error: why, where that is not its submitter's wish."""
        stream_id = self.request.stream_id
        return TokenOutput(stream_id, finish_reason="cancelled") if error is None else failure(stream_id, error)

    def pause(self) -> None:
        """Buffer outputs until `resume`."""
        self._paused = True

    def resume(self) -> None:
        """Hand over buffered outputs, in the loop's next turn, and go on."""
        self._paused = False
        if self._buffer:
            self._link.loop.call_soon(self._release)

    def _release(self) -> None:
        if self._buffer and not self._paused:
            outputs, self._buffer = self._buffer, []
            self.ended = outputs[-1].last
            self.sink(outputs)

    def note(self, event: Notice, now: float) -> None:
        """Take note of what the server has sent about it beside its outputs."""
        self.heard = now
        if isinstance(event, System):
            place = event.system.place
            self.place = None if place is None else QueuePlace(place, event.system.seconds)

    def queue_place(self) -> QueuePlace | None:
        """Where it waits, by the server's last word, see `interfaces.Queued`."""
        return self.place

    def buffers(self, output: TokenOutput) -> bool:
        """Buffer an output while paused, and until earlier ones were handed over; return whether it was buffered."""
        self.place = None
        if self._paused or self._buffer:
            self._buffer.append(output)
            return True
        self.ended = output.last
        return False
