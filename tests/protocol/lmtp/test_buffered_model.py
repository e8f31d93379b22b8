"""A model with the buffers of one connection, without the connection."""

from __future__ import annotations

import asyncio

from lmtool.core.types import BufferSlice, GenerateRequest, MixedPrompt, SamplingParams, TokenOutput
from lmtool.protocol.lmtp.buffered_model import BufferedModel
from lmtool.protocol.lmtp.config import ServerConfig
from lmtool.protocol.lmtp.messages import BufferRequest
from tests.protocol.lmtp.harness import until
from tests.scripted_model import ScriptedModel


async def test_close() -> None:
    """Buffers and their expiry are gone, what waits is dropped, and a stream that ends later appends to nothing."""
    model = ScriptedModel(manual=True)
    buffered = BufferedModel(model, ServerConfig())
    assert await buffered.change_buffer("a", [(5, 6)], ttl=0.02) == 2
    outputs: list[TokenOutput] = []
    buffered.submit(GenerateRequest(1, (1,), SamplingParams(max_tokens=1), into="b"), outputs.extend)
    model.loaded.clear()
    text = buffered.change(BufferRequest("2", "c", ("text",)))
    buffered.submit(GenerateRequest(3, MixedPrompt((BufferSlice("c"),))), outputs.extend)
    buffered.close()
    await until(text.cancelled)
    model.loaded.set()
    model.step()
    await asyncio.sleep(0.05)
    assert [request.stream_id for request in model.requests] == [1]
    assert [output.finish_reason for output in outputs] == ["length"]
    assert [buffered.buffer_length(name) for name in "abc"] == [0, 0, 0]


async def test_requests_without_buffers_keep_their_sink() -> None:
    """The model gets them as they are, so that it calls each sink once a step."""
    model = ScriptedModel()
    buffered = BufferedModel(model, ServerConfig())
    outputs: list[TokenOutput] = []
    request = GenerateRequest(1, (1,), SamplingParams(max_tokens=2))
    buffered.submit(request, outputs.extend)
    assert model.requests == [request]
    assert model.requests[0] is request
    await until(lambda: len(outputs) == 2)
