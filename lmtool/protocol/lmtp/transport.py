"""Transports of a client's frames: a WebSocket, or the stdin and stdout of a server that the client starts."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Protocol

from lmtool.core.errors import AccessDeniedError, ConnectError, TimeLimitError
from lmtool.net.access.outgoing import DENIED, as_headers, denied, misses_path, no_server, path_hints, reason_of
from lmtool.net.unix_sockets import open_websocket
from lmtool.net.websocket_closing import closing_words
from lmtool.protocol.lmtp.endpoint import CommandEndpoint, SocketEndpoint
from lmtool.protocol.lmtp.keepalive import Keepalive, PingLimits

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection
    from websockets.exceptions import ConnectionClosed

    from lmtool.protocol.lmtp.endpoint import Endpoint

MAX_RECEIVED_BYTES = 64 * 1024 * 1024
"""Longest frame of a server that is read: far above any sensible one, far below this machine's memory."""

_ABOVE_LIMIT = 429
"""The status of a handshake that is above a limit of the client's key or address."""

_OWN_CODES = 4000
"""Close codes from here on are a protocol's own; LMTP has none."""


class Transport(Protocol):
    """An open transport to a server."""

    async def send(self, frame: str) -> None:
        """Send a frame; returns when the next may be sent. Raises `ConnectError`."""

    async def receive(self) -> str | bytes:
        """Wait for the next frame. Raises `ConnectError` when there will be none."""

    def expect_pongs(self) -> None:
        """Take it for gone soon: the server is known to speak the extensions, and so answers pings at once."""

    async def close(self) -> None:
        """Close it."""


async def open_transport(
    endpoint: Endpoint, *, open_timeout: float | None, pings: PingLimits | None = None
) -> Transport:
    """Open a transport to a server, within `open_timeout` seconds.

    pings: to a server that speaks the extensions, over a WebSocket; a pipe ends with its process.

    Raises `ConnectError`, `AccessDeniedError` or `TimeLimitError`.
    """
    try:
        async with asyncio.timeout(open_timeout):
            if isinstance(endpoint, CommandEndpoint):
                return await _start(endpoint)
            return await _dial(endpoint, pings or PingLimits())
    except TimeoutError:
        name = endpoint.url if isinstance(endpoint, SocketEndpoint) else " ".join(endpoint.words)
        raise TimeLimitError(f"no connection to {name} within {open_timeout:g} s") from None


async def _dial(endpoint: SocketEndpoint, pings: PingLimits) -> Transport:
    connection = await dial(
        endpoint.url,
        endpoint.authorization,
        compression=None,
        ping_interval=None,  # ours
        max_size=MAX_RECEIVED_BYTES,
        proxy=None if endpoint.loopback else True,
    )
    return _SocketTransport(connection, endpoint.url, pings)


async def dial(url: str, authorization: str | None, **options: Any) -> ClientConnection:  # noqa: ANN401 - of many types
    """A connection to `ws://`, `wss://` or `unix:PATH`. Raises `ConnectError`, `AccessDeniedError`.

    options: those of `websockets`.
    """
    from websockets.exceptions import InvalidHandshake, InvalidURI

    try:
        headers = as_headers(authorization)
        return await open_websocket(url, additional_headers=headers, **{"open_timeout": None, **options})
    except (InvalidHandshake, InvalidURI, OSError) as error:
        raise connect_error(url, error, key_sent=authorization is not None) from None


def connect_error(url: str, error: Exception, *, key_sent: bool) -> ConnectError | AccessDeniedError:
    """The error for a handshake that failed in `websockets`. key_sent: whether credentials were sent."""
    response = getattr(error, "response", None)
    if response is None:
        return no_server(url, error, "LMTP")
    status, body = response.status_code, bytes(response.body or b"")[:300].decode("utf-8", "replace").strip()
    if status in DENIED and not misses_path(url, status, body):
        return denied(url, status, body, key_sent=key_sent)
    if status == _ABOVE_LIMIT:
        refused = ConnectError(f"the server at {url} takes no more connections of this client: {body}")
        seconds = response.headers.get("retry-after", "")
        refused.retry_after = int(seconds) if seconds.isdecimal() else 0
        return refused
    return no_server(url, error, "LMTP")


class _SocketTransport:
    def __init__(self, connection: ClientConnection, url: str, pings: PingLimits) -> None:
        self._connection = connection
        self._url = url
        self._pings = pings
        self._loss: str | None = None
        """Why it was cut from here."""
        self._sending: set[asyncio.Task[None]] = set()
        self._keepalive = Keepalive(asyncio.get_running_loop(), self._ping, self._give_up)
        self._keepalive.start()

    async def send(self, frame: str) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            await self._connection.send(frame)
        except ConnectionClosed as closed:
            raise self._lost(closed) from None

    async def receive(self) -> str | bytes:
        from websockets.exceptions import ConnectionClosed

        try:
            frame = await self._connection.recv()
        except ConnectionClosed as closed:
            raise self._lost(closed) from None
        self._keepalive.alive()
        return frame

    def _lost(self, closed: ConnectionClosed) -> ConnectError:
        hints = path_hints(self._url, "LMTP") if getattr(closed.rcvd, "code", 0) >= _OWN_CODES else ()
        return ConnectError(f"the connection to {self._url} is lost: {self._loss or closing_words(closed)}", *hints)

    def expect_pongs(self) -> None:
        self._keepalive.start(self._pings)

    def _ping(self) -> None:
        task = asyncio.create_task(self._send_ping())
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send_ping(self) -> None:
        from websockets.exceptions import ConnectionClosed

        with contextlib.suppress(ConnectionClosed):  # which `receive` tells
            asyncio.ensure_future(await self._connection.ping()).add_done_callback(self._pong)

    def _pong(self, pong: asyncio.Future[float]) -> None:
        if not pong.cancelled() and pong.exception() is None:
            self._keepalive.alive()

    def _give_up(self, reason: str) -> None:
        self._loss = reason
        self._connection.transport.abort()

    async def close(self) -> None:
        self._keepalive.stop()
        for task in self._sending:
            task.cancel()
        await self._connection.close()


async def _start(endpoint: CommandEndpoint) -> Transport:
    from lmtool.protocol.lmtp.pipe_transport import PipeTransport

    try:
        return await PipeTransport.start(endpoint, MAX_RECEIVED_BYTES)
    except OSError as error:
        raise ConnectError(f"cannot start {endpoint.program!r} ({reason_of(error)})") from None
