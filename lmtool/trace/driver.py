"""The client of a recording: does to a real server what was recorded, sent by cause and not by clock."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import TYPE_CHECKING, Protocol

from lmtool.access.outgoing import as_headers
from lmtool.errors import ConnectError
from lmtool.lmtp.channel import not_connected
from lmtool.trace.events import Close, Drop, Frame, Open, Remark, Request
from lmtool.trace.observing import content_of
from lmtool.trace.script import Received
from lmtool.trace.tap import ConnectionTap

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from websockets.asyncio.client import ClientConnection

    from lmtool.trace.events import Event
    from lmtool.trace.proxy import Target
    from lmtool.trace.script import Act, Move
    from lmtool.trace.styles import Style

CONNECT_LIMIT = 10.0
"""Seconds that the server has to take a connection."""
_LARGEST = 2**26
_FRAMING = ("transfer-encoding", "content-length", "host", "accept-encoding")
_CREDENTIALS = ("authorization", "x-api-key")


class Driver:
    """Performs the acts of a recording against a server, and tells everything that goes over the wire as events.

    Each act waits until as much has come as the recorded client had received before it; on connections and streams
    that ended before, nothing is waited for.
    """

    def __init__(
        self,
        target: Target,
        tell: Callable[[Event], None],
        *,
        patience: float = 60.0,
        speed: float | None = None,
        style: Style = "py",
    ) -> None:
        """Make a client of `target`; `run` needs an event loop.

        tell: gets each event, in order of time. patience: seconds to wait for what does not come. speed: also wait for
        the recorded times, this many times as fast; None waits for no clock.
        """
        self._target = target
        self._tell = tell
        self._patience = patience
        self._speed = speed
        self._style: Style = style
        self._received = Received()
        self._wires: dict[int, _Wire] = {}
        self._news = asyncio.Event()
        self._began = 0.0

    async def run(self, acts: Iterable[Act]) -> str:
        """Do everything, then leave the connections that are still open.

        Returns a sentence on what was waited for in vain, empty where all came. Raises `ConnectError`.
        """
        loop = asyncio.get_running_loop()
        self._began = loop.time()
        trouble = ""
        try:
            for act in acts:
                if act.move is not None and self._speed is not None:
                    await asyncio.sleep(self._began + act.move.time / self._speed - loop.time())
                trouble = trouble or await self._until(act)
                if act.move is not None:
                    await self._perform(act.move)
            for wire in self._wires.values():
                await wire.settle()
        finally:
            for wire in self._wires.values():
                await wire.leave(None)
        return trouble

    async def _until(self, act: Act) -> str:
        try:
            async with asyncio.timeout(self._patience):
                while missing := self._received.missing(act.after):
                    await self._next()
        except TimeoutError:
            # What follows is done all the same, without further waiting: half an answer tells more than none.
            self._patience = 0.0
            connection, name = missing[0]
            return f"{name} on connection {connection} did not come as far as recorded"
        return ""

    async def _next(self) -> None:
        self._news.clear()
        await self._news.wait()

    async def _perform(self, move: Move) -> None:
        number = move.connection
        if isinstance(move, Close | Drop):
            await self._part(move)
            return
        if self._received.over(number):
            self.take(Remark(self.now(), "note", number, "not sent: the connection is gone"))
            return
        if number not in self._wires:
            self._wires[number] = await self._connect(move)
        await self._wires[number].send(move)

    async def _part(self, move: Close | Drop) -> None:
        """Leave a connection as the recorded client left it, or wait until the server does."""
        wire = self._wires.get(move.connection)
        by = move.by if isinstance(move, Close) else move.facts.get("by")
        if wire is None:
            return
        if by != "server":
            await wire.leave(move)
            return
        with contextlib.suppress(TimeoutError):  # then it is still there at the end, which the comparison tells
            async with asyncio.timeout(self._patience):
                while not self._received.over(move.connection):
                    await self._next()

    async def _connect(self, move: Frame | Request) -> _Wire:
        wire: _Wire = _Http(self, self._target) if isinstance(move, Request) else _Socket(self, self._target)
        try:
            async with asyncio.timeout(CONNECT_LIMIT):
                await wire.open(move.connection)
        except TimeoutError:
            raise ConnectError(f"no connection to {self._target.url} within {CONNECT_LIMIT:g} s") from None
        return wire

    def take(self, event: Event) -> None:
        """Tell an event, and wake what waits for it."""
        self._received.take(event)
        self._tell(event)
        self._news.set()

    def now(self) -> float:
        """Seconds since the driver began."""
        return asyncio.get_running_loop().time() - self._began

    @property
    def style(self) -> Style:
        """The style tried first when JSON is taken apart."""
        return self._style


class _Wire(Protocol):
    """One connection to the server."""

    async def open(self, number: int) -> None:
        """Connect. Raises `ConnectError`, `AccessDeniedError`."""

    async def send(self, move: Frame | Request) -> None:
        """Send; what goes wrong is seen by whoever reads."""

    async def settle(self) -> None:
        """Return when everything has come that the server sent before now, as far as that can be told."""

    async def leave(self, move: Close | Drop | None) -> None:
        """Close the connection as recorded; harmless when it is gone."""


class _Socket:
    """A WebSocket."""

    def __init__(self, driver: Driver, target: Target) -> None:
        self._driver = driver
        self._url = target.url.replace("http", "ws", 1) if target.url.startswith("http") else target.url
        self._authorization = target.authorization
        self._number = 0
        self._dropped = False
        self._connection: ClientConnection | None = None
        self._reading: asyncio.Task[None] | None = None

    async def open(self, number: int) -> None:
        from websockets.asyncio.client import connect
        from websockets.exceptions import InvalidHandshake, InvalidURI

        self._number = number
        try:
            self._connection = await connect(
                self._url,
                additional_headers=as_headers(self._authorization),
                compression=None,
                max_size=_LARGEST,
                ping_interval=None,
                proxy=None,
                open_timeout=None,
            )
        except (OSError, InvalidHandshake, InvalidURI) as error:
            failure = not_connected(self._url, error, shown=self._authorization is not None)
            if isinstance(failure, ConnectError):
                failure.hints = ("start one:  lmtool serve",)
            raise failure from None
        self._driver.take(Open(self._driver.now(), number, {"peer": "client"}))
        self._reading = asyncio.create_task(self._read(self._connection))

    async def send(self, move: Frame | Request) -> None:
        from websockets.exceptions import ConnectionClosed

        assert self._connection is not None
        assert isinstance(move, Frame)
        wire = move.wire()
        self._driver.take(Frame(self._driver.now(), ">", self._number, content_of(wire, self._driver.style)))
        with contextlib.suppress(ConnectionClosed):
            await self._connection.send(wire)

    async def _read(self, connection: ClientConnection) -> None:
        async for message in _messages(connection):
            self._driver.take(Frame(self._driver.now(), "<", self._number, content_of(message, self._driver.style)))
        protocol, now = connection.protocol, self._driver.now()
        code, reason, server_first = protocol.close_code, protocol.close_reason or "", protocol.close_rcvd_then_sent
        if self._dropped or protocol.close_rcvd is None:
            self._driver.take(Drop(now, self._number, {"by": "client" if self._dropped else "server"}))
        else:
            self._driver.take(Close(now, self._number, "server" if server_first else "client", code, reason))

    async def settle(self) -> None:
        from websockets.exceptions import ConnectionClosed

        assert self._connection is not None
        with contextlib.suppress(ConnectionClosed, TimeoutError):
            async with asyncio.timeout(CONNECT_LIMIT):
                await (await self._connection.ping())

    async def leave(self, move: Close | Drop | None) -> None:
        assert self._connection is not None
        assert self._reading is not None
        if isinstance(move, Drop):
            self._dropped = not self._reading.done()
            self._connection.transport.abort()
        else:
            code = move.code if move is not None and move.code in _CODES_TO_SEND else 1000
            await self._connection.close(code, "" if move is None else move.reason)
        await self._reading


_CODES_TO_SEND = (1000, 1001, 1003, 1007, 1008, 1009, 1011, 1012, 1013)


async def _messages(connection: ClientConnection) -> AsyncIterator[str | bytes]:
    from websockets.exceptions import ConnectionClosed

    with contextlib.suppress(ConnectionClosed):
        while True:
            yield await connection.recv()


class _Http:
    """An HTTP/1.1 connection."""

    def __init__(self, driver: Driver, target: Target) -> None:
        self._driver = driver
        self._target = target
        self._tap = ConnectionTap(0, driver.style)
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._by = "server"

    async def open(self, number: int) -> None:
        target = self._target
        context = ssl.create_default_context() if target.tls else None
        try:
            reader, self._writer = await asyncio.open_connection(target.host, target.port, ssl=context)
        except OSError as error:
            raise ConnectError(f"no server at {target.url} ({error.strerror or error})") from None
        self._tap = ConnectionTap(number, self._driver.style)
        self._reading = asyncio.create_task(self._read(reader))

    async def send(self, move: Frame | Request) -> None:
        assert self._writer is not None
        assert isinstance(move, Request)
        body = move.wire_body()
        shown = as_headers(self._target.authorization)
        dropped = {*_FRAMING, *(_CREDENTIALS if shown else ())}
        kept = [f"{name}: {value}" for name, value in move.headers.items() if name not in dropped]
        kept += [f"{name}: {value}" for name, value in shown.items()]
        sized = [f"content-length: {len(body)}"] if body or move.method not in ("GET", "HEAD") else []
        lines = [f"{move.method} {move.path} HTTP/1.1", f"host: {self._target.authority}", *kept, *sized, "", ""]
        data = "\r\n".join(lines).encode("latin-1", "replace") + body
        self._tell(self._tap.asked(self._driver.now(), self._tap.requests.feed(data)))
        with contextlib.suppress(OSError):
            self._writer.write(data)
            await self._writer.drain()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(2**16):
                self._tell(self._tap.answered(self._driver.now(), data))
        self._tell(self._tap.end(self._driver.now(), self._by))

    def _tell(self, events: Iterable[Event]) -> None:
        for event in events:
            self._driver.take(event)

    async def settle(self) -> None:
        await asyncio.sleep(0)

    async def leave(self, move: Close | Drop | None) -> None:
        assert self._writer is not None
        assert self._reading is not None
        if not self._reading.done():
            self._by = "client"
        if isinstance(move, Drop):
            self._writer.transport.abort()
        else:
            self._writer.close()
        await self._reading
