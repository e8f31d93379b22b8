"""Streams whose connections are cut, through a real server; `python -m tests.lab.resuming` cuts a thousand."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

import lmtool
from lmtool.core.errors import ConnectError
from lmtool.core.interfaces import TokenModel
from lmtool.core.resuming import Resuming
from lmtool.core.types import GenerateRequest, NamedProcessor, TokenOutput
from lmtool.protocol.lmtp.client import LmtpClient
from tests.lab import resuming as resume_load
from tests.lab.resuming import Cut, CuttingProxy
from tests.protocol.lmtp.harness import serving
from tests.terminal.chat.test_answer import Run

PROMPT = "Once upon a time"
MIDDLE = Cut(4000)
"""Within a stream of 60 tokens, which takes some 7,000 bytes."""


@pytest.fixture(scope="module")
def stories() -> Iterator[TokenModel]:
    """The stories model, whose kernels use one thread."""
    import torch

    threads = torch.get_num_threads()
    model = resume_load.load()
    yield model
    model.close()  # type: ignore[attr-defined]  # a LoadedModel
    torch.set_num_threads(threads)


async def test_cut_at_random(stories: TokenModel) -> None:
    """Of every kind of stream the ids, logprobs and texts are those of the run that nobody cut, to the bit."""
    outcome, cuts = await resume_load.run(stories, 50, seed=1)
    assert outcome.differences == []
    assert outcome.streams.keys() == resume_load.KINDS.keys()
    assert cuts >= 50
    assert outcome.repeated >= 25


async def cut_in_the_middle(stories: TokenModel, processor: str, cuts: int) -> tuple[list[TokenOutput], int]:
    """A stream with a logits processor, which is gone on with after every cut, and the number of repetitions."""
    repeated: list[object] = []
    async with serving(stories) as served, CuttingProxy(served.port, iter([MIDDLE] * cuts)).running() as proxy:
        client = LmtpClient(f"127.0.0.1:{proxy.port}")
        try:
            through = Resuming(client, resume_load.OPTIONS, repeated.append)
            return await resume_load.said(through, with_processor(processor)), len(repeated)
        finally:
            await client.close()


def with_processor(name: str) -> GenerateRequest:
    sampling = replace(resume_load.HOT, max_tokens=120)
    return GenerateRequest("s", PROMPT, sampling, text=True, logits_processors=(NamedProcessor(name),))


async def test_processors_with_state(stories: TokenModel, plugin: None) -> None:
    """The state of a logits processor goes on with its stream, cut after cut."""
    outputs, repeated = await cut_in_the_middle(stories, "walk", cuts=3)
    whole = await resume_load.said(stories, with_processor("walk"))
    assert repeated == 3
    assert resume_load.facts(outputs, usage=True) == resume_load.facts(whole, usage=True)


async def test_a_processor_whose_state_is_lost(stories: TokenModel, plugin: None) -> None:
    """Nothing goes on in another state: the stream ends with what has cut it."""
    outputs, repeated = await cut_in_the_middle(stories, "forget", cuts=1)
    whole = await resume_load.said(stories, with_processor("forget"))
    assert repeated == 0
    assert outputs[-1].error_code == "connection"
    assert 10 < len(outputs) < 110
    assert [one.token for one in outputs[:-1]] == [one.token for one in whole[: len(outputs) - 1]]


@pytest.fixture
async def proxy(served: str) -> AsyncIterator[CuttingProxy]:
    """A proxy before a server process that cuts the first connection in the middle of a stream."""
    port = urlsplit(served).port
    assert port is not None
    async with CuttingProxy(port, iter([MIDDLE])).running() as running:
        yield running


async def text_of(url: str, **options: int) -> str:
    async with lmtool.connect(url, **options) as model:  # type: ignore[arg-type]
        parts = [one async for one in model.generate(PROMPT, max_tokens=60, ignore_eos=True, temperature=1.0, seed=4)]
        return "".join(one.text or "" for one in parts)


async def test_python_goes_on(proxy: CuttingProxy, served: str) -> None:
    """`lmtool.connect` goes on; with `retries=0` the loss is raised."""
    assert await text_of(f"127.0.0.1:{proxy.port}") == await text_of(served)
    assert proxy.cuts == 1
    proxy.planned = itertools.repeat(MIDDLE)
    with pytest.raises(ConnectError):
        await text_of(f"127.0.0.1:{proxy.port}", retries=0)


async def test_chat_goes_on(proxy: CuttingProxy, served: str, lmtool: Run) -> None:
    """`lmtool chat` too, and says so; with `--retries 0` the text so far stays, and the status is 3."""
    words = ("chat", PROMPT, "-n", "60", "-o", "ignore_eos=true", "-t", "1", "--seed", "4", "-e")
    whole = await asyncio.to_thread(lmtool, *words, served)
    cut = await asyncio.to_thread(lmtool, *words, f"127.0.0.1:{proxy.port}")
    assert (cut.returncode, cut.stdout) == (0, whole.stdout)
    assert "; trying again" in cut.stderr
    assert proxy.cuts == 1
    proxy.planned = itertools.repeat(MIDDLE)
    short = await asyncio.to_thread(lmtool, *words, f"127.0.0.1:{proxy.port}", "--retries", "0")
    assert short.returncode == 3
    assert whole.stdout.startswith(short.stdout.rstrip("\n"))
    assert len(short.stdout) < len(whole.stdout)
