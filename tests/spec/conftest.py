"""Servers for the tests of the specification: a scripted model, and a real one of 260,000 parameters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from lmtool.core.interfaces import TokenModel
from tests.protocol.lmtp.harness import Served, Wire, serving, wire
from tests.scripted_model import ScriptedModel

STORIES = Path(__file__).parent.parent / "data/stories260K"


@pytest.fixture
def scripted() -> ScriptedModel:
    """A model whose tokens are known, one step a turn of the event loop."""
    return ScriptedModel()


@pytest.fixture
def manual() -> ScriptedModel:
    """The same, whose steps the test makes."""
    return ScriptedModel(manual=True)


@pytest.fixture
async def served(scripted: ScriptedModel) -> AsyncIterator[Served]:
    """A server of the scripted model."""
    async with serving(scripted) as running:
        yield running


@pytest.fixture
async def client(served: Served) -> AsyncIterator[Wire]:
    """A connection to it."""
    async with wire(served) as connected:
        yield connected


@pytest.fixture
async def stepped(manual: ScriptedModel) -> AsyncIterator[Wire]:
    """A connection to a server whose steps the test makes."""
    async with serving(manual) as running, wire(running) as connected:
        yield connected


@pytest.fixture(scope="session")
def stories() -> Iterator[TokenModel]:
    """The stories model: a Llama with 512 tokens, bos and eos 1, that computes in float32."""
    import torch

    from lmtool.inference.engine.config import EngineConfig
    from lmtool.serving.composition import Loader

    threads = torch.get_num_threads()
    loader = Loader(EngineConfig(device="cpu", dtype="float32", threads=1))
    model = loader.load(str(STORIES), lambda _: None)
    yield model
    model.close()
    torch.set_num_threads(threads)


@pytest.fixture
async def real(stories: TokenModel) -> AsyncIterator[Wire]:
    """A connection to a server of the stories model."""
    async with serving(stories) as running, wire(running) as connected:
        yield connected
