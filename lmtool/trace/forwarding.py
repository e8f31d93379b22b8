"""What a mock server has no recording of, asked of a real server instead."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from lmtool.core.errors import ConnectError, UsageError
from lmtool.net.access.outgoing import as_headers
from lmtool.protocol.lmtp.transport import dial
from lmtool.trace.http_stream import path_below
from lmtool.trace.proxy import CONNECT_LIMIT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    import aiohttp
    from websockets.asyncio.client import ClientConnection

    from lmtool.trace.http_stream import Head
    from lmtool.trace.proxy import Target

_HOP = {
    *("host", "connection", "keep-alive", "transfer-encoding", "content-length", "upgrade", "accept-encoding"),
    "expect",
}
"""Headers of one connection: they are not passed on (RFC 9110, 7.6.1), and answers shall come uncompressed."""
_OURS = {"origin", "sec-fetch-site", "proxy-authorization"}
"""Headers for this server's door: the server behind is asked by a program."""
_KEYS = {"authorization", "x-api-key"}
"""Headers that a client has for the server behind, unless this program has a key of its own for it."""


class FrameForwarder:
    """One client's own connection to an LMTP server, made when the first frame is passed on."""

    def __init__(self, target: Target, answer: Callable[[str], Awaitable[None]]) -> None:
        """answer: takes each frame that the server sends."""
        self._target = target
        self._answer = answer
        self._connecting: asyncio.Task[ClientConnection] | None = None
        self._reading: asyncio.Task[None] | None = None

    async def send(self, frame: str | bytes) -> None:
        """Pass a frame on. Raises `ConnectError` when the server cannot be reached or has gone, `AccessDeniedError`."""
        from websockets.exceptions import ConnectionClosed

        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect())
        connection = await self._connecting
        try:
            await connection.send(frame)
        except ConnectionClosed:
            raise ConnectError(f"the connection to {self._target.url} is lost") from None

    async def close(self) -> None:
        """End the connection."""
        if self._connecting is None:
            return
        self._connecting.cancel()
        (connection,) = await asyncio.gather(self._connecting, return_exceptions=True)
        if self._reading is not None and not isinstance(connection, BaseException):
            await connection.close()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _connect(self) -> ClientConnection:
        if self._target.url.startswith("http"):
            raise ConnectError(f"{self._target.url} takes HTTP, this is an LMTP frame")
        options = {"open_timeout": CONNECT_LIMIT, "max_size": None, "proxy": None}
        connection = await dial(self._target.url, self._target.authorization, **options)
        self._reading = asyncio.create_task(self._read(connection))
        return connection

    async def _read(self, connection: ClientConnection) -> None:
        async for frame in connection:
            await self._answer(frame if isinstance(frame, str) else frame.decode("utf-8", "replace"))


async def forward_http(target: Target, head: Head, body: bytes) -> AsyncIterator[aiohttp.ClientResponse | bytes]:
    """A request passed on: yields the response, then pieces of its body as they come.

    Raises `ConnectError` when the server cannot be reached or breaks off.
    """
    import aiohttp

    from lmtool.net.http_client import as_body, open_client, reason_of, verbatim

    method, path, _ = head.start
    dropped = _HOP | _OURS | (_KEYS if target.authorization is not None else set())
    headers = [(name, value) for name, value in head.headers if name not in dropped]
    headers += [("accept-encoding", "identity"), *as_headers(target.authorization).items()]
    url = verbatim(_url(target, path))
    try:
        async with (
            open_client(connect_timeout=CONNECT_LIMIT) as client,
            client.request(method, url, headers=headers, data=as_body(body), allow_redirects=False) as response,
        ):
            yield response
            async for piece in response.content.iter_any():
                yield piece
    except (aiohttp.ClientError, TimeoutError) as error:
        raise ConnectError(f"{target.url}: {reason_of(error)}") from None


def _url(target: Target, path: str) -> str:
    parts = urlsplit(target.url)
    if parts.scheme not in ("http", "https"):
        raise UsageError(f"{target.url} takes LMTP frames, this is an HTTP request")
    asked = urlsplit(path)
    return urlunsplit((parts.scheme, parts.netloc, path_below(asked.path, target.path), asked.query, ""))
