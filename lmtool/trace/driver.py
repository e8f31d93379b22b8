"""Replay client: sends recorded requests to a real server, each once the recorded answers before it have arrived."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from lmtool.core.errors import ConnectError
from lmtool.net.access.outgoing import as_headers
from lmtool.net.websocket_closing import cut_reason
from lmtool.protocol.lmtp import frames
from lmtool.protocol.lmtp.transport import dial
from lmtool.trace.connection_tap import ConnectionTap, session_message
from lmtool.trace.events import Close, Done, Drop, Frame, Message, Open, Piece, Remark, Request, parse_frame
from lmtool.trace.proxy import CONNECT_LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from websockets.asyncio.client import ClientConnection

    from lmtool.trace.events import Event
    from lmtool.trace.proxy import Target

_LARGEST = 2**26
_FRAMING = ("transfer-encoding", "content-length", "host", "accept-encoding")
_CREDENTIALS = ("authorization", "x-api-key")
_SENDABLE_CODES = (1000, 1001, 1003, 1007, 1008, 1009, 1011, 1012, 1013)

Key: TypeAlias = "tuple[int, str]"
"""A connection and a kind of answer on it: a command with a stream id, `http`, or `nodes` of a session."""
Count: TypeAlias = "tuple[int, int]"
"""Answers of a key that have ended, and entries since the last of them; compared in this order."""
ClientEvent: TypeAlias = Frame | Message | Request | Close | Drop
Sendable: TypeAlias = Frame | Message | Request
_Wire: TypeAlias = "_Socket | _Http"


class AnswerCounts:
    """Counts a server's answers; call `add` with each event, in order."""

    def __init__(self) -> None:
        self._counts: dict[Key, Count] = {}
        self._new: dict[Key, Count] = {}
        self._ended: set[int] = set()

    def add(self, event: Event) -> None:
        """Count the answers in an event."""
        if isinstance(event, Frame) and event.direction == "<":
            command, entries = event.answer()
            for entry in entries:
                if not {"progress", "system", "ignored"} & entry.keys():  # these are not answers
                    name = f"{command} {frames.stream_name(frames.stream_key(entry.get('stream_id')))}"
                    self._count((event.connection, name), ended=frames.ends(command, entry))
        elif isinstance(event, Message) and event.direction == "<":
            for _ in (each for each in event.fragments() if not each.get("continued")):
                self._count((event.connection, "nodes"), ended=True)
        elif isinstance(event, Done) or (isinstance(event, Piece) and event.kind == "sse"):
            self._count((event.connection, "http"), ended=isinstance(event, Done))
        elif isinstance(event, Close | Drop):
            self._ended.add(event.connection)

    def _count(self, key: Key, *, ended: bool) -> None:
        done, since = self._counts.get(key, (0, 0))
        self._counts[key] = self._new[key] = (done + 1, 0) if ended else (done, since + 1)

    def take_new(self) -> Mapping[Key, Count]:
        """Counts that changed since the last call."""
        new, self._new = self._new, {}
        return new

    def has_ended(self, connection: int) -> bool:
        """True if a connection has ended."""
        return connection in self._ended

    def missing(self, expected: Mapping[Key, Count]) -> list[Key]:
        """Keys below their expected counts whose connections are still open."""
        counts = self._counts
        return [key for key, n in expected.items() if counts.get(key, (0, 0)) < n and key[0] not in self._ended]


@dataclass(frozen=True, slots=True)
class ClientAction:
    """One action of a client, or the end of all actions."""

    event: ClientEvent | None
    """A frame or request to send, or a connection to close (or to wait for, if the server closed it); None: the end."""
    after: Mapping[Key, Count]
    """Answers that arrived since the previous action: this one waits for as many, or for the end of their streams."""
    in_session: bool = False
    """True if its connection is an Evergreen session; a frame is then what could not be parsed as a message."""


def client_actions(events: Iterable[Event]) -> Iterator[ClientAction]:
    """Actions of a recording's clients on all connections, in recorded order."""
    counts, sessions = AnswerCounts(), set[int]()
    for event in events:
        if isinstance(event, Message) or (isinstance(event, Open) and event.facts.get("protocol") == "evergreen"):
            sessions.add(event.connection)
        if isinstance(event, Request | Close | Drop) or (isinstance(event, Frame | Message) and event.direction == ">"):
            yield ClientAction(event, counts.take_new(), event.connection in sessions)
        counts.add(event)
    yield ClientAction(None, counts.take_new())


