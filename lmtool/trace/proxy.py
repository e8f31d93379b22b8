"""Recording proxy: forwards each byte between clients and a server unchanged, then records it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from lmtool.core.errors import ConnectError, UsageError
from lmtool.net.access.credentials import without_query_keys
from lmtool.net.access.forwarding import ConflictingAddressesError
from lmtool.net.access.outgoing import authorization, unreadable
from lmtool.net.access.policy import AccessPolicy
from lmtool.net.unix_sockets import HOST, PREFIX, unix_path
from lmtool.trace.connection_tap import ConnectionTap
from lmtool.trace.http_server import (
    CHUNK,
    CONFLICTING,
    UNREADABLE,
    Admission,
    ConnectionServer,
    arriving,
    last_answer,
    refusal_answer,
    refusal_of,
    unreachable_answer,
)
from lmtool.trace.http_stream import Head, Opaque, Trailer, redirect_head

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lmtool.net.access.policy import Refusal
    from lmtool.trace.events import Event
    from lmtool.trace.http_stream import Part

CONNECT_LIMIT = 10.0
"""Seconds to wait for a connection to the server."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server: behind the proxy, or called by our replay client."""

    url: str
    """Without credentials, so that it may be shown."""
    host: str
    port: int
    tls: bool
    path: str
    """Put in front of request paths that lack it."""
    authorization: str | None = field(default=None, repr=False)
    """Value of the `Authorization` header that our own client sends. A proxy forwards its clients' headers."""
    unix: str | None = None
    """Path of its Unix socket, used instead of host and port."""
    same_door: bool = False
    """True if the server applies the proxy's own access policy; the proxy then keeps the client's `Host`."""

    @property
    def authority(self) -> str:
        """The server's own `Host` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    async def open(self, limit: int = 2**16) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to it; limit: bytes of read-ahead. Raises `OSError`."""
        if self.unix is not None:
            return await asyncio.open_unix_connection(self.unix, limit=limit)
        context = ssl.create_default_context() if self.tls else None
        return await asyncio.open_connection(self.host, self.port, ssl=context, limit=limit)


def parse_target(text: str, api_key: str | None = None) -> Target:
    """Server named by a URL: ws, wss, http or https, unix:PATH; HOST:PORT and :PORT mean ws. Raises `UsageError`.

    api_key: sent to it, unless the URL has credentials.
    """
    if path := unix_path(text):
        return Target(f"{PREFIX}{path}", HOST, 80, False, "/", authorization("", api_key)[1], path)  # noqa: FBT003 - `tls`
    text, shown = authorization(text, api_key)
    url = text if "://" in text else f"ws://{'127.0.0.1' if text.startswith(':') else ''}{text}"
    parts = urlsplit(url)
    tls = parts.scheme in ("wss", "https")
    forms = "write ws://HOST:PORT/, http://HOST:PORT/v1, https://HOST/v1, HOST:PORT, :PORT or unix:PATH"
    try:
        port = parts.port or (443 if tls else 80)
    except ValueError as error:
        raise UsageError("{} is not a server address: {}".format(*unreadable(text, str(error))), forms) from None
    if parts.scheme not in ("ws", "wss", "http", "https") or not parts.hostname:
        raise UsageError("{} is not a server address: {}".format(*unreadable(text, "it names no host")), forms)
    return Target(without_query_keys(url), parts.hostname, port, tls, parts.path or "/", shown)


class Proxy(ConnectionServer):
    """Forwards connections and records their traffic.

    Each request must pass the proxy's own access policy; a refused one is neither forwarded nor recorded. Credentials
    are forwarded to the server, except for `Proxy-Authorization`, which belongs to the proxy.
    """

    def __init__(
        self,
        target: Target,
        emit: Callable[[int, Iterable[Event]], None],
        warn: Callable[[str], None],
        clock: Callable[[], float],
        policy: AccessPolicy | None = None,
    ) -> None:
        """Make a proxy for `target`; policy: access policy.

        emit: takes a connection's number and its events in order of time, in the event loop. warn: takes a sentence for
        people. clock: seconds since the recording began, monotonic.
        """
        self.policy = policy or AccessPolicy()
        """Access policy for requests."""
        self.emit = emit
        self.clock = clock
        self.target = target
        """Server behind the proxy."""
        self._warn = warn
        super().__init__(self._serve)
        self.connections = 0
        """Connections accepted so far."""

    def number(self) -> int:
        """Number for another connection, for example one of this program itself."""
        self.connections += 1
        return self.connections

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = self.number()
        link = _Link(number, _Side(reader, writer), self)
        try:
            with contextlib.suppress(OSError):  # one end disconnected: abort the other too
                try:
                    await link.run()
                finally:
                    self.emit(number, link.tap.end(self.clock(), link.ended_by))
                await asyncio.gather(*(side.close() for side in link.sides))
        finally:
            for side in link.sides:
                side.writer.transport.abort()

    async def connect(self) -> _Side:
        """Connect to the server. Raises `ConnectError` and warns if that fails."""
        target = self.target
        try:
            async with asyncio.timeout(CONNECT_LIMIT):
                return _Side(*await target.open(limit=CHUNK))
        except (OSError, TimeoutError) as error:
            reason = str(error) or f"no answer within {CONNECT_LIMIT:.0f} s"
            sentence = f"no connection to {target.url}: {reason}"
            self._warn(sentence)
            raise ConnectError(sentence) from None

    def request_bytes(self, part: Part, admission: Admission) -> bytes:
        """Part of a request as the server expects it; with the client's address if they share an access policy."""
        if not isinstance(part, Head):
            return b"" if isinstance(part, Trailer) else part.raw
        target = self.target
        if not target.same_door:
            return redirect_head(part, target.authority, target.path)
        return redirect_head(part, None, target.path, admission.address(part) if self.policy.callers else None)


