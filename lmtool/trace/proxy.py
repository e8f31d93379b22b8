"""A proxy that records: it stands between any client and its server and passes everything on, unchanged, first."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from lmtool.access.outgoing import authorization, unreadable
from lmtool.access.policy import AccessPolicy
from lmtool.errors import UsageError
from lmtool.trace.admission import UNREADABLE, last_answer, refusal, refusal_answer
from lmtool.trace.http_stream import Head, Opaque, redirected
from lmtool.trace.tap import ConnectionTap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from socket import socket

    from lmtool.access.policy import Refusal
    from lmtool.trace.events import Event
    from lmtool.trace.http_stream import Part
    from lmtool.trace.styles import Style

CHUNK = 2**16
"""Bytes read at once; a side that does not read stops the other one after a few of these."""
CONNECT_LIMIT = 10.0
"""Seconds that the server has to take a connection."""


@dataclass(frozen=True, slots=True)
class Target:
    """The server behind the proxy, or one that is asked by a client of ours."""

    url: str
    """Has no credentials, so it may be shown."""
    host: str
    port: int
    tls: bool
    path: str
    """Put in front of paths that lack it."""
    authorization: str | None = field(default=None, repr=False)
    """What a client of ours shows in the header of this name. A proxy shows nothing: its clients do."""
    same_door: bool = False
    """It lets in what the proxy lets in, by the same policy: a proxy leaves it the `Host` that was asked for."""

    @property
    def authority(self) -> str:
        """The server's own `Host` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


def parse_target(text: str, api_key: str | None = None) -> Target:
    """The server that a URL names: ws, wss, http or https; HOST:PORT and :PORT mean ws. Raises `UsageError`.

    api_key: shown to it, unless the URL has credentials of its own.
    """
    text, shown = authorization(text, api_key)
    url = text if "://" in text else f"ws://{'127.0.0.1' if text.startswith(':') else ''}{text}"
    parts = urlsplit(url)
    tls = parts.scheme in ("wss", "https")
    forms = "write ws://HOST:PORT/, http://HOST:PORT/v1, https://HOST/v1, HOST:PORT or :PORT"
    try:
        port = parts.port or (443 if tls else 80)
    except ValueError as error:
        raise UsageError("{} is no address of a server: {}".format(*unreadable(text, str(error))), forms) from None
    if parts.scheme not in ("ws", "wss", "http", "https") or not parts.hostname:
        raise UsageError("{} is no address of a server: {}".format(*unreadable(text, "it names none")), forms)
    return Target(url, parts.hostname, port, tls, parts.path or "/", shown)


class Proxy:
    """Passes connections on and tells what went over them.

    Each request must first pass the proxy's own door; one that does not goes no further, and is not told. Credentials
    are passed on, for the server; `Proxy-Authorization` alone is the proxy's own.

    `tell` is called in the event loop, with events in order of time; `warn` with a sentence for people.
    """

    def __init__(
        self,
        target: Target,
        tell: Callable[[int, Iterable[Event]], None],
        warn: Callable[[str], None],
        clock: Callable[[], float],
        style: Style = "py",
        policy: AccessPolicy | None = None,
    ) -> None:
        """Make a proxy in front of `target`; policy: which requests are let in.

        tell: gets the connection's number and its events. clock: seconds since the recording began, never backwards.
        """
        self._target = target
        self._tell = tell
        self._warn = warn
        self._clock = clock
        self._style: Style = style
        self.policy = policy or AccessPolicy()
        """Which requests are let in."""
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
        link = _Link(number, client, self)
        try:
            with contextlib.suppress(OSError):  # one end has vanished: so shall the other one see it
                try:
                    await link.run()
                finally:
                    self.tell(number, link.tap.end(self._clock(), link.ended_by))
                await asyncio.gather(*(side.close() for side in link.sides))
        finally:
            for side in link.sides:
                side.writer.transport.abort()

    async def connect(self, client: _Side) -> _Side | None:
        """A connection to the server; None, and 502 for the client, where it cannot be had."""
        try:
            return await self._connect()
        except (OSError, TimeoutError) as error:
            await self._refuse(client, error)
            return None

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
        await last_answer(client.reader, client.writer, f"{head}connection: close\r\n\r\n".encode() + body)

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
        return redirected(head, None if self._target.same_door else self._target.authority, self._target.path)


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


class _RefusedError(Exception):
    """The client sent what is not let in."""

    def __init__(self, head: Head | None, why: Refusal) -> None:
        super().__init__(why.sentence)
        self.head = head
        self.why = why


class _Link:
    """One connection through the proxy, both directions."""

    def __init__(self, number: int, client: _Side, proxy: Proxy) -> None:
        self.tap = proxy.tap(number)
        self.ended_by = "proxy"
        """Who ended the connection first."""
        self.sides = [client]
        """The ends there are: the client, and the server once a request was let in."""
        self._number = number
        self._client = client
        self._proxy = proxy
        self._address = str((client.writer.get_extra_info("peername") or ("",))[0])

    async def run(self) -> None:
        """Pass everything on until both ends have ended; raises `OSError` when one of them has vanished."""
        try:
            parts = await self._beginning()
            server = await self._proxy.connect(self._client) if parts else None
            if server is not None:
                self.sides.append(server)
                self._pass_on(parts, server)
                await self._both_ways(server)
        except _RefusedError as refused:
            # An answer that is still on its way must not be broken into: then the end says enough.
            answer = refusal_answer(self._proxy.policy, refused.head, refused.why) if self.tap.idle else b""
            await last_answer(self._client.reader, self._client.writer, answer)

    async def _beginning(self) -> list[Part]:
        """The first parts that are let in; none where the client leaves without any."""
        while data := await self._client.reader.read(CHUNK):
            if parts := self._let_in(data):
                return parts
        self._ended("client")
        return []

    async def _both_ways(self, server: _Side) -> None:
        pumps = {
            asyncio.create_task(self._pump(self._client, server, "client", partial(self._from_client, server))),
            asyncio.create_task(self._pump(server, self._client, "server", self._from_server)),
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

    def _let_in(self, data: bytes) -> list[Part]:
        """The parts that these bytes complete. Raises `_RefusedError` where one of them must not be passed on."""
        parts = self.tap.requests.feed(data)
        for part in parts:
            if isinstance(part, Head) and (why := refusal(self._proxy.policy, part, self._address)):
                raise _RefusedError(part, why)
            if isinstance(part, Opaque) and self.tap.requests.broken:
                raise _RefusedError(None, UNREADABLE)
        return parts

    def _pass_on(self, parts: list[Part], server: _Side) -> None:
        now = self._proxy.now()
        server.writer.write(b"".join(self._proxy.redirected(p) if isinstance(p, Head) else p.raw for p in parts))
        self._proxy.tell(self._number, self.tap.asked(now, parts))

    def _from_client(self, server: _Side, data: bytes) -> None:
        if not self.tap.upgraded:
            self._pass_on(self._let_in(data), server)
            return
        now = self._proxy.now()
        server.writer.write(data)
        self._proxy.tell(self._number, self.tap.frames(now, ">", data))

    def _from_server(self, data: bytes) -> None:
        now = self._proxy.now()
        self._client.writer.write(data)
        self._proxy.tell(self._number, self.tap.answered(now, data))
