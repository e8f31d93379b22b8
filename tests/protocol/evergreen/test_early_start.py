"""What is computed ahead of a prompt: behind it nothing waits, and it costs little however the prompt is cut."""

from __future__ import annotations

import asyncio

import pytest

from lmtool.core.errors import RequestError
from lmtool.core.streams import refuse
from lmtool.protocol.evergreen.early_start import EarlyStart
from lmtool.protocol.evergreen.messages import ChunkMetadata
from lmtool.protocol.evergreen.prompts import PromptBuilder
from tests.protocol.evergreen.models import Only

TEXT = "Once upon a time there was a little girl named Lily. " * 30


async def fed(ahead: EarlyStart, builder: PromptBuilder, size: int) -> None:
    """Give the text in pieces of `size` bytes, each once the last one was looked at."""
    builder.begin(ChunkMetadata("text/plain"), "a")
    for start in range(0, len(TEXT), size):
        builder.feed(TEXT[start : start + size].encode())
        ahead.grew()
        while ahead._growth.is_set():
            await asyncio.sleep(0)


@pytest.mark.parametrize("size", [16, 400])
async def test_a_prompt_is_read_a_bounded_number_of_times(tiny, monkeypatch, size):
    """A text in small pieces is not tokenized at each of them."""
    read = []
    monkeypatch.setattr("lmtool.protocol.evergreen.early_start.MIN_BYTES", 16)
    monkeypatch.setattr("lmtool.protocol.evergreen.early_start._FREE_BYTES", 0)
    monkeypatch.setattr(
        "lmtool.protocol.evergreen.early_start.beginning_ids",
        lambda _tokenizer, prompt, **_: read.append(len(prompt)) or (),
    )
    builder = PromptBuilder()
    ahead = EarlyStart(tiny, None, builder, "session")
    await fed(ahead, builder, size)
    await ahead.stop()
    assert len(TEXT) < sum(read) <= 16 * len(TEXT)


async def test_a_model_that_refuses_is_asked_once(tiny):
    """Where a prompt cannot be computed alone, nothing more is tried, and nothing fails."""

    class Refusing(Only):
        def submit(self, request, sink):
            self.requests.append(request)
            return refuse(request.stream_id, sink, RequestError("no prefill here"))

    model, builder = Refusing(tiny.model, "m"), PromptBuilder()
    ahead = EarlyStart(model, None, builder, "session")
    builder.begin(ChunkMetadata("text/plain"), "a")
    for _ in range(3):
        builder.feed(TEXT.encode()[:1200])
        ahead.grew()
        while ahead._growth.is_set() and ahead._task is not None and not ahead._task.done():
            await asyncio.sleep(0)
    await ahead.stop()
    assert [request.prefill_only for request in model.requests] == [True]