class Driver:
    """Performs the actions of a recording against a server and emits all traffic as events.

    Each action waits until as many answers have arrived as the recorded client had received before it; answers on
    closed connections and ended streams are not awaited.
    """

    def __init__(
        self, target: Target, emit: Callable[[Event], None], *, timeout: float = 60.0, speed: float | None = None
    ) -> None:
        """Make a client of `target`; `run` needs an event loop.

        emit: takes each event, in order of time. timeout: seconds to wait for missing answers. speed: also wait for the
        recorded times, this many times as fast; None sends as soon as possible.
        """
        self._target = target
        self._emit = emit
        self._timeout = timeout
        self._speed = speed
        self._counts = AnswerCounts()
        self._wires: dict[int, _Wire] = {}
        self._progress = asyncio.Event()
        self._start = 0.0

    async def run(self, actions: Iterable[ClientAction]) -> str:
        """Perform all actions, then close the connections that are still open.

        Returns a sentence on the first missing answer, empty if none is missing. Raises `ConnectError`.
        """
        loop = asyncio.get_running_loop()
        self._start = loop.time()
        trouble = ""
        try:
            for action in actions:
                if action.event is not None and self._speed is not None:
                    await asyncio.sleep(self._start + action.event.time / self._speed - loop.time())
                trouble = trouble or await self._wait_for(action.after)
                if action.event is not None:
                    await self._perform(action.event, in_session=action.in_session)
            for wire in self._wires.values():
                await wire.settle()
        finally:
            for wire in self._wires.values():
                await wire.leave(None)
        return trouble

    async def _wait_for(self, counts: Mapping[Key, Count]) -> str:
        try:
            async with asyncio.timeout(self._timeout):
                while missing := self._counts.missing(counts):
                    await self._next()
        except TimeoutError:
            # Continue without further waiting: half an answer shows more than none.
            self._timeout = 0.0
            connection, name = missing[0]
            return f"{name} on connection {connection}: fewer answers than recorded"
        return ""

    async def _next(self) -> None:
        self._progress.clear()
        await self._progress.wait()

    async def _perform(self, event: ClientEvent, *, in_session: bool) -> None:
        number = event.connection
        if isinstance(event, Close | Drop):
            await self._part(event)
            return
        if self._counts.has_ended(number):
            self.record(Remark(self.now(), "note", number, "not sent: the connection is closed"))
            return
        if number not in self._wires:
            self._wires[number] = await self._connect(event, in_session=in_session)
        await self._wires[number].send(event)

    async def _part(self, event: Close | Drop) -> None:
        """Close a connection as the recorded client did, or wait until the server closes it."""
        wire = self._wires.get(event.connection)
        if wire is None:
            return
        if (event.by if isinstance(event, Close) else event.facts.get("by")) != "server":
            await wire.leave(event)
            return
        with contextlib.suppress(TimeoutError):  # the comparison reports that it is still open
            async with asyncio.timeout(self._timeout):
                while not self._counts.has_ended(event.connection):
                    await self._next()

    async def _connect(self, event: Sendable, *, in_session: bool) -> _Wire:
        wire: _Wire
        if isinstance(event, Request):
            wire = _Http(self, self._target, event.connection)
        else:
            wire = _Socket(self, self._target, event.connection, in_session=in_session)
        try:
            async with asyncio.timeout(CONNECT_LIMIT):
                await wire.open()
        except TimeoutError:
            raise ConnectError(f"no connection to {self._target.url} within {CONNECT_LIMIT:g} s") from None
        return wire

    def record(self, event: Event) -> None:
        """Emit an event and wake waiting actions."""
        self._counts.add(event)
        self._emit(event)
        self._progress.set()

    def now(self) -> float:
        """Seconds since the driver began."""
        return asyncio.get_running_loop().time() - self._start


