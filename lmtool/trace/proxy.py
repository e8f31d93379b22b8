"""A proxy that records: it stands between any client and its server and passes everything on, unchanged, first."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from lmtool.errors import UsageError
from lmtool.trace.http_stream import Head, redirected
from lmtool.trace.tap import ConnectionTap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from socket import socket

    from lmtool.trace.events import Event
    from lmtool.trace.styles import Style

CHUNK = 2**16
"""Bytes read at once; a side that does not read stops the other one after a few of these."""
CONNECT_LIMIT = 10.0
"""Seconds that the server has to take a connection."""


@dataclass(frozen=True, slots=True)
class Target:
    """The server behind the proxy."""

    url: str
    host: str
    port: int
    tls: bool
    path: str
    """Put in front of paths that lack it."""

    @property
    def authority(self) -> str:
        """The server's own `Host` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


def parse_target(text: str) -> Target:
    """The server that a URL names: ws, wss, http or https; HOST:PORT and :PORT mean ws. Raises `UsageError`."""
    url = text if "://" in text else f"ws://{'127.0.0.1' if text.startswith(':') else ''}{text}"
    parts = urlsplit(url)
    tls = parts.scheme in ("wss", "https")
    forms = "write ws://HOST:PORT/, http://HOST:PORT/v1, https://HOST/v1, HOST:PORT or :PORT"
    try:
        port = parts.port or (443 if tls else 80)
    except ValueError as error:
        raise UsageError(f"{text!r} is no address of a server: {error}", forms) from None
    if parts.scheme not in ("ws", "wss", "http", "https") or not parts.hostname:
        raise UsageError(f"{text!r} is no address of a server", forms)
    return Target(url, parts.hostname, port, tls, parts.path or "/")


class Proxy:
    """Passes connections on and tells what went over them.

    `tell` is called in the event loop, with events in order of time; `warn` with a sentence for people.
    """

    def __init__(
        self,
        target: Target,
        tell: Callable[[int, Iterable[Event]], None],
        warn: Callable[[str], None],
        clock: Callable[[], float],
        style: Style = "py",
    ) -> None:
        """Make a proxy in front of `target`.

        tell: gets the connection's number and its events. clock: seconds since the recording began, never backwards.
        """
        self._target = target
        self._tell = tell
        self._warn = warn
        self._clock = clock
        self._style: Style = style
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self.connections = 0
        """Taken so far."""

    @property
    def open_connections(self) -> int:
        """Connections that have not ended."""
        return len(self._tasks)

    def number(self) -> int:
        """The number of a further connection, such as one of this program's own: counted like those taken."""
        self.connections += 1
        return self.connections

    async def listen(self, sockets: Iterable[socket]) -> None:
        """Take connections on sockets that are bound; returns at once."""
        for one in sockets:
            self._servers.append(await asyncio.start_server(self._accept, sock=one, limit=CHUNK))

    async def close(self) -> None:
        """Take no more connections and cut those that are open."""
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(asyncio.CancelledError):  # only `close` cancels, and waits for this
            await self._connection(self.number(), _Side(reader, writer))

    async def _connection(self, number: int, client: _Side) -> None:
        try:
            server = await self._connect()
        except (OSError, TimeoutError) as error:
            await self._refuse(client, error)
            return
        link = _Link(number, client, server, self)
        try:
            with contextlib.suppress(OSError):  # one end has vanished: so shall the other one see it
                try:
                    await link.run()
                finally:
                    self.tell(number, link.tap.end(self._clock(), link.ended_by))
                await asyncio.gather(client.close(), server.close())
        finally:
            client.writer.transport.abort()
            server.writer.transport.abort()

    async def _connect(self) -> _Side:
        target = self._target
        context = ssl.create_default_context() if target.tls else None
        async with asyncio.timeout(CONNECT_LIMIT):
            return _Side(*await asyncio.open_connection(target.host, target.port, ssl=context, limit=CHUNK))

    async def _refuse(self, client: _Side, error: Exception) -> None:
        reason = str(error) or f"no answer within {CONNECT_LIMIT:.0f} s"
        self._warn(f"no connection to {self._target.url}: {reason}")
        body = f"lmtool trace record: no connection to {self._target.url}: {reason}\n".encode()
        head = f"HTTP/1.1 502 Bad Gateway\r\ncontent-type: text/plain\r\ncontent-length: {len(body)}\r\n"
        with contextlib.suppress(ConnectionError):
            client.writer.write(f"{head}connection: close\r\n\r\n".encode() + body)
            await client.writer.drain()
        client.writer.close()

    def tell(self, number: int, events: Iterable[Event]) -> None:
        """Hand events on."""
        self._tell(number, events)

    def now(self) -> float:
        """Seconds since the recording began."""
        return self._clock()

    def tap(self, number: int) -> ConnectionTap:
        """What follows a connection of this number."""
        return ConnectionTap(number, self._style)

    def redirected(self, head: Head) -> bytes:
        """A request's head as the server expects it."""
        return redirected(head, self._target.authority, self._target.path)


@dataclass(frozen=True, slots=True)
class _Side:
    """One end of a connection through the proxy."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def end(self) -> None:
        """Tell this end that nothing more will come."""
        if self.writer.can_write_eof():
            self.writer.write_eof()
        else:
            self.writer.close()

    async def close(self) -> None:
        """Close this end once everything written has been taken."""
        self.writer.close()
        await self.writer.wait_closed()


class _Link:
    """One connection through the proxy, both directions."""

    def __init__(self, number: int, client: _Side, server: _Side, proxy: Proxy) -> None:
        self.tap = proxy.tap(number)
        self.ended_by = "proxy"
        """Who ended the connection first."""
        self._number = number
        self._client = client
        self._server = server
        self._proxy = proxy

    async def run(self) -> None:
        """Pass everything on until both ends have ended; raises `OSError` when one of them has vanished."""
        pumps = {
            asyncio.create_task(self._pump(self._client, self._server, "client", self._from_client)),
            asyncio.create_task(self._pump(self._server, self._client, "server", self._from_server)),
        }
        try:
            await asyncio.gather(*pumps)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(self, source: _Side, target: _Side, name: str, passed: Callable[[bytes], None]) -> None:
        try:
            while data := await source.reader.read(CHUNK):
                passed(data)
                await target.writer.drain()
        except OSError:
            self._ended(name)
            raise
        self._ended(name)
        target.end()

    def _ended(self, name: str) -> None:
        if self.ended_by == "proxy":
            self.ended_by = name

    def _from_client(self, data: bytes) -> None:
        now, tap, writer = self._proxy.now(), self.tap, self._server.writer
        if tap.upgraded:
            writer.write(data)
            self._proxy.tell(self._number, tap.frames(now, ">", data))
            return
        parts = tap.requests.feed(data)
        writer.write(b"".join(self._proxy.redirected(p) if isinstance(p, Head) else p.raw for p in parts))
        self._proxy.tell(self._number, tap.asked(now, parts))

    def _from_server(self, data: bytes) -> None:
        now = self._proxy.now()
        self._client.writer.write(data)
        self._proxy.tell(self._number, self.tap.answered(now, data))
