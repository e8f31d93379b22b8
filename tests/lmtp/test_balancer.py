"""A balancer over real servers in this process, and one worker: lost, and found again."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
import sys
from collections.abc import AsyncIterator
from dataclasses import replace

import psutil
import pytest

from lmtool.engine.model_manager import ModelManager
from lmtool.errors import (
    ConnectError,
    LmtoolError,
    OverloadedError,
    RequestError,
    ResourceError,
    ServerError,
    UnknownModelError,
    UsageError,
)
from lmtool.interfaces import Sink, StreamHandle
from lmtool.lmtp.balancer import Balancer
from lmtool.lmtp.client import LmtpClient
from lmtool.lmtp.endpoint import parse
from lmtool.lmtp.worker import Worker
from lmtool.model_entry import ModelEntry, ModelPhase
from lmtool.prompt_limits import PromptLimits
from lmtool.streams import refuse, stream
from lmtool.text.tokenizer import load_tokenizer
from lmtool.types import (
    BufferSlice,
    GenerateRequest,
    LoadProgress,
    MixedPrompt,
    ModelInfo,
    SamplingParams,
    ScoreRequest,
    TokenOutput,
)
from tests.engine.shelf import Collector, Shelf, named
from tests.lmtp.harness import PATIENCE, serving, until
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


@contextlib.asynccontextmanager
async def balanced(*models: ScriptedModel) -> AsyncIterator[Balancer]:
    """A balancer whose workers all are up."""
    async with contextlib.AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(serving(model, catalogue=model)) for model in models]
        balancer = Balancer([server.url for server in servers], check_seconds=0.05)
        stack.push_async_callback(balancer.close)
        async with asyncio.timeout(PATIENCE):
            balancer.start()
            await until(lambda: len(balancer.up) == len(models))
        yield balancer


async def outputs(balancer: Balancer, request: GenerateRequest) -> list[TokenOutput]:
    async with asyncio.timeout(PATIENCE):
        return [output async for output in stream(balancer, request)]


def asked(prompt: tuple[int, ...], count: int = 3) -> GenerateRequest:
    return GenerateRequest("a", prompt, SamplingParams(max_tokens=count))


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
        assert balancer.limits == {None: PromptLimits(info.model, info.context_length, vocab_size=info.vocab_size)}
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
        balancer.own_tokenizer = load_tokenizer(str(STORIES))
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


async def test_workers_of_different_models_are_refused() -> None:
    """A request would get answers of either."""
    with pytest.raises(UsageError, match="different models: one, two"):
        async with balanced(ScriptedModel(name="one"), ScriptedModel(name="two")) as balancer:
            await balancer.info()


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


class Refusing(ScriptedModel):
    """A model that refuses every request with an error, as long as there is one."""

    error: LmtoolError | None = None

    def submit(self, request: GenerateRequest | ScoreRequest, sink: Sink) -> StreamHandle:
        """See `TokenModel`."""
        if self.error is None:
            return super().submit(request, sink)
        self.requests.append(request)
        return refuse(request.stream_id, sink, self.error)


async def test_an_overloaded_worker_rests_and_returns() -> None:
    """As a member of a pool: streams go to the others meanwhile, and the first one after the rest goes alone."""
    first, second = Refusing(manual=True), Refusing()
    async with balanced(first, second) as balancer:
        first.error = OverloadedError("its queue is full")
        [worker, other] = balancer._workers
        assert [one.error_code for one in await outputs(balancer, asked((1,)))] == ["overloaded"]
        assert 0 < worker.rest_seconds <= 1
        for number in range(3):
            assert (await outputs(balancer, asked((number, 2))))[-1].error is None
        assert (len(first.requests), len(second.requests)) == (1, 3)

        second.error = OverloadedError("its queue is full")
        await outputs(balancer, asked((3,)))
        [refused] = await outputs(balancer, asked((4,)))
        assert (refused.error_code, "every worker that is up rests" in str(refused.error)) == ("overloaded", True)
        assert (len(first.requests), len(second.requests)) == (1, 4)

        first.error, worker.health.resting_until = None, 0.0  # its rest is over
        alone: list[TokenOutput] = []
        balancer.submit(asked((5,)), alone.extend)
        await until(lambda: len(first.requests) == 2)
        assert [one.error_code for one in await outputs(balancer, asked((6,)))] == ["overloaded"]
        first.step()
        await until(lambda: bool(alone))
        assert worker.available
        assert not other.available


@pytest.mark.parametrize("error", [RequestError("no such thing"), ServerError("a fault of its own")])
async def test_faults_of_a_worker_cost_its_budget(error: LmtoolError) -> None:
    """Ten in a minute, then it rests; requests that are at fault themselves cost nothing."""
    model = Refusing()
    async with balanced(model) as balancer:
        model.error = error
        for number in range(10):
            await outputs(balancer, asked((number,)))
        model.error = None
        [last, *_] = await outputs(balancer, asked((1,)))
        assert last.error_code == (None if isinstance(error, RequestError) else "overloaded")


async def test_a_stream_that_is_cancelled_frees_a_worker_that_it_was_alone_on() -> None:
    """The next stream goes alone in its place."""
    model = Refusing(manual=True)
    async with balanced(model) as balancer:
        model.error = OverloadedError("its queue is full")
        await outputs(balancer, asked((1,)))
        [worker] = balancer._workers
        model.error, worker.health.resting_until = None, 0.0
        found: list[TokenOutput] = []
        handle = balancer.submit(asked((2,)), found.extend)
        assert not worker.available
        handle.cancel()
        await until(lambda: worker.available)


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


class TestCatalogue:
    """What is served is told at once, by what the workers listed last."""

    async def test_nothing_is_waited_for(self) -> None:
        """Before a worker answers what is expected is listed; while it loads, that; then its own list."""
        model = ScriptedModel()
        model.loaded.clear()
        async with serving(model, catalogue=model) as server:
            expected = [ModelEntry("scripted", phase="queued")]
            balancer = Balancer([server.url], expected=expected, check_seconds=0.01)
            assert balancer.models() == expected
            balancer.start()
            await until(lambda: balancer.models()[0].phase == "loading")
            assert balancer.up == []
            model.loaded.set()
            await until(lambda: balancer.up != [])
            assert balancer.entry(None) == balancer.entry("scripted") == model.models()[0]
            with pytest.raises(UnknownModelError, match="'other' is not served"):
                balancer.entry("other")
            await balancer.close()

    async def test_many_models(self) -> None:
        """A worker that serves several is up, and a request that names one gets it; the best phase counts."""
        one, two = Many(), Many("b", "unloaded")
        async with balanced(one, two) as balancer:
            assert {entry.name: entry.phase for entry in balancer.models()} == {"a": "ready", "b": "ready"}
            assert await balancer.main() is None
            assert (await balancer.info("a")).model == "a"
            with pytest.raises(UnknownModelError, match="names no model"):
                balancer.entry(None)

    async def test_listing_uses_no_model(self) -> None:
        """Workers are asked whether they live by the list: a model that is idle there can be unloaded."""
        model = Many()
        async with balanced(model) as balancer:
            await until(lambda: model.listed > 5)
            assert model.described == 0
            assert len(balancer.up) == 1


async def test_models_are_loaded_and_unloaded_on_all_workers() -> None:
    """On those that serve the model; what none serves is an error, and so is a worker that refuses."""
    shelves = Shelf(), Shelf()
    managers = ModelManager(shelves[0].load, named("a", "b")), ModelManager(shelves[1].load, named("a"))
    async with contextlib.AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(serving(one, catalogue=one, control=one)) for one in managers]
        balancer = Balancer([server.url for server in servers], check_seconds=0.01)
        balancer.start()
        await until(lambda: len(balancer.up) == 2)
        await balancer.load("a")
        assert [shelf.loads for shelf in shelves] == [["a"], ["a"]]
        assert {entry.name: entry.phase for entry in balancer.models()} == {"a": "ready", "b": "unloaded"}
        await balancer.load("b")
        assert [shelf.loads for shelf in shelves] == [["a", "b"], ["a"]]
        managers[1].submit(GenerateRequest("s", (1,)), Collector())
        with pytest.raises(OverloadedError, match="a is in use"):
            await balancer.unload("a")
        await shelves[1].models["a"].finish()
        await balancer.unload("a")
        assert all(shelf.models["a"].closed.is_set() for shelf in shelves)
        with pytest.raises(UnknownModelError, match="'c' is not served here"):
            await balancer.load("c")
        await balancer.close()
    for manager in managers:
        await manager.close()


class Many(ScriptedModel):
    """Two models, of which one may be away; without a name there is no description."""

    def __init__(self, name: str = "b", phase: ModelPhase = "ready") -> None:
        super().__init__()
        self.other = ModelEntry(name, phase=phase)
        self.listed = self.described = 0

    def models(self) -> list[ModelEntry]:
        self.listed += 1
        return [ModelEntry("a"), self.other]

    async def info(self, model: str | None = None) -> ModelInfo:
        self.described += 1
        if model is None:
            raise UnknownModelError("the request names no model, and 2 are served")
        return ModelInfo(model, "", "scripted")


LONG = GenerateRequest("a", (1,), SamplingParams(max_tokens=4000))
STDIO = f"stdio:{sys.executable} -m tests.lmtp.stdio_server"


def make(endpoint: str, **seconds: float) -> Worker:
    return Worker(
        0, parse(endpoint), lambda _worker: None, lambda _progress: None, **{"check_seconds": 0.05, **seconds}
    )


async def test_a_server_that_goes_takes_its_streams_with_it(caplog: pytest.LogCaptureFixture) -> None:
    """They end with an error that says whose loss it was; the worker is down and counts no streams."""
    found: list[TokenOutput] = []
    async with serving(ScriptedModel()) as server:
        worker = make(server.url)
        worker.start()
        await until(lambda: worker.up)
        worker.submit(LONG, found.extend)
        await until(lambda: len(found) > 2)
        assert worker.running == 1
    await until(lambda: found[-1].last and not worker.up)
    assert worker.running == 0
    assert found[-1].error is not None
    downs, ups = (caplog.text.count(f"is {state}") for state in ("down", "up again"))
    assert downs == ups + 1  # it may find the server once more while that is closing
    await worker.close()


async def test_a_worker_that_does_not_answer_is_cut_off() -> None:
    """Its streams end, instead of waiting for ever."""
    model = ScriptedModel()
    found: list[TokenOutput] = []
    async with serving(model) as server:
        worker = make(server.url, answer_seconds=0.1)
        worker.start()
        await until(lambda: worker.up)
        model.loaded.clear()  # MODEL_INFO waits
        model._manual = True  # and no token comes
        worker.submit(LONG, found.extend)
        async with asyncio.timeout(PATIENCE):
            await until(lambda: bool(found) and found[-1].last)
        assert found[-1].error == f"worker 1 ({server.url}) was lost before the stream's end; send the request again"
        assert not worker.up
        model.loaded.set()
        await until(lambda: worker.up)
        await worker.close()


async def test_a_process_of_ours_is_started_again(caplog: pytest.LogCaptureFixture) -> None:
    """By the next question, after its streams have ended with an error; the reason is logged, and what it prints."""
    prints = shlex.quote(f"echo odd >&2; exec {STDIO.removeprefix('stdio:')}")
    worker = make(f"stdio:sh -c {prints}")
    assert worker.owned
    assert worker.name == "worker 1"
    worker.start()
    async with asyncio.timeout(PATIENCE):
        await until(lambda: worker.up)
        channel = _process()
        channel.kill()
        await until(lambda: not worker.up)
        await until(lambda: worker.up)
        assert _process().pid != channel.pid
    await worker.close()
    assert re.search(r"worker 1 is down: '\S*' was killed by SIGKILL", caplog.text)
    assert caplog.text.count("worker 1: odd") == 2


def _process() -> psutil.Process:
    """The worker's process, found through this one's children; one that has ended may still be among them."""
    living = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    (child,) = [child for child in living if "tests.lmtp.stdio_server" in child.cmdline()]
    return child
