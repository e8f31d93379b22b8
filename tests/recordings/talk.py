"""A plain client for scenarios: sends any frame, waits for what a scenario needs before it goes on."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

PATIENCE = 120.0


class Talk:
    """One connection, and what has come over it."""

    def __init__(self, connection: ClientConnection, model: str | None) -> None:
        self._connection = connection
        self._model = model
        self._tokens: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()
        self._messages: list[dict[str, Any]] = []
        self._changed = asyncio.Condition()
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        with contextlib.suppress(ConnectionClosed):
            while True:
                command, _, payload = str(await self._connection.recv()).partition(" ")
                async with self._changed:
                    for entry in json.loads(payload):
                        self._take(command, entry)
                    self._changed.notify_all()

    def _take(self, command: str, entry: dict[str, Any]) -> None:
        key = json.dumps(entry["stream_id"])
        if command == "MSG":
            self._messages.append(entry)
            return
        self._tokens[key] += "token" in entry
        self._ended[key] += bool(entry.get("finish_reason") or entry.get("error"))

    async def send(self, command: str, **fields: Any) -> None:
        """Send a command; `model` is added unless it is given (`...` leaves it out)."""
        payload = {"model": self._model, **fields}
        if payload["model"] is ...:
            del payload["model"]
        await self.frame(f"{command} {json.dumps(payload)}")

    async def generate(self, stream_id: Any, prompt: Any, **fields: Any) -> None:
        """Send a GENERATE."""
        await self.send("GENERATE", prompt=prompt, stream_id=stream_id, **fields)

    async def score(self, stream_id: Any, prompt: Any, scored: Any, **fields: Any) -> None:
        """Send a SCORE."""
        await self.send("SCORE", prompt=prompt, scored=scored, stream_id=stream_id, **fields)

    async def frame(self, frame: str | bytes) -> None:
        """Send anything."""
        await self._connection.send(frame)

    async def tokens(self, stream_id: Any, count: int) -> None:
        """Wait for so many tokens of a stream."""
        await self._until(lambda: self._tokens[json.dumps(stream_id)] >= count)

    async def ended(self, *stream_ids: Any, times: int = 1) -> None:
        """Wait for the end of streams."""
        await self._until(lambda: all(self._ended[json.dumps(one)] >= times for one in stream_ids))

    async def messages(self, count: int) -> None:
        """Wait for so many MSG entries."""
        await self._until(lambda: len(self._messages) >= count)

    async def progress(self) -> None:
        """Wait for a MSG with progress."""
        await self._until(lambda: any("progress" in one for one in self._messages))

    async def _until(self, holds: Any) -> None:
        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(holds)

    async def closed(self) -> None:
        """Wait until the server closes the connection."""
        async with asyncio.timeout(PATIENCE):
            await self._reading

    async def drop(self) -> None:
        """Vanish without a close frame."""
        self._connection.transport.abort()
        await self._reading

    async def close(self) -> None:
        """Close in good order."""
        await self._connection.close()
        await self._reading


@contextlib.asynccontextmanager
async def talk(url: str, model: str | None) -> AsyncIterator[Talk]:
    """A connection to a server of this model."""
    talking = Talk(await connect(url, compression=None, max_size=2**26, ping_interval=None), model)
    try:
        yield talking
    finally:
        await talking.close()
