"""Raw connections to the server under load, which may send anything: bytes, HTTP requests, WebSocket frames."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import socket
import ssl
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from lmtool.core.errors import UsageError
from lmtool.net.access.outgoing import as_headers
from lmtool.net.unix_sockets import HOST, PREFIX, unix_path
from lmtool.protocol.lmtp.endpoint import CommandEndpoint, parse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OPEN_SECONDS = 30.0
"""Longest wait for a connection."""
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
"""Opcodes of WebSocket frames (RFC 6455, 5.2)."""
_LARGEST_ANSWER = 64 << 20
"""Bytes of a frame that is read."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server is."""

    url: str
    """`ws://HOST:PORT/`, `wss://...` or `unix:PATH`, without credentials: it may be shown."""
    prefix: str = ""
    """What stands before `/v1` in its paths, such as `/llm`."""
    authorization: str | None = field(default=None, repr=False)
    """The header that shows the key; None without one."""

    @classmethod
    def of(cls, text: str, api_key: str | None = None) -> Address:
        """The address in a URL as every command takes it. Raises `UsageError`."""
        endpoint = parse(text, api_key)
        if isinstance(endpoint, CommandEndpoint):
            raise UsageError(
                "lab soak needs a server that many clients can reach, and stdio: has one client",
                "start it:  lmtool serve, then  lab soak :8080",
            )
        prefix = "" if unix_path(endpoint.url) is not None else urlsplit(endpoint.url).path.rstrip("/")
        return cls(endpoint.url, prefix.removesuffix("/v1"), endpoint.authorization)

    def as_json(self) -> dict[str, Any]:
        """Its fields, the key among them: for another process's stdin only."""
        return asdict(self)

    @property
    def unix(self) -> str | None:
        """The path of a Unix socket; None for a port."""
        return unix_path(self.url)

    @property
    def tls(self) -> bool:
        """True if it speaks TLS."""
        return self.url.startswith("wss:")

    @property
    def host(self) -> str:
        """The name or address to connect to."""
        return urlsplit(self.url).hostname or HOST

    @property
    def port(self) -> int:
        """The port to connect to."""
        return urlsplit(self.url).port or (443 if self.tls else 80)

    @property
    def lmtp(self) -> str:
        """The endpoint of LMTP's client."""
        return self.url if self.url.startswith(PREFIX) else f"{self._root}{self.prefix}/"

    @property
    def evergreen(self) -> str:
        """The endpoint of Evergreen's client."""
        return self.url if self.url.startswith(PREFIX) else f"{self._root}{self.prefix}/evergreen"

    @property
    def _root(self) -> str:
        return f"{'wss' if self.tls else 'ws'}://{urlsplit(self.url).netloc}"

    @property
    def headers(self) -> Mapping[str, str]:
        """`Host`, and the key where there is one."""
        host = HOST if self.unix is not None else urlsplit(self.url).netloc
        return {"Host": host, **as_headers(self.authorization)}

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> bytes:
        """An HTTP request as it goes over the wire. body: JSON; None: there is none."""
        lines = {**self.headers, **(headers or {})}
        if body is not None:
            lines = {"Content-Type": "application/json", "Content-Length": str(len(body)), **lines}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        return f"{method} {self.prefix}{path} HTTP/1.1\r\n{head}\r\n".encode() + (body or b"")

    def handshake(self, path: str) -> bytes:
        """The request that opens a WebSocket."""
        key = base64.b64encode(os.urandom(16)).decode()
        upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
        return self.request("GET", path, headers={**upgrade, "Sec-WebSocket-Key": key})


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of an HTTP answer."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""


class ConnectionEnded(Exception):  # noqa: N818  # no failure: servers may close
    """The server has closed the connection."""