@dataclass(frozen=True, slots=True)
class _Side:
    """One end of a connection through the proxy."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def end(self) -> None:
        """Send end-of-file to this end."""
        if self.writer.can_write_eof():
            self.writer.write_eof()
        else:
            self.writer.close()

    async def close(self) -> None:
        """Close this end once all data has been sent."""
        self.writer.close()
        await self.writer.wait_closed()


class _RefusedError(Exception):
    """The client sent a request that is refused."""

    def __init__(self, head: Head | None, refusal: Refusal) -> None:
        super().__init__(refusal.sentence)
        self.head = head
        self.refusal = refusal


class _Link:
    """One connection through the proxy, both directions."""

    def __init__(self, number: int, client: _Side, proxy: Proxy) -> None:
        self.tap = ConnectionTap(number, "py")
        self.ended_by = "proxy"
        """End that closed first: `client`, `server` or `proxy`."""
        self.sides = [client]
        """The client, and the server once a request was admitted."""
        self._number = number
        self._client = client
        self._proxy = proxy
        self._admission = Admission(proxy.policy, client.writer)

    async def run(self) -> None:
        """Forward everything until both ends have closed. Raises `OSError` if one of them disconnects."""
        try:
            if parts := await self._first_parts():
                await self._converse(parts)
        except _RefusedError as refused:
            # Do not write into an answer that is still being sent; closing the connection is enough then.
            answer = refusal_answer(self._proxy.policy, refused.head, refused.refusal) if self.tap.idle else b""
            await last_answer(self._client.reader, self._client.writer, answer)
        finally:
            self._admission.end()

    async def _converse(self, parts: list[Part]) -> None:
        """Connect to the server and forward; if it is unreachable, answer the client and record that."""
        try:
            server = await self._proxy.connect()
        except ConnectError as away:
            head = next((part for part in parts if isinstance(part, Head)), None)
            answer = b"" if head is None else unreachable_answer(self._proxy.policy, head, away.message)
            self._proxy.emit(self._number, self.tap.request_parts(self._proxy.clock(), parts))
            self._proxy.emit(self._number, self.tap.response_bytes(self._proxy.clock(), answer))
            await last_answer(self._client.reader, self._client.writer, answer)
            return
        self.sides.append(server)
        self._pass_on(parts, server)
        await self._both_ways(server)

    async def _first_parts(self) -> list[Part]:
        """First admitted parts; none if the client disconnects first or sends no head in time."""
        with arriving(self._client.writer) as arrival:
            while data := await self._client.reader.read(CHUNK):
                arrival.count(len(data))
                if parts := self._admitted(data):
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

    async def _pump(self, source: _Side, target: _Side, name: str, pass_on: Callable[[bytes], None]) -> None:
        try:
            while data := await source.reader.read(CHUNK):
                pass_on(data)
                await target.writer.drain()
        except OSError:
            self._ended(name)
            raise
        self._ended(name)
        target.end()

    def _ended(self, name: str) -> None:
        if self.ended_by == "proxy":
            self.ended_by = name

    def _admitted(self, data: bytes) -> list[Part]:
        """Parts that these bytes complete. Raises `_RefusedError` if one of them must not be forwarded."""
        parts = self.tap.requests.feed(data)
        for part in parts:
            if isinstance(part, Head) and (refusal := self._refusal(part)):
                raise _RefusedError(part, refusal)
            if isinstance(part, Opaque) and self.tap.requests.broken:
                raise _RefusedError(None, UNREADABLE)
        return parts

    def _refusal(self, head: Head) -> Refusal | None:
        """Reason a request is not forwarded, or None. It counts until it is answered, unless the server counts it."""
        refusal = refusal_of(self._proxy.policy, head)
        if refusal is not None or not self._proxy.target.same_door:
            return refusal or self._admission.begin(head)
        try:
            self._admission.address(head)
        except ConflictingAddressesError:
            return CONFLICTING
        return None

    def _pass_on(self, parts: list[Part], server: _Side) -> None:
        now = self._proxy.clock()
        server.writer.write(b"".join(self._proxy.request_bytes(part, self._admission) for part in parts))
        self._proxy.emit(self._number, self.tap.request_parts(now, parts))

    def _from_client(self, server: _Side, data: bytes) -> None:
        if not self.tap.upgraded:
            self._pass_on(self._admitted(data), server)
            return
        now = self._proxy.clock()
        server.writer.write(data)
        self._proxy.emit(self._number, self.tap.frames(now, ">", data))

    def _from_server(self, data: bytes) -> None:
        now = self._proxy.clock()
        self._client.writer.write(data)
        self._proxy.emit(self._number, self.tap.response_bytes(now, data))
        if self.tap.idle and not self.tap.upgraded:
            self._admission.end()
