"""Buffers of our client: what is sent, what comes back after a loss, and what a branch costs."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lmtool.core.errors import ConnectError, LmtoolError, RequestError, UnknownBufferError, UnknownTokenError
from lmtool.core.streams import error_of, stream
from lmtool.core.types import BufferSlice, GenerateRequest, MixedPrompt, SamplingParams, ScoreRequest
from lmtool.protocol.lmtp import messages, model_info
from lmtool.protocol.lmtp.client import LmtpClient
from lmtool.protocol.lmtp.client_buffers import MOST_IDS
from lmtool.protocol.lmtp.config import ServerConfig
from tests.lab.buffers import measure, table
from tests.lab.resuming import CuttingProxy
from tests.protocol.lmtp.harness import PATIENCE, Served, serving, until
from tests.scripted_model import ScriptedModel, tokens_of


@dataclass
class Setup:
    """A client of a scripted server, behind a proxy that can cut its connection."""

    model: ScriptedModel
    served: Served
    proxy: CuttingProxy
    client: LmtpClient
    frames: list[str]
    """What the client has sent."""

    def sent(self) -> list[tuple[str, dict[str, Any]]]:
        """Command and payload of each frame sent since the last call."""
        new, self.frames[:] = self.frames[:], []
        return [(command, json.loads(payload)) for command, _, payload in (frame.partition(" ") for frame in new)]

    async def cut(self) -> None:
        self.proxy.cut_now()
        async with asyncio.timeout(PATIENCE):
            await until(lambda: not self.client.connected)


@contextlib.asynccontextmanager
async def connected(model: ScriptedModel | None = None, config: ServerConfig | None = None) -> AsyncIterator[Setup]:
    model, frames = model or ScriptedModel(), list[str]()
    async with (
        serving(model, config=config) as served,
        CuttingProxy(served.port, iter([])).running() as proxy,
        LmtpClient(
            f"127.0.0.1:{proxy.port}", on_frame=lambda way, frame: frames.append(frame) if way == ">" else None
        ) as client,
    ):
        yield Setup(model, served, proxy, client, frames)


@pytest.fixture
async def setup() -> AsyncIterator[Setup]:
    async with connected() as running:
        yield running


async def generate(client: Any, *parts: Any, count: int = 2, **fields: Any) -> list[int | None]:
    """The ids of a stream; raises its error."""
    request = GenerateRequest(1, MixedPrompt(parts), SamplingParams(max_tokens=count), **fields)
    async with asyncio.timeout(PATIENCE):
        outputs = [output async for output in stream(client, request)]
    if outputs[-1].error is not None:
        raise error_of(outputs[-1])
    return [output.token for output in outputs]


async def test_only_new_ids_are_sent(setup: Setup) -> None:
    """A buffer is sent once; prompts name it, and another append sends what is new."""
    assert await setup.client.change_buffer("a", [(5, 6)]) == 2
    assert await setup.client.change_buffer("a", [(7,)]) == 3
    assert await generate(setup.client, BufferSlice("a", 2), (9,)) == tokens_of((5, 6, 9), 2)
    sent = setup.sent()
    assert [command for command, _ in sent] == ["MODEL_INFO", "BUFFER", "BUFFER", "GENERATE"]
    assert [payload["append"] for command, payload in sent if command == "BUFFER"] == [[5, 6], [7]]
    assert sent[-1][1]["prompt"] == [{"buffer": "a", "length": 2}, 9]
    assert setup.client.buffer_length("a") == 3
    assert setup.client._live_link()._answers._futures == {}, "of what was answered nothing is kept"


async def test_after_a_loss_buffers_are_sent_again_when_they_are_needed(setup: Setup) -> None:
    """By the first request that names one; others stay where they are; what is empty and what has a ttl as well."""
    await setup.client.change_buffer("a", [(5,)])
    await setup.client.change_buffer("a", [(6, 7)])
    await setup.client.change_buffer("unused", [(1,)])
    await setup.client.change_buffer("empty", [], ttl=60)
    await setup.cut()
    assert await generate(setup.client, (9,)) == tokens_of((9,), 2)
    setup.sent()
    assert await generate(setup.client, BufferSlice("a", 3)) == tokens_of((5, 6, 7), 2)
    assert await generate(setup.client, BufferSlice("empty"), BufferSlice("a", 1)) == tokens_of((5,), 2)
    changes = [payload for command, payload in setup.sent() if command == "BUFFER"]
    facts = [{name: one.get(name) for name in ("name", "append", "ttl")} for one in changes]
    assert facts == [
        {"name": "a", "append": [5, 6, 7], "ttl": None},
        {"name": "empty", "append": [], "ttl": 60},
    ]


async def test_an_append_after_a_loss(setup: Setup) -> None:
    """What was there before is sent first; a drop needs nothing."""
    await setup.client.change_buffer("a", [(5, 6)])
    await setup.client.change_buffer("b", [(5, 6)])
    await setup.cut()
    assert await setup.client.change_buffer("a", [(7,)]) == 3
    assert await generate(setup.client, BufferSlice("a", 3)) == tokens_of((5, 6, 7), 2)
    setup.sent()
    assert await setup.client.change_buffer("b", drop=True) == 0
    assert setup.sent() == []
    with pytest.raises(UnknownBufferError, match="'b' is not known"):
        await generate(setup.client, BufferSlice("b"))


async def test_a_long_buffer_is_sent_again_in_frames_that_servers_read(setup: Setup) -> None:
    """None has more than `MOST_IDS` ids."""
    ids = tuple(range(900)) * 300
    for start in range(0, len(ids), 90_000):
        await setup.client.change_buffer("a", [ids[start : start + 90_000]])
    await setup.cut()
    with pytest.raises(LmtoolError):
        await generate(setup.client, BufferSlice("a"), (5000,))
    counts = [len(payload["append"]) for command, payload in setup.sent() if command == "BUFFER"]
    assert counts[-3:] == [MOST_IDS, MOST_IDS, len(ids) - 2 * MOST_IDS]


async def test_a_streams_ids_are_kept(setup: Setup) -> None:
    """`into` appends here as on the server, and after a loss these ids are sent like any."""
    await setup.client.change_buffer("a", [(5,)])
    ids = await generate(setup.client, BufferSlice("a"), into="a", count=3)
    assert setup.client.buffer_length("a") == 4
    assert await generate(setup.client, BufferSlice("a", 4)) == tokens_of((5, *ids), 2)
    await setup.cut()
    assert await generate(setup.client, BufferSlice("a", 4)) == tokens_of((5, *ids), 2)


async def test_a_cancelled_stream() -> None:
    """What would change its buffer waits for its end, after which it is known whether ids were appended."""
    model = ScriptedModel(manual=True)
    async with connected(model) as setup:
        await setup.client.change_buffer("a", [(5,)])
        ended: list[object] = []
        request = GenerateRequest(1, (1,), SamplingParams(max_tokens=1), into="a")
        setup.client.submit(request, ended.extend).cancel()
        await until(lambda: ended)
        appending = asyncio.create_task(setup.client.change_buffer("a", [(6,)]))
        other = asyncio.create_task(generate(setup.client, (2,), into="a", count=1))
        await until(lambda: model.cancelled)
        await setup.client.info()  # what was sent before it has been read by the server
        assert [command for command, _ in setup.sent()].count("BUFFER") == 1
        model.step()
        assert await appending == 2
        await until(lambda: model.running)
        model.step()
        await other
        assert setup.client.buffer_length("a") == 3
        assert len(ended) == 1


async def test_refusals(setup: Setup) -> None:
    """An append that is refused has changed nothing, here and there; what the server says is raised as its kind."""
    await setup.client.change_buffer("a", [(5,)])
    with pytest.raises(RequestError, match="no tokenizer"):
        await setup.client.change_buffer("a", ["text"])
    with pytest.raises(UnknownBufferError, match="'b' is not known"):
        await setup.client.change_buffer("b", ttl=5)
    with pytest.raises(RequestError, match="length is 2, but buffer 'a' has 1"):
        await generate(setup.client, BufferSlice("a", 2))
    assert setup.client.buffer_length("a") == 1
    request = ScoreRequest(1, MixedPrompt((BufferSlice("a"),)), (3,))
    assert [output.token async for output in stream(setup.client, request)] == [3]


async def test_a_wait_that_is_cancelled(setup: Setup) -> None:
    """The ids are appended all the same, so that both ends agree."""
    task = asyncio.create_task(setup.client.change_buffer("a", [(5,)]))
    await until(lambda: any(frame.startswith("BUFFER") for frame in setup.frames))
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert await setup.client.change_buffer("a", [(6,)]) == 2
    await setup.cut()
    assert await generate(setup.client, BufferSlice("a", 2)) == tokens_of((5, 6), 2)


async def test_a_server_that_refuses_a_buffer_after_a_loss() -> None:
    """The streams that name it end with that server's reason; others go on, and the buffer may be tried again."""
    async with connected(config=ServerConfig(max_buffer_bytes=40)) as setup:
        await setup.client.change_buffer("a", [(5,) * 8])
        async with serving(setup.model, config=ServerConfig(max_buffer_bytes=8)) as small:
            setup.proxy.target = small.port
            await setup.cut()
            for _ in range(2):
                with pytest.raises(RequestError, match="buffer 'a' cannot take 8 ids more"):
                    await generate(setup.client, BufferSlice("a"))
            assert await generate(setup.client, (9,)) == tokens_of((9,), 2)