class Connection:
    """One connection. Every method but `abort` raises `ConnectionEnded` or `TimeoutError`, as the server behaves."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, address: Address, *, receive_buffer: int | None = None) -> Connection:
        """Connect. receive_buffer: bytes that the system keeps for a reader that does not read."""
        limit = 2**16 if receive_buffer is None else max(64, receive_buffer)
        made: socket.socket | None = None
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                made = await _connected(address, receive_buffer)
                name = address.host if address.tls else None
                context = ssl.create_default_context() if address.tls else None
                reader, writer = await asyncio.open_connection(
                    sock=made, limit=limit, ssl=context, server_hostname=name
                )
        except BaseException as error:
            if made is not None:
                made.close()
            if isinstance(error, OSError) and not isinstance(error, TimeoutError):
                raise ConnectionEnded(str(error)) from None
            raise
        return cls(reader, writer)

    async def send(self, data: bytes, seconds: float = OPEN_SECONDS) -> None:
        """Send bytes."""
        try:
            self._writer.write(data)
            async with asyncio.timeout(seconds):
                await self._writer.drain()
        except OSError as error:
            if isinstance(error, TimeoutError):
                raise
            raise ConnectionEnded(str(error)) from None

    async def read(self, most: int = 65536) -> bytes:
        """Some bytes; empty at the end."""
        try:
            return await self.reader.read(most)
        except OSError as error:
            raise ConnectionEnded(str(error)) from None

    async def head(self) -> Head:
        """The status and headers of an HTTP answer."""
        lines = (await self._until(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        status = lines[0].split(" ")
        if len(status) < 2 or not status[1].isdecimal():
            raise ConnectionEnded(f"no HTTP: {lines[0][:80]!r}")
        pairs = (line.partition(":") for line in lines[1:] if line)
        return Head(int(status[1]), {name.strip().lower(): value.strip() for name, _, value in pairs})

    async def body(self, head: Head) -> bytes:
        """The whole body of an answer."""
        return b"".join([piece async for piece in self.pieces(head)])

    async def pieces(self, head: Head) -> Any:  # an asynchronous iterator of bytes
        """The body of an answer, piece by piece, without its framing."""
        if "chunked" in head.headers.get("transfer-encoding", "").lower():
            while size := int((await self._until(b"\r\n")).split(b";")[0], 16):
                yield await self._exactly(size)
                await self._exactly(2)
            await self._until(b"\r\n")
        elif (length := head.headers.get("content-length", "")).isdecimal():
            yield await self._exactly(int(length))
        elif head.status not in {204, 304}:
            while piece := await self.read():
                yield piece

    async def frame(self) -> tuple[int, bytes]:
        """The next WebSocket frame of the server: its opcode and payload. Pings are answered."""
        while True:
            first, second = await self._exactly(2)
            size = second & 127
            if size > 125:
                size = int.from_bytes(await self._exactly(2 if size == 126 else 8), "big")
            payload = await self._exactly(min(size, _LARGEST_ANSWER))
            if first & 15 != PING:
                return first & 15, payload
            await self.send(frame(PONG, payload))

    async def upgrade(self, address: Address, path: str) -> Head:
        """Open a WebSocket; the head of the answer, whose status is 101 where it is open."""
        await self.send(address.handshake(f"{path}"))
        return await self.head()

    async def _until(self, mark: bytes) -> bytes:
        try:
            return await self.reader.readuntil(mark)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise ConnectionEnded(str(error)) from None
        except asyncio.LimitOverrunError:
            raise ConnectionEnded("an answer's head is too long") from None

    async def _exactly(self, size: int) -> bytes:
        try:
            return await self.reader.readexactly(size)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise ConnectionEnded(str(error)) from None

    def abort(self) -> None:
        """Cut the connection: the server gets a reset, and no goodbye."""
        with contextlib.suppress(OSError, ValueError):
            made = self._writer.get_extra_info("socket")
            made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        self._writer.transport.abort()


async def _connected(address: Address, receive_buffer: int | None) -> socket.socket:
    loop = asyncio.get_running_loop()
    if address.unix is not None:
        made = socket.socket(socket.AF_UNIX)
        where: Sequence[Any] | str = address.unix
    else:
        found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        family, _, _, _, where = found[0]
        made = socket.socket(family)
    try:
        made.setblocking(False)  # socket's own signature
        if receive_buffer is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        await loop.sock_connect(made, where)  # type: ignore[arg-type]  # a path, for a Unix socket
    except BaseException:
        made.close()
        raise
    return made


def frame(
    opcode: int,
    payload: bytes,
    *,
    fin: bool = True,
    reserved: int = 0,
    masked: bool = True,
    length: int | None = None,
) -> bytes:
    """A WebSocket frame of a client, valid or not. length: what its head claims; None: the payload's."""
    size = len(payload) if length is None else length
    mark = 128 if masked else 0
    head = bytes([(128 if fin else 0) | reserved << 4 | opcode])
    if size < 126:
        head += bytes([mark | size])
    elif size < 65536:
        head += bytes([mark | 126]) + size.to_bytes(2, "big")
    else:
        head += bytes([mark | 127]) + size.to_bytes(8, "big")
    return head + (b"\0\0\0\0" if masked else b"") + payload  # a mask of zeros changes nothing
