"""What a connection keeps while nothing is said."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc

import pytest

from tests.lmtp.harness import PATIENCE, conversation
from tests.scripted_model import ScriptedModel

SAYS = ('MODEL_INFO {"stream_id": 2, "data": "', "x" * 1_000_000, "x" * 2_000_000 + '"}')


@pytest.mark.parametrize("parts", ["one", "several", "bytes"])
async def test_nothing_of_the_last_message(parts: str) -> None:
    """However it came: a client that sent a large one and now is silent takes no memory."""
    async with conversation(ScriptedModel()) as client:
        await client.alive()
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            if parts == "several":
                await client.connection.send(SAYS)
            else:
                message = "".join(SAYS)
                await client.send(message if parts == "one" else message.encode())
                del message
            (entry,) = await client.entries("MSG", 1)
            async with asyncio.timeout(PATIENCE):  # the thread that had it read may be a little late
                while tracemalloc.get_traced_memory()[0] > 500_000:
                    await asyncio.sleep(0.01)
        finally:
            tracemalloc.stop()
            gc.enable()
        assert ("binary" in entry.get("error", "")) == (parts == "bytes")
        await client.alive()
