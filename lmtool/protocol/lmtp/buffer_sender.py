"""Keeps one connection's server at what the client has in its buffers: makes them again there, and changes them."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING

from lmtool.core.streams import DeferredHandle
from lmtool.protocol.lmtp.client_buffers import ClientBuffers, SentBuffers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lmtool.core.errors import LmtoolError
    from lmtool.core.interfaces import Sink, StreamHandle
    from lmtool.core.types import GenerateRequest, ScoreRequest, TokenOutput
    from lmtool.protocol.lmtp.client_session import ClientSession
    from lmtool.protocol.lmtp.messages import BufferRequest


class BufferSender:
    """The sending half of one connection's buffers; the answers go to `sent`."""

    def __init__(
        self, session: ClientSession, contents: ClientBuffers | None, send: Callable[[str], None], seconds: float
    ) -> None:
        """contents: of all connections of the client; None: there is one only. send: takes frames in order.

        seconds: limit of `settled`.
        """
        self._session = session
        self._send = send
        self._seconds = seconds
        self.sent = SentBuffers(contents or ClientBuffers())
        """Which buffers the server has."""
        self._cancelled_ended = asyncio.Event()
        self._loss: LmtoolError | None = None
        self._blocked: set[asyncio.Task[None]] = set()
        """Begin requests that append to a buffer which a cancelled stream may yet append to."""

    def prepare(self, request: GenerateRequest | ScoreRequest) -> None:
        """Make the buffers that a request names where the server does not have them. Raises `RequestError`."""
        self._session.check_buffers(request)
        self._restore(self.sent.missing(request))

    def change(self, request: BufferRequest) -> str:
        """Change a buffer, which is made before where the server does not have it; the key of the answer."""
        if not request.drop:
            self._restore(self.sent.restore(request.name))
        key, frame = self._session.change_buffer(request)
        self.sent.begin_change(key, request)
        self._send(frame)
        return key

    def _restore(self, requests: Iterable[BufferRequest]) -> None:
        for request in requests:
            key, frame = self._session.change_buffer(request)
            self.sent.begin_change(key, request, restoring=True)
            self._send(frame)

    def add_output(self, key: str, output: TokenOutput) -> None:
        """A stream goes on."""
        if self.sent.add_output(key, output):
            self._cancelled_ended.set()

    async def settled(self, name: str | None) -> None:
        """Return once no cancelled stream may append to a buffer any more, the connection is lost, or time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._seconds):
                while self.sent.may_change(name) and self._loss is None:
                    self._cancelled_ended.clear()
                    await self._cancelled_ended.wait()

    def begin_settled(
        self, request: GenerateRequest, sink: Sink, begin: Callable[[GenerateRequest, Sink], StreamHandle]
    ) -> StreamHandle:
        """Begin a stream that appends to a buffer once no cancelled one may append to it any more."""
        handle = DeferredHandle(request.stream_id, sink)
        task = asyncio.get_running_loop().create_task(self._begin(handle, request, partial(begin, request, sink)))
        self._blocked.add(task)
        task.add_done_callback(self._blocked.discard)
        return handle

    async def _begin(self, handle: DeferredHandle, request: GenerateRequest, begin: Callable[[], StreamHandle]) -> None:
        await self.settled(request.into)
        if self._loss is not None:
            handle.fail(self._loss)
        handle.start(begin)

    def lose(self, error: LmtoolError) -> None:
        """The connection is lost: what waits is not waited for any more."""
        self._loss = error
        self._cancelled_ended.set()
