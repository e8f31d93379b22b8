"""Streams whose connections are cut, through a real server; `python -m tests.resume_load` cuts a thousand."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from urllib.parse import urlsplit

import pytest

import lmtool
from lmtool.errors import ConnectError
from lmtool.interfaces import TokenModel
from tests import resume_load
from tests.chat.test_answer import Run
from tests.resume_load import Cut, CuttingProxy

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
