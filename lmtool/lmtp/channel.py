"""What carries a client's frames: a WebSocket, or the stdin and stdout of a server that the client starts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from lmtool.access.outgoing import DENIED, as_headers, denied
from lmtool.errors import AccessDeniedError, ConnectError, TimeLimitError
from lmtool.lmtp.endpoint import CommandEndpoint, SocketEndpoint

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

    from lmtool.lmtp.endpoint import Endpoint

MAX_RECEIVED_BYTES = 64 * 1024 * 1024
"""Longest frame taken from a server: far above any sensible one, far below this machine's memory."""
_PING_SECONDS = 60.0
_PONG_SECONDS = 300.0
"""Long, because LMQL's server with `--single_thread` answers no ping while it computes."""


class Channel(Protocol):
    """An open way to a server."""

    async def send(self, frame: str) -> None:
        """Send a frame; returns when the next may be sent. Raises `ConnectError`."""

    async def receive(self) -> str | bytes:
        """Wait for the next frame. Raises `ConnectError` when there will be none."""

    async def close(self) -> None:
        """Give the channel back."""


async def open_channel(endpoint: Endpoint, *, open_timeout: float | None) -> Channel:
    """Open a way to a server, within `open_timeout` seconds.

    Raises `ConnectError`, `AccessDeniedError` or `TimeLimitError`.
    """
    try:
        async with asyncio.timeout(open_timeout):
            if isinstance(endpoint, CommandEndpoint):
                return await _start(endpoint)
            return await _dial(endpoint)
    except TimeoutError:
        raise TimeLimitError(f"no connection to {_name(endpoint)} within {open_timeout:g} s") from None


def _name(endpoint: Endpoint) -> str:
    return endpoint.url if isinstance(endpoint, SocketEndpoint) else " ".join(endpoint.words)


async def _dial(endpoint: SocketEndpoint) -> Channel:
    from websockets.asyncio.client import connect
    from websockets.exceptions import InvalidHandshake, InvalidURI

    try:
        connection = await connect(
            endpoint.url,
            additional_headers=as_headers(endpoint.authorization),
            compression=None,
            open_timeout=None,
            ping_interval=_PING_SECONDS,
            ping_timeout=_PONG_SECONDS,
            max_size=MAX_RECEIVED_BYTES,
            proxy=None if endpoint.loopback else True,
        )
    except (InvalidHandshake, InvalidURI, OSError) as error:
        raise not_connected(endpoint.url, error, shown=endpoint.authorization is not None) from None
    return _SocketChannel(connection, endpoint.url)


def not_connected(url: str, error: Exception, *, shown: bool) -> ConnectError | AccessDeniedError:
    """The error for a handshake that `websockets` says has failed. shown: credentials were."""
    from websockets.exceptions import InvalidStatus

    if isinstance(error, OSError):
        return ConnectError(f"no LMTP server at {url} ({_reason(error)})")
    if not isinstance(error, InvalidStatus):
        return ConnectError(f"no LMTP server at {url} ({error})")
    status = error.response.status_code
    body = bytes(error.response.body or b"")[:300].decode("utf-8", "replace").strip()
    if status in DENIED:
        return denied(url, status, body, shown=shown)
    return ConnectError(f"no LMTP server at {url} (HTTP status {status}{': ' if body else ''}{body})")


def _reason(error: OSError) -> str:
    """`connection refused`, without what asyncio puts around it."""
    if isinstance(error, ConnectionRefusedError) or "Connect call failed" in str(error):
        return "connection refused"
    return (error.strerror or str(error)).lower()


class _SocketChannel:
    def __init__(self, connection: ClientConnection, url: str) -> None:
        self._connection = connection
        self._url = url

    async def send(self, frame: str) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            await self._connection.send(frame)
        except ConnectionClosed as closed:
            raise self._lost(closed) from None

    async def receive(self) -> str | bytes:
        from websockets.exceptions import ConnectionClosed

        try:
            return await self._connection.recv()
        except ConnectionClosed as closed:
            raise self._lost(closed) from None

    def _lost(self, closed: Exception) -> ConnectError:
        return ConnectError(f"the connection to {self._url} is lost ({closed})")

    async def close(self) -> None:
        await self._connection.close()


async def _start(endpoint: CommandEndpoint) -> Channel:
    from lmtool.lmtp.pipe_channel import PipeChannel

    try:
        return await PipeChannel.start(endpoint, MAX_RECEIVED_BYTES)
    except OSError as error:
        raise ConnectError(f"cannot start {endpoint.program!r} ({_reason(error)})") from None
