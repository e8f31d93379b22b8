"""An LMTP server: WebSocket at `/`, or lines on a pipe, in front of any `TokenModel`."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from lmtool.core.errors import AccessDeniedError, ConnectError, RequestError
from lmtool.core.metrics import MetricFamily
from lmtool.net.access.asgi import is_trusted
from lmtool.net.access.caller import current_caller
from lmtool.net.access.watching import watch_refusal
from lmtool.protocol.lmtp.connection import Connection
from lmtool.protocol.lmtp.keepalive import expect_pongs
from lmtool.protocol.lmtp.messages import PROTOCOL_VERSION, SUBPROTOCOL
from lmtool.protocol.lmtp.peer_user import is_same_user

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from starlette.requests import Request

    from lmtool.core.errors import LmtoolError
    from lmtool.protocol.lmtp.plugs import Plugs
    from lmtool.protocol.lmtp.stdio import LineReader, LineWriter

_ON_A_PIPE = AccessDeniedError("over a pipe there are no other clients", "watch a server on a port")
_FLUSH_SECONDS = 2.0
_GOING_AWAY = 1001
_LATER = {"retry-after": "1"}
"""Seconds, as `OverloadedError` has them."""


class LmtpServer:
    """Offers a model to any number of clients."""

    def __init__(self, plugs: Plugs) -> None:
        self._plugs = plugs
        self._count = 0
        self._connections: set[Connection] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._draining: ConnectError | None = None

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._connections)

    @property
    def running(self) -> int:
        """Streams of all connections that have not ended, wherever they wait."""
        return sum(connection.streams for connection in self._connections)

    def routes(self) -> list[BaseRoute]:
        """Routes for a starlette application; serve it behind `access.asgi.Door`, with `uvicorn_options`."""
        return [WebSocketRoute("/", self._websocket), Route("/", self._welcome, methods=["GET"])]

    def metrics(self) -> list[MetricFamily]:
        """How many connections are open, and what they hold."""
        held, gauge = [connection.memory_bytes for connection in self._connections], MetricFamily.gauge
        return [
            gauge("connections", "Open LMTP connections.", len(self._connections)),
            gauge("buffer_bytes", "Ids in the buffers of LMTP connections.", sum(size for size, _ in held)),
            gauge("send_queue_bytes", "Answers over LMTP that wait for their readers.", sum(size for _, size in held)),
        ]

    async def drain(self, seconds: float) -> bool:
        """Take no new work, let running streams end, then close every connection.

        Streams still running after `seconds` end with an error. Returns whether all ended by themselves. Call it before
        asking uvicorn to exit, which would close the sockets at once.
        """
        self._draining = ConnectError("the server is shutting down", "connect again when it is back")
        for connection in self._connections:
            connection.refuse_new(self._draining, seconds)
        await self._within(seconds, [connection.idle() for connection in self._connections])
        finished = not any(connection.busy for connection in self._connections)
        for connection in self._connections:
            connection.fail(self._draining)
        await self._within(_FLUSH_SECONDS, [connection.flushed() for connection in self._connections])
        for connection in self._connections:
            connection.close()
        await self._within(_FLUSH_SECONDS, [self._empty.wait()])
        return finished

    @staticmethod
    async def _within(seconds: float, waits: Iterable[Awaitable[object]]) -> None:
        """Wait for all of these, but no longer than that."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.gather(*waits)

    async def _welcome(self, _request: Request) -> Response:
        return JSONResponse(
            {
                "protocol": "LMTP, the Language Model Transport Protocol",
                "lmtp": PROTOCOL_VERSION,
                "transport": "WebSocket at this address",
                "try": 'lmtool chat "Hello there max_tokens=5"',
            }
        )

    def _register(
        self,
        number: int,
        agent: str = "",
        may_watch: Callable[[], LmtoolError | None] = lambda: _ON_A_PIPE,
        *,
        trusted: bool,
    ) -> Connection:
        connection = Connection(number, self._plugs, may_watch, trusted=trusted)
        self._connections.add(connection)
        self._empty.clear()
        if self._plugs.tap is not None:
            self._plugs.tap.opened(number, agent)
        return connection

    def _close(self, connection: Connection, *, drained: bool = False) -> None:
        connection.close()
        self._connections.discard(connection)
        if self._plugs.tap is not None:
            code = _GOING_AWAY if drained else connection.close_code
            self._plugs.tap.ended(connection.number, "server" if drained else "client", code)
        if not self._connections:
            self._empty.set()

    def _refusal(self) -> Response | None:
        if len(self._connections) >= self._plugs.config.max_connections:
            sentence = f"{len(self._connections)} connections are open, the most there may be"
            return PlainTextResponse(sentence, 503, _LATER)
        if self._draining is not None:
            return PlainTextResponse(self._draining.message, 503, _LATER)
        return None

    async def _websocket(self, websocket: WebSocket) -> None:
        refusal = self._refusal()
        if refusal is not None:
            await websocket.send_denial_response(refusal)
            return
        self._count += 1
        agent, drained = websocket.headers.get("user-agent", ""), False
        trusted = is_trusted(websocket.scope)
        connection = self._register(self._count, agent, self._watch_right(websocket), trusted=trusted)
        try:
            await websocket.accept(SUBPROTOCOL if SUBPROTOCOL in websocket.scope["subprotocols"] else None)
            drained = await self._converse(websocket, connection)
        finally:
            self._close(connection, drained=drained)

    def _watch_right(self, websocket: WebSocket) -> Callable[[], LmtoolError | None]:
        """What tells why a client may not watch others."""
        return partial(
            watch_refusal,
            current_caller.get(),
            websocket.headers.items(),
            everybody=self._plugs.everybody_watches,
            same_user=is_same_user(websocket.scope),
        )

    async def _converse(self, websocket: WebSocket, connection: Connection) -> bool:
        """Read and write until the client leaves, stalls, or the server closes the connection; whether it did."""
        reader = asyncio.create_task(_read(websocket, connection))
        writer = asyncio.create_task(connection.write(websocket.send_text))
        try:
            await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            # The client's work stops before anything else is waited for.
            drained = writer.done() and not writer.cancelled() and writer.exception() is None
            connection.close()
            reader.cancel()
            writer.cancel()
            ends = await asyncio.gather(reader, writer, return_exceptions=True)
        _raise_unexpected(ends)
        if drained:
            with contextlib.suppress(WebSocketDisconnect):  # the client may leave in the same moment
                await websocket.close(_GOING_AWAY)
        return drained

    async def run_stdio(self, reader: LineReader, writer: LineWriter) -> None:
        """Serve one client: a frame a line. Returns when its requests have ended and all is answered."""
        connection = self._register(0, trusted=True)  # of the process that has started this one

        async def send(frame: str) -> None:
            writer.write(frame.encode() + b"\n")
            await writer.drain()

        writing = asyncio.create_task(connection.write(send))
        reading = asyncio.create_task(_read_lines(reader, connection))
        try:
            # A client that only closes its end still wants its answers; one that is gone makes the writing fail.
            await asyncio.wait((reading, writing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._close(connection)
            reading.cancel()
            ends = await asyncio.gather(reading, writing, return_exceptions=True)
        _raise_unexpected(ends)


def _raise_unexpected(ends: Iterable[BaseException | None]) -> None:
    """Raise what a reader or writer ended with, unless it is one of the ways in which clients leave."""
    for end in ends:
        if end is not None and not isinstance(end, WebSocketDisconnect | OSError | asyncio.CancelledError):
            raise end


async def _read(websocket: WebSocket, connection: Connection) -> None:
    await connection.room()
    while await _read_frame(websocket, connection):
        await connection.room()


async def _read_frame(websocket: WebSocket, connection: Connection) -> bool:
    """Read one frame, and keep nothing of it while the next one is waited for; False where the client left instead."""
    event = await websocket.receive()
    if event["type"] == "websocket.disconnect":
        connection.close_code = event.get("code")
        return False
    text = event.get("text")
    await connection.receive(text if text is not None else event["bytes"])
    if connection.extended:
        expect_pongs(websocket.scope)
    return True


async def _read_lines(reader: LineReader, connection: Connection) -> None:
    try:
        while await _read_line(reader, connection):
            await connection.room()
    except RequestError as error:
        connection.refuse(error)
    await connection.idle()
    await connection.flushed()


async def _read_line(reader: LineReader, connection: Connection) -> bool:
    """Read one line, and keep nothing of it while the next one is waited for; False at the end."""
    line = await reader.readline()
    if line.strip():
        await connection.receive(_text(line))
    return bool(line)


def _text(line: bytes) -> str | bytes:
    """A line's text; as it is where it is not UTF-8, to be refused as a binary frame is."""
    try:
        return line.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        return line
