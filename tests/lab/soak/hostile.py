"""Sends attacks and judges the replies: a refusal, an answer or a closed connection is right, all else a breach."""

from __future__ import annotations

import asyncio
import contextlib
import json
from random import Random
from typing import TYPE_CHECKING, Any

from tests.lab.soak.attacks import Attack, generate
from tests.lab.soak.connection import BINARY, CLOSE, TEXT, Connection, ConnectionEnded, frame

if TYPE_CHECKING:
    from tests.lab.soak.connection import Address
    from tests.lab.soak.tally import Tally
    from tests.lab.soak.wires import SoakTarget

BATCH = 16
"""Messages on one LMTP connection before it is asked whether it has read them."""
PATIENCE = 1.0
"""Seconds that a request is given that is not whole: the server may wait for the rest."""
_SYNC = "soak sync"
_SPEAKS_EXTENSIONS = b'MODEL_INFO {"stream_id": "soak", "list": true, "lmtp": 1}'
"""What makes the server tell the kinds of errors (SPEC.md, EXT-2)."""
_FAULTS = {500}
"""Statuses that say that the server failed, not the request."""
_FAULT_CODES = ("server", "error")
"""LMTP's `error_code` of the same."""
_INTERNAL_ERROR = 1011
"""The close code of a server that failed (RFC 6455, 7.4.1)."""


