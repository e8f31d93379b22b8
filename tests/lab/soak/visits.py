"""Clients that come and go: whole answers, cut connections, cancelled and half requests, readers that hardly read."""

from __future__ import annotations

import asyncio
import contextlib
import json
from random import Random
from typing import TYPE_CHECKING, TypeAlias

from lmtool.core.errors import LmtoolError
from tests.lab.soak.attacks import GRPC, ROUTES, SOCKETS, request_body, session_message
from tests.lab.soak.connection import CLOSE, TEXT, Connection, ConnectionEnded, frame

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from tests.lab.soak.connection import Address
    from tests.lab.soak.tally import Tally
    from tests.lab.soak.wires import SoakTarget

TOKENS = 8
SLOW_TOKENS = 400
SLOW_SECONDS = (2, 20)
"""For how long a slow reader takes a byte a second before it reads on or leaves."""
SMALL_BUFFER = 4096
"""Bytes that the system keeps for a slow reader."""
_BUSY = frozenset({429, 503})
"""Statuses of a server that has no room: right, and counted."""

Visit: TypeAlias = "Callable[[Visitor, str], Awaitable[str]]"


class Visitor:
    """One place of the load, at which clients come one after the other; the same for its seed."""

    def __init__(self, address: Address, target: SoakTarget, tally: Tally, seed: str, timeout: float) -> None:
        """timeout: seconds without a byte after which an answer counts as lost."""
        self._address = address
        self._target = target
        self._tally = tally
        self._random = Random(seed)  # no secret
        self._timeout = timeout

    async def turn(self, part: str) -> None:
        """One visit of a part: `churn`, `faults` or `slow`."""
        wire = self._random.choice(self._target.wires)
        visit = self._random.choice(_visits(part, wire))
        try:
            outcome = await visit(self, wire)
        except ConnectionEnded as ended:
            outcome = "closed"
            if part == "churn":
                self._tally.breach(f"churn {wire}: the server closed the connection of a plain request ({ended})")
        except TimeoutError:
            outcome = "no answer"
            self._tally.breach(f"{part} {wire}: no byte within {self._timeout:g} s")
        except LmtoolError as error:
            outcome = error.code
            if part == "churn" and not error.retryable:
                self._tally.breach(f"churn {wire}: {error.sentence}")
        self._tally.count(part, wire, outcome)

    @contextlib.asynccontextmanager
    async def _open(self, receive_buffer: int | None = None):  # type: ignore[no-untyped-def]
        connection = await Connection.open(self._address, receive_buffer=receive_buffer)
        try:
            yield connection
        finally:
            connection.abort()

    async def _upgrade(self, connection: Connection, wire: str) -> str:
        """Open the wire's WebSocket; how it was refused, empty where it is open."""
        async with asyncio.timeout(self._timeout):
            head = await connection.upgrade(self._address, SOCKETS[wire].format(pool=self._target.pool))
        if head.status not in {101, *_BUSY}:
            self._tally.breach(f"{wire}: a handshake was answered with {head.status}")
        return "" if head.status == 101 else str(head.status)

    def _prompt(self) -> str:
        return f"Once upon a time {self._random.randrange(10**6)}"

    def _generate(self, stream: int, tokens: int, **more: object) -> bytes:
        members = {"stream_id": stream, "prompt": self._prompt(), "max_tokens": tokens, "ignore_eos": True, **more}
        if self._target.model:
            members["model"] = self._target.model
        return frame(TEXT, f"GENERATE {json.dumps(members)}".encode())

    def _message(self, wire: str, tokens: int) -> bytes:
        """A request for an answer as a message of the wire."""
        if wire == "LMTP":
            return self._generate(1, tokens)
        if wire == "Evergreen":
            return frame(TEXT, json.dumps(session_message("n", self._prompt(), self._target.model, tokens)).encode())
        says = {"id": "1", "message": {"role": "user", "content": self._prompt()}}
        return frame(TEXT, json.dumps(says).encode())

    def _posted(self, wire: str, tokens: int, *, streamed: bool, **more: object) -> bytes:
        body = request_body(wire, self._target.model, self._prompt(), tokens) | more
        if streamed and wire != "unified":
            body["stream"] = True
        path = ROUTES[wire].format(pool=self._target.pool)
        return self._address.request("POST", path, json.dumps(body).encode())

    async def whole_lmtp(self, wire: str) -> str:
        """A few streams at once, read to their ends."""
        async with self._open() as connection:
            if refused := await self._upgrade(connection, wire):
                return refused
            count = self._random.choice((1, 1, 2, 5))
            for stream in range(count):
                await connection.send(self._generate(stream, TOKENS))
            outcome = await self._endings(connection, count)
            await connection.send(frame(CLOSE, b"\x03\xe8"))
        return outcome

    async def _endings(self, connection: Connection, count: int) -> str:
        """Read up to the ends of all streams; a step brings several in one frame."""
        ended = 0
        while ended < count:
            async with asyncio.timeout(self._timeout):
                opcode, payload = await connection.frame()
            if opcode == CLOSE:
                raise ConnectionEnded(f"code {int.from_bytes(payload[:2], 'big')}")
            if b'"error"' in payload:
                if b"limit" not in payload and b"overloaded" not in payload:
                    self._tally.breach(f"churn LMTP: {payload[:200].decode('utf-8', 'replace')}")
                return "error"
            ended += payload.count(b'"finish_reason":"')
        return "whole"

    async def cancelled_lmtp(self, wire: str) -> str:
        """A long stream, cancelled after its first token."""
        async with self._open() as connection:
            if refused := await self._upgrade(connection, wire):
                return refused
            await connection.send(self._generate(1, SLOW_TOKENS))
            async with asyncio.timeout(self._timeout):
                await connection.frame()
            await connection.send(frame(TEXT, b'CANCEL {"stream_id": 1}'))
            await self._endings(connection, 1)
        return "cancelled"

    async def cut_socket(self, wire: str) -> str:
        """Leave without a word while an answer comes."""
        async with self._open() as connection:
            if refused := await self._upgrade(connection, wire):
                return refused
            await connection.send(self._message(wire, SLOW_TOKENS))
            for _ in range(self._random.choice((0, 1, 5))):
                async with asyncio.timeout(self._timeout):
                    if (await connection.frame())[0] == CLOSE:
                        return "closed"
        return "cut"

    async def half_socket(self, wire: str) -> str:
        """Leave in the middle of a handshake, or of a frame."""
        async with self._open() as connection:
            if self._random.random() < 0.5:
                handshake = self._address.handshake(SOCKETS[wire].format(pool=self._target.pool))
                await connection.send(handshake[: self._random.randrange(1, len(handshake))])
                return "half a handshake"
            if refused := await self._upgrade(connection, wire):
                return refused
            message = self._message(wire, TOKENS)
            await connection.send(message[: self._random.randrange(1, len(message))])
        return "half a message"

    async def whole_session(self, wire: str) -> str:
        """An answer in a session of Evergreen, over either of its transports."""
        import lmtool

        url = self._address.evergreen if wire != GRPC else f"grpc://{self._target.grpc}"
        shown = self._address.authorization
        key = None if shown is None else shown.rpartition(" ")[2]
        cut = wire == GRPC and self._random.random() < 0.3
        async with asyncio.timeout(self._timeout), lmtool.session(url, api_key=key) as session:
            options = {"max_tokens": TOKENS, "ignore_eos": True}
            pieces = session.generate(self._prompt(), model=self._target.model, **options)
            async with contextlib.aclosing(pieces):
                async for _ in pieces:
                    if cut:
                        return "cancelled"
        return "whole"

    async def whole_chat_stream(self, wire: str) -> str:
        """An answer over the unified API's WebSocket."""
        async with self._open() as connection:
            if refused := await self._upgrade(connection, wire):
                return refused
            await connection.send(self._message(wire, TOKENS))
            while True:
                async with asyncio.timeout(self._timeout):
                    opcode, payload = await connection.frame()
                if opcode == CLOSE or b'"error"' in payload:
                    return "error"
                if b'"finish_reason":"' in payload.replace(b'": "', b'":"'):
                    return "whole"

    async def whole_http(self, wire: str) -> str:
        """A few requests over one connection."""
        async with self._open() as connection:
            for _ in range(self._random.choice((1, 1, 3))):
                await connection.send(self._posted(wire, TOKENS, streamed=self._random.random() < 0.7))
                async with asyncio.timeout(self._timeout):
                    head = await connection.head()
                    body = await connection.body(head)
                if head.status in _BUSY:
                    return str(head.status)
                if head.status != 200:
                    text = body[:200].decode("utf-8", "replace")
                    self._tally.breach(f"churn {wire}: a plain request was answered with {head.status}: {text}")
                    return str(head.status)
        return "whole"

    async def cut_http(self, wire: str) -> str:
        """Leave while the answer comes."""
        async with self._open() as connection:
            await connection.send(self._posted(wire, SLOW_TOKENS, streamed=True))
            async with asyncio.timeout(self._timeout):
                head = await connection.head()
                await connection.read(self._random.choice((1, 300)))
        return "cut" if head.status == 200 else str(head.status)

    async def half_http(self, wire: str) -> str:
        """Leave before the request is whole, or with it and at once."""
        async with self._open() as connection:
            request = self._posted(wire, TOKENS, streamed=True)
            await connection.send(request[: self._random.randrange(1, len(request) + 1)])
        return "half a request"

    async def slow_socket(self, wire: str) -> str:
        """Take a byte a second of a long answer; then the rest of it, or leave."""
        async with self._open(SMALL_BUFFER) as connection:
            if refused := await self._upgrade(connection, wire):
                return refused
            if wire == "LMTP":
                for stream in range(4):
                    await connection.send(self._generate(stream, SLOW_TOKENS, top_logprobs=20))
            else:
                await connection.send(self._message(wire, SLOW_TOKENS))
            return await self._slowly(connection)

    async def slow_http(self, wire: str) -> str:
        """Take a byte a second of a long answer over HTTP."""
        async with self._open(SMALL_BUFFER) as connection:
            more = {"chat": {"logprobs": True, "top_logprobs": 5}, "completions": {"logprobs": 5}}.get(wire, {})
            await connection.send(self._posted(wire, SLOW_TOKENS, streamed=True, **more))
            return await self._slowly(connection)

    async def _slowly(self, connection: Connection) -> str:
        for _ in range(self._random.randint(*SLOW_SECONDS)):
            if not await connection.read(1):
                return "closed"
            await asyncio.sleep(1.0)
        if self._random.random() < 0.5:
            return "left"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2.0):
                while await connection.read():
                    pass
        return "read on"


def _visits(part: str, wire: str) -> tuple[Visit, ...]:
    """The kinds of visits of a part over a wire."""
    if wire == GRPC:
        return (Visitor.whole_session,)
    if wire in ROUTES:
        return _HTTP[part]
    if part == "churn":
        return (_WHOLE[wire],)
    if part == "slow":
        return (Visitor.slow_socket,)
    return (Visitor.cut_socket, Visitor.half_socket, *((Visitor.cancelled_lmtp,) if wire == "LMTP" else ()))


_HTTP: Mapping[str, tuple[Visit, ...]] = {
    "churn": (Visitor.whole_http,),
    "faults": (Visitor.cut_http, Visitor.half_http),
    "slow": (Visitor.slow_http,),
}
_WHOLE: Mapping[str, Visit] = {
    "LMTP": Visitor.whole_lmtp,
    "Evergreen": Visitor.whole_session,
    "chatStream": Visitor.whole_chat_stream,
}
