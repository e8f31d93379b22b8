"""A bare client of LMTP with one connection and no extensions: the tokens that it gets, and when."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lmtool.core.errors import ConnectError
from tests.lab.soak.connection import CLOSE, PING, PONG, TEXT, Connection, ConnectionEnded, frame

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.lab.soak.connection import Address


@dataclass(slots=True)
class StreamTimes:
    """One stream as its client sees it. Times are seconds of `time.perf_counter`."""

    sent: float
    stamps: list[float] = field(default_factory=list)
    """Arrival of each token; those of one frame share a time."""
    ended: bool = False
    error: str | None = None

    @property
    def gaps(self) -> list[float]:
        """Times between neighbouring tokens."""
        return [later - earlier for earlier, later in zip(self.stamps, self.stamps[1:], strict=False)]


class BareClient:
    """One connection with any number of streams; reads as fast as it can while `reading` runs."""

    def __init__(self, connection: Connection, on_end: Callable[[int], None] = lambda _: None) -> None:
        """on_end: called with the id of each stream that ended."""
        self._connection = connection
        self._on_end = on_end
        self._pongs: asyncio.Queue[None] = asyncio.Queue()
        self.streams: dict[int, StreamTimes] = {}

    @classmethod
    async def open(cls, address: Address, *, receive_buffer: int | None = None) -> BareClient:
        """Connect. Raises `ConnectError` for any refusal."""
        try:
            connection = await Connection.open(address, receive_buffer=receive_buffer)
            head = await connection.upgrade(address, "/")
        except (ConnectionEnded, TimeoutError) as error:
            raise ConnectError(f"no LMTP server at {address.url} ({error or 'no answer'})") from None
        if head.status != 101:
            raise ConnectError(f"the server at {address.url} takes no more connections (HTTP status {head.status})")
        return cls(connection)

    def listen(self, on_end: Callable[[int], None]) -> None:
        """Call this with the id of each stream that ends from now on."""
        self._on_end = on_end

    async def generate(self, stream: int, **members: object) -> None:
        """Begin a stream."""
        self.streams[stream] = StreamTimes(time.perf_counter())
        request = {"stream_id": stream, "ignore_eos": True, **members}
        await self._connection.send(frame(TEXT, f"GENERATE {json.dumps(request)}".encode()))

    async def round_trip(self) -> None:
        """Return once the server has read all that was sent before; `read` has to run."""
        await self._connection.send(frame(PING, b"p"))
        await self._pongs.get()

    async def read(self) -> None:
        """Read until the connection ends, or this is cancelled."""
        with contextlib.suppress(ConnectionEnded):
            while True:
                opcode, payload = await self._connection.frame()
                if opcode == PONG:
                    self._pongs.put_nowait(None)
                elif opcode == CLOSE:
                    break
                elif payload.startswith((b"TOKEN", b"MSG")):
                    self._note(json.loads(payload.partition(b" ")[2]))
        for stream in self.streams.values():
            if not stream.ended:
                stream.ended, stream.error = True, "the connection ended"

    def _note(self, entries: list[dict[str, Any]]) -> None:
        now = time.perf_counter()
        for entry in entries:
            stream = self.streams.get(entry.get("stream_id", -1))
            if stream is None:
                continue
            if "token" in entry:
                stream.stamps.append(now)
            if entry.get("error") is not None or entry.get("finish_reason") is not None:
                stream.ended, stream.error = True, entry.get("error")
                self._on_end(entry["stream_id"])

    async def drip(self) -> None:
        """Read one byte a second until the connection ends, or this is cancelled."""
        with contextlib.suppress(ConnectionEnded):
            while await self._connection.read(1):  # a pace, no poll
                await asyncio.sleep(1.0)

    def abort(self) -> None:
        """Cut the connection."""
        self._connection.abort()