class _Socket:
    """A WebSocket to the server, for LMTP or an Evergreen session (whatever its recorded transport)."""

    def __init__(self, driver: Driver, target: Target, number: int, *, in_session: bool) -> None:
        self._driver = driver
        self._in_session = in_session
        url = target.url.replace("http", "ws", 1) if target.url.startswith("http") else target.url
        self._url = f"{url.rstrip('/')}/evergreen" if in_session and target.unix is None else url
        self._route = "/evergreen" if in_session else "/"
        self._authorization = target.authorization
        self._number = number
        self._dropped = False
        self._connection: ClientConnection
        self._reading: asyncio.Task[None]

    async def open(self) -> None:
        """Connect. Raises `ConnectError`, `AccessDeniedError`."""
        options = {"compression": None, "max_size": _LARGEST, "ping_interval": None, "proxy": None}
        try:
            self._connection = await dial(self._url, self._authorization, route=self._route, **options)
        except ConnectError as error:
            error.hints = ("start one:  lmtool serve",)
            raise
        facts = {"peer": "client", **({"protocol": "evergreen"} if self._in_session else {})}
        self._driver.record(Open(self._driver.now(), self._number, facts))
        self._reading = asyncio.create_task(self._read())

    async def send(self, event: Sendable) -> None:
        """Send a message; the reader notices a lost connection."""
        from websockets.exceptions import ConnectionClosed

        assert not isinstance(event, Request)
        if isinstance(event, Frame):
            wire = event.wire()
        else:
            hexadecimal = event.value.get("hex")
            wire = bytes.fromhex(hexadecimal) if isinstance(hexadecimal, str) else json.dumps(event.value)
        self._record(">", wire)
        with contextlib.suppress(ConnectionClosed):
            await self._connection.send(wire)

    def _record(self, direction: Literal[">", "<"], message: str | bytes) -> None:
        now, value = self._driver.now(), session_message(message) if self._in_session else None
        if value is None:
            self._driver.record(Frame(now, direction, self._number, parse_frame(message, "py")))
        else:
            self._driver.record(Message(now, direction, self._number, value))

    async def _read(self) -> None:
        from websockets.exceptions import ConnectionClosed

        with contextlib.suppress(ConnectionClosed):
            while True:
                self._record("<", await self._connection.recv())
        protocol, now = self._connection.protocol, self._driver.now()
        code, reason, server_first = protocol.close_code, protocol.close_reason or "", protocol.close_rcvd_then_sent
        if self._dropped or protocol.close_rcvd is None:
            self._driver.record(Drop(now, self._number, {"by": "client" if self._dropped else "server"}))
        else:
            self._driver.record(Close(now, self._number, "server" if server_first else "client", code, reason))

    async def settle(self) -> None:
        """Wait until everything that the server sent before now has arrived, as far as a ping can show."""
        from websockets.exceptions import ConnectionClosed

        with contextlib.suppress(ConnectionClosed, TimeoutError):
            async with asyncio.timeout(CONNECT_LIMIT):
                await (await self._connection.ping())

    async def leave(self, event: Close | Drop | None) -> None:
        """Close the connection as recorded; does nothing if it is closed."""
        if isinstance(event, Drop):
            self._dropped = not self._reading.done()
            self._connection.transport.abort()
        else:
            code = event.code if event is not None and event.code in _SENDABLE_CODES else 1000
            await self._connection.close(code, "" if event is None else cut_reason(event.reason))
        await self._reading


class _Http:
    """An HTTP/1.1 connection to the server."""

    def __init__(self, driver: Driver, target: Target, number: int) -> None:
        self._driver = driver
        self._target = target
        self._tap = ConnectionTap(number, "py")
        self._ended_by = "server"
        self._writer: asyncio.StreamWriter
        self._reading: asyncio.Task[None]

    async def open(self) -> None:
        target = self._target
        try:
            reader, self._writer = await target.open()
        except OSError as error:
            raise ConnectError(f"no server at {target.url} ({error.strerror or error})") from None
        self._reading = asyncio.create_task(self._read(reader))

    async def send(self, event: Sendable) -> None:
        assert isinstance(event, Request)
        body = event.wire_body()
        credentials = as_headers(self._target.authorization)
        replaced = {*_FRAMING, *(_CREDENTIALS if credentials else ())}
        headers = {name: value for name, value in event.headers.items() if name not in replaced} | credentials
        if body or event.method not in ("GET", "HEAD"):
            headers["content-length"] = str(len(body))
        fields = [f"{name}: {value}" for name, value in headers.items()]
        lines = [f"{event.method} {event.path} HTTP/1.1", f"host: {self._target.authority}", *fields, "", ""]
        data = "\r\n".join(lines).encode("latin-1", "replace") + body
        self._record(self._tap.request_parts(self._driver.now(), self._tap.requests.feed(data)))
        with contextlib.suppress(OSError):
            self._writer.write(data)
            await self._writer.drain()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(2**16):
                self._record(self._tap.response_bytes(self._driver.now(), data))
        self._record(self._tap.end(self._driver.now(), self._ended_by))

    def _record(self, events: Iterable[Event]) -> None:
        for event in events:
            self._driver.record(event)

    async def settle(self) -> None:
        await asyncio.sleep(0)

    async def leave(self, event: Close | Drop | None) -> None:
        if not self._reading.done():
            self._ended_by = "client"
        if isinstance(event, Drop):
            self._writer.transport.abort()
        else:
            self._writer.close()
        await self._reading