async def test_a_server_without_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked what it knows, and sent neither BUFFER nor a prompt that it cannot read."""
    names = tuple(name for name in messages.EXTENSIONS if name != "buffers")
    monkeypatch.setattr(model_info, "EXTENSIONS", names)
    async with connected() as setup:
        with pytest.raises(RequestError, match="the server does not know buffers"):
            await setup.client.change_buffer("a", [(5,)])
        with pytest.raises(RequestError, match="the server does not know buffers"):
            await generate(setup.client, BufferSlice("a"))
        assert {command for command, _ in setup.sent()} == {"MODEL_INFO"}
        assert await generate(setup.client, (9,)) == tokens_of((9,), 2)


async def test_the_connection_is_lost_before_the_answer() -> None:
    """The append has failed, and has not happened."""
    model = ScriptedModel()
    async with connected(model) as setup:
        await setup.client.change_buffer("a", [(5,)])
        model.loaded.clear()  # a text waits for the load
        task = asyncio.create_task(setup.client.change_buffer("a", ["text"]))
        await until(lambda: any("text" in frame for frame in setup.frames))
        await setup.cut()
        with pytest.raises(ConnectError):
            await task
        model.loaded.set()
        assert await generate(setup.client, BufferSlice("a")) == tokens_of((5,), 2)


async def test_over_a_pipe() -> None:
    """The same over stdin and stdout."""
    import sys

    async with LmtpClient(f"stdio:{sys.executable} -m tests.protocol.lmtp.stdio_server") as client:
        assert await client.change_buffer("a", [(5, 6)]) == 2
        ids = await generate(client, BufferSlice("a"), into="a")
        assert ids == tokens_of((5, 6), 2)
        assert await generate(client, BufferSlice("a", 4)) == tokens_of((5, 6, *ids), 2)


@pytest.fixture(scope="module")
def random_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama of random weights with a context of 4,096 ids."""
    import torch
    import transformers

    from lmtool.inference.engine.random_model import SHAPES
    from lmtool.measure.bench.peers.maker_peer import save_tokenizer

    folder = tmp_path_factory.mktemp("models") / "random-llama"
    torch.manual_seed(0)
    shape = {**SHAPES["llama-tiny"], "max_position_embeddings": 4096}
    config = transformers.LlamaConfig(**shape, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    save_tokenizer(config.vocab_size, str(folder))
    return folder


async def test_branches_cost_what_is_new(random_llama: Path) -> None:
    """Of branches off 2,000 ids, bytes sent and ids computed grow with the new ids only."""
    new = (1, 65, 257)
    costs = await measure(str(random_llama), 2000, new)
    for count, ids, own in zip(new, costs["ids"], costs["buffer"], strict=True):
        assert own.sent <= 150 + 5 * count
        assert own.computed <= count + 15  # whole blocks are cached
        assert ids.sent >= 2000 * 3
    assert [cost.computed for cost in costs["cold"]] == [2000 + count for count in new]
    assert table(costs, new).count("\n") == 4


async def test_a_stream_that_is_cut_goes_on_into_its_buffer(random_llama: Path) -> None:
    """With `retries`, the ids of all attempts are appended, once, and the buffer is there again for the next one."""
    import lmtool

    async with (
        lmtool.serve(str(random_llama), device="cpu", dtype="float32") as server,
        CuttingProxy(int(server.url.rsplit(":", 1)[1].strip("/")), iter([])).running() as proxy,
        lmtool.connect(f"127.0.0.1:{proxy.port}", retries=4) as model,
    ):
        story = model.buffer("story")
        assert await story.append([5, 6, 7]) == 3
        ids = []
        async for output in model.generate([story], max_tokens=200, ignore_eos=True, into=story):
            ids.append(output.token)
            if len(ids) == 3:
                proxy.cut_now()
        assert proxy.cuts == 0  # of its own accord
        assert (len(ids), story.length) == (200, 203)
        (next_id,) = [output.token async for output in model.generate(story, max_tokens=1, ignore_eos=True)]
        whole = [5, 6, 7, *filter(None, ids)]
        assert [output.token async for output in model.generate(whole, max_tokens=1, ignore_eos=True)] == [next_id]


async def test_vocabulary(random_llama: Path) -> None:
    """An id outside the vocabulary is refused where it is appended, a text is tokenized by the server."""
    import lmtool

    async with (
        lmtool.serve(str(random_llama), device="cpu", dtype="float32") as server,
        LmtpClient(server.url) as client,
    ):
        with pytest.raises(UnknownTokenError, match="token id 512 in append"):
            await client.change_buffer("a", [(5, 512)])
        assert await client.change_buffer("a", ["w5 w6", (7,)]) == 3
