"""A balancer over real servers in this process: it spreads requests, and answers as one server would."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import sys
from dataclasses import replace

import pytest

from lmtool.core.errors import ConnectError, RequestError, ResourceError, UnknownModelError, UsageError
from lmtool.core.prompt_limits import PromptLimits
from lmtool.core.streams import stream
from lmtool.core.types import (
    BufferSlice,
    GenerateRequest,
    LoadProgress,
    MixedPrompt,
    ModelInfo,
    SamplingParams,
    TokenOutput,
)
from lmtool.gateway.balance.balancer import Balancer
from lmtool.inference.text.tokenizer import load_tokenizer
from lmtool.protocol.lmtp.client import LmtpClient
from tests.protocol.lmtp.balanced import asked, balanced, mortals, outputs, over
from tests.protocol.lmtp.harness import PATIENCE, serving, until
from tests.scripted_model import ScriptedModel, tokens_of
from tests.spec.conftest import STORIES


class Computing(ScriptedModel):
    """A model that tells what computes it."""

    def __init__(self, kernels: str) -> None:
        super().__init__()
        self._kernels = kernels

    async def info(self, model: str | None = None) -> ModelInfo:
        """See `TokenModel`."""
        return replace(await super().info(model), dtype="bfloat16", device="cpu", kernels=self._kernels)


async def test_requests_are_spread_and_answered_as_by_one_server() -> None:
    """Each worker gets its share; tokens are those of the model."""
    first, second = ScriptedModel(), ScriptedModel()
    async with balanced(first, second) as balancer:
        prompts = [(number, number + 1) for number in range(8)]
        found = await asyncio.gather(*(outputs(balancer, asked(prompt)) for prompt in prompts))
        assert balancer.streams() == (0, 0)
    assert [[one.token for one in own] for own in found] == [tokens_of(prompt, 3) for prompt in prompts]
    assert (len(first.requests), len(second.requests)) == (4, 4)


async def test_limits_are_those_of_the_workers() -> None:
    """As they told the length of their context."""
    async with balanced(ScriptedModel(), ScriptedModel()) as balancer:
        info = await balancer.info()
        assert info.context_length is not None
        own = PromptLimits(info.model, info.context_length, vocab_size=info.vocab_size)
        assert balancer.limits == {None: own, info.model: own}
    assert Balancer(["ws://127.0.0.1:1/"]).limits == {}


async def test_buffers_are_kept_by_the_balancer() -> None:
    """Workers get ids, whichever of them a request goes to; texts need a tokenizer that is at hand."""
    first, second = ScriptedModel(), ScriptedModel()
    async with balanced(first, second) as balancer, serving(balancer) as served, LmtpClient(served.url) as client:
        assert await client.change_buffer("a", [(5, 6)]) == 2
        prompts = [MixedPrompt((BufferSlice("a", 2), (number,))) for number in range(8)]
        requests = [GenerateRequest(1, prompt, SamplingParams(max_tokens=3)) for prompt in prompts]

        async def tokens(request: GenerateRequest) -> list[int | None]:
            async with asyncio.timeout(PATIENCE):
                return [output.token async for output in stream(client, request)]

        found = await asyncio.gather(*map(tokens, requests))
        assert found == [tokens_of((5, 6, number), 3) for number in range(8)]
        assert {one.prompt[:2] for one in first.requests} == {one.prompt[:2] for one in second.requests} == {(5, 6)}  # type: ignore[index]  # ids
        ids = await tokens(GenerateRequest(1, MixedPrompt((BufferSlice("a"),)), SamplingParams(max_tokens=3), into="a"))
        assert await tokens(replace(requests[0], prompt=MixedPrompt((BufferSlice("a", 5),)))) == tokens_of(
            (5, 6, *ids), 3
        )
        with pytest.raises(RequestError, match="there is no tokenizer"):
            await client.change_buffer("a", ["Once"])
    own = load_tokenizer(str(STORIES))
    async with mortals(ScriptedModel()) as workers, contextlib.AsyncExitStack() as stack:
        balancer = await stack.enter_async_context(over(*workers, load_tokenizer=lambda *_: own))
        served = await stack.enter_async_context(serving(balancer))
        client = await stack.enter_async_context(LmtpClient(served.url))
        assert await client.change_buffer("text", ["Once"]) == 2


async def test_one_prefix_goes_to_one_worker() -> None:
    """While loads are near."""
    first, second = ScriptedModel(), ScriptedModel()
    async with balanced(first, second) as balancer:
        shared = tuple(range(100, 164))
        for number in range(6):
            await outputs(balancer, asked((*shared, number)))
    assert sorted([len(first.requests), len(second.requests)]) == [0, 6]


async def test_cancel_and_pause_reach_the_worker() -> None:
    """As with a single server."""
    model = ScriptedModel()
    async with balanced(model) as balancer:
        found: list[TokenOutput] = []
        handle = balancer.submit(asked((1,), 4000), found.extend)
        await until(lambda: len(found) > 3)
        handle.pause()
        held = len(found)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(found) == held
        handle.resume()
        await until(lambda: len(found) > held)
        handle.cancel()
        await until(lambda: found[-1].finish_reason == "cancelled" and bool(model.cancelled))
        assert balancer.streams() == (0, 0)


async def test_the_models_description_is_passed_through() -> None:
    """With the streams of all workers; a name that is not served is the worker's error."""
    async with balanced(ScriptedModel(), ScriptedModel()) as balancer:
        info = await balancer.info("scripted")
        assert (info.model, info.vocab_size) == ("scripted", 1000)
        with pytest.raises(UnknownModelError, match="not served"):
            await balancer.info("other")


