"""What a connection keeps while nothing is said."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Awaitable, Callable

import pytest
from websockets.asyncio.client import ClientConnection

from tests.lmtp.harness import PATIENCE, conversation
from tests.scripted_model import ScriptedModel

MESSAGE = 'MODEL_INFO {"stream_id": 2, "data": "' + "x" * 3_000_000 + '"}'


async def in_parts(connection: ClientConnection) -> None:
    """A message of two frames, the second one large."""
    connection.protocol.send_text(MESSAGE[:10].encode(), fin=False)
    connection.protocol.send_continuation(MESSAGE[10:].encode(), fin=True)
    connection.transport.writelines(connection.protocol.data_to_send())


send: dict[str, Callable[[ClientConnection], Awaitable[None]]] = {
    "text": lambda connection: connection.send(MESSAGE),
    "parts": in_parts,
    "bytes": lambda connection: connection.send(MESSAGE.encode()),
}


@pytest.mark.parametrize("form", send)
async def test_nothing_of_the_last_message(form: str) -> None:
    """However it came: a client that sent a large one and now is silent takes no memory."""
    async with conversation(ScriptedModel()) as client:
        await client.alive()
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            await send[form](client.connection)
            (entry,) = await client.entries("MSG", 1)
            async with asyncio.timeout(PATIENCE):  # the thread that had it read may be a little late
                while tracemalloc.get_traced_memory()[0] > 500_000:
                    await asyncio.sleep(0.01)
        finally:
            tracemalloc.stop()
            gc.enable()
        assert ("binary" in entry.get("error", "")) == (form == "bytes")
        await client.alive()