class Attacker:
    """One hostile client: an endless series of attacks over all wires, the same for its seed."""

    def __init__(self, address: Address, target: SoakTarget, tally: Tally, seed: str, timeout: float) -> None:
        """timeout: seconds within which what must be answered is answered."""
        self._address = address
        self._target = target
        self._tally = tally
        self._seed = seed
        self._random = Random(seed)  # no secret
        self._timeout = timeout
        self._number = 0

    def _next(self, wire: str) -> Attack:
        self._number += 1
        return generate(self._random, wire, self._address, self._target.model, self._target.pool)

    async def turn(self) -> int:
        """Send a few; how many."""
        wire = self._random.choice(self._target.wires)
        attacks = [self._next(wire) for _ in range(BATCH if wire == "LMTP" else 1)]
        messages = sorted((one for one in attacks if one.delivery == "message"), key=_ends_connection)
        if wire == "LMTP" and messages:
            await self._guarded(messages, self._messages(messages))
        for attack in attacks:
            if attack.delivery != "message" or wire != "LMTP":
                await self._guarded([attack], self._one(attack))
        return len(attacks)

    async def _guarded(self, attacks: list[Attack], sending: Any) -> None:  # a coroutine
        """Await, and note what became of the attacks."""
        first = attacks[0]
        try:
            outcome = await sending
        except TimeoutError:
            self._breach(first, f"no answer within {self._timeout:g} s")
            outcome = "no answer"
        except ConnectionEnded:
            outcome = "closed"
        for one in attacks:
            self._tally.count("hostile", one.wire, outcome)

    def _breach(self, attack: Attack, what: str) -> None:
        where = f"seed {self._seed}, attack {self._number}"
        self._tally.breach(f"hostile {attack.wire}, {attack.kind}: {what} ({where})")

    async def _one(self, attack: Attack) -> str:
        if attack.delivery == "call":
            return await self._call(attack)
        connection = await Connection.open(self._address)
        try:
            if attack.delivery == "frames":
                return await self._frames(connection, attack)
            if attack.delivery == "message":
                return await self._session(connection, attack)
            await connection.send(attack.data)
            return await self._answer(connection, attack)
        finally:
            connection.abort()

    async def _answer(self, connection: Connection, attack: Attack) -> str:
        """The status of an HTTP answer."""
        whole = attack.delivery == "request"
        try:
            async with asyncio.timeout(self._timeout if whole else PATIENCE):
                head = await connection.head()
                body = await connection.body(head)
        except TimeoutError:
            if whole:
                raise
            return "waits"
        if head.status in _FAULTS:
            self._breach(attack, f"status {head.status}: {body[:300].decode('utf-8', 'replace')}")
        return str(head.status)

    async def _upgraded(self, connection: Connection, attack: Attack) -> bool:
        async with asyncio.timeout(self._timeout):
            head = await connection.upgrade(self._address, attack.path)
        if head.status != 101:
            self._tally.count("hostile", attack.wire, f"handshake {head.status}")
        return head.status == 101

    async def _frames(self, connection: Connection, attack: Attack) -> str:
        """How a connection ended that broke RFC 6455; one that only waits is right as well."""
        if not await self._upgraded(connection, attack):
            return "refused"
        await connection.send(attack.data)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                return await self._closing(connection, attack)
        return "waits"

    async def _session(self, connection: Connection, attack: Attack) -> str:
        """How a session took one message; one that is right goes on."""
        if not await self._upgraded(connection, attack):
            return "refused"
        await connection.send(frame(BINARY if attack.binary else TEXT, attack.data))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                return await self._closing(connection, attack)
        return "goes on"

    async def _closing(self, connection: Connection, attack: Attack) -> str:
        """Read up to the close, or the first answer of a session."""
        while True:
            opcode, payload = await connection.frame()
            if opcode != CLOSE:
                if attack.wire != "LMTP":
                    return "answered"
                continue
            code, reason = int.from_bytes(payload[:2], "big"), payload[2:].decode("utf-8", "replace")
            if code == _INTERNAL_ERROR or reason.startswith(("INTERNAL", "UNKNOWN")):
                self._breach(attack, f"closed with {code} {reason}")
            return f"closed {reason.partition(':')[0] if code >= 4000 else code}"

    async def _messages(self, attacks: list[Attack]) -> str:
        """LMTP: messages over one connection, and a last one whose answer shows that all of them were read."""
        connection = await Connection.open(self._address)
        try:
            if not await self._upgraded(connection, attacks[0]):
                return "refused"
            await connection.send(frame(TEXT, _SPEAKS_EXTENSIONS))
            for attack in attacks:
                await connection.send(frame(BINARY if attack.binary else TEXT, attack.data))
            await connection.send(frame(TEXT, f'MODEL_INFO {{"stream_id": "{_SYNC}", "list": true}}'.encode()))
            async with asyncio.timeout(self._timeout):
                return await self._synced(connection, attacks)
        finally:
            connection.abort()

    async def _synced(self, connection: Connection, attacks: list[Attack]) -> str:
        while True:
            opcode, payload = await connection.frame()
            if opcode == CLOSE:
                code = int.from_bytes(payload[:2], "big")
                if code == _INTERNAL_ERROR:
                    self._breach(attacks[0], f"closed with 1011 {payload[2:].decode('utf-8', 'replace')}")
                return f"closed {code}"
            for entry in _entries(payload):
                if entry.get("error_code") in _FAULT_CODES:
                    self._breach(attacks[0], f"the server failed: {entry.get('error')}")
                if entry.get("stream_id") == _SYNC:
                    return "answered"

    async def _call(self, attack: Attack) -> str:
        """One message of a gRPC session; the status of the call."""
        import grpc
        import grpc.aio

        assert self._target.grpc is not None
        path = "/evergreen.v2.EvergreenService/StartSession"
        async with grpc.aio.insecure_channel(self._target.grpc) as channel:
            call = channel.stream_stream(path)(metadata=self._target.metadata(self._address))
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await call.write(attack.data)
                await call.done_writing()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PATIENCE):
                        while await call.read() is not grpc.aio.EOF:
                            pass
            if not call.done():
                call.cancel()
                return "goes on"
            status = await call.code()
            if status in {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}:
                self._breach(attack, f"status {status.name}: {await call.details()}")
            return str(status.name)


def _ends_connection(attack: Attack) -> bool:
    """True if a message closes its WebSocket: text that is not UTF-8 (RFC 6455, 8.1)."""
    try:
        attack.data.decode()
    except UnicodeDecodeError:
        return not attack.binary
    return False


def _entries(payload: bytes) -> list[dict[str, Any]]:
    """The entries of an LMTP answer."""
    _, _, text = payload.partition(b" ")
    with contextlib.suppress(ValueError):
        entries = json.loads(text)
        if isinstance(entries, list):
            return [one for one in entries if isinstance(one, dict)]
    return []