@pytest.mark.parametrize("other", ["C kernels (AVX512)", "oneDNN"])
async def test_workers_that_compute_in_different_ways_are_warned_of(
    other: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Their answers to one request may differ; of equal ones nothing is said."""
    async with balanced(Computing("C kernels (AVX512)"), Computing(other)):
        pass
    warned = "computes in bfloat16, cpu, oneDNN" in caplog.text or "in bfloat16, cpu, oneDNN: the same" in caplog.text
    assert warned == (other == "oneDNN")
    assert ("may give other numbers" in caplog.text) == warned


async def test_no_worker_is_up() -> None:
    """A request is refused at once, and the description is waited for."""
    balancer = Balancer(["127.0.0.1:1"], check_seconds=0.05)
    (refused,) = await outputs(balancer, asked((1,)))
    assert (refused.error_code, refused.error) == (ConnectError.code, "no worker is up; try again in a moment")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(balancer.info(), 0.3)
    await balancer.close()


async def test_workers_of_ours_that_cannot_start_are_an_error() -> None:
    """Starting them for ever would help nobody. Their own last words are the reason, with the hints."""
    says = "import sys; sys.exit('error: no room\\n  make some')"
    balancer = Balancer([f"stdio:{sys.executable} -c {shlex.quote(says)}"] * 2, check_seconds=0.05)
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(ResourceError) as failed:
            await balancer.info()
    assert (failed.value.message, failed.value.hints) == ("no room", ("make some",))
    await balancer.close()


async def test_progress() -> None:
    """Told until a worker is up."""
    async with serving(ScriptedModel()) as server:
        balancer = Balancer([server.url], check_seconds=0.05)
        seen: list[LoadProgress] = []
        balancer.subscribe(None, seen.append)
        await balancer.info()
        await balancer.close()
    assert [seen[0].phase, seen[-1].phase] == ["waiting", "ready"]


@pytest.mark.parametrize("endpoints", [[], [":1", ":1"], ["ftp://x"]])
async def test_endpoints_that_make_no_sense(endpoints: list[str]) -> None:
    """None at all, the same one twice, no endpoint."""
    with pytest.raises(UsageError):
        Balancer(endpoints)
