"""A balancer over servers of several models: each request goes to those that serve its model."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

from lmtool.core.errors import OverloadedError, UnknownModelError
from lmtool.core.interfaces import Tokenizer
from lmtool.core.model_entry import ModelEntry, ModelPhase
from lmtool.core.prompt_limits import PromptLimits, limits_of
from lmtool.core.types import GenerateRequest, LoadProgress, ModelInfo
from lmtool.gateway.balance.balancer import Balancer
from lmtool.inference.engine.model_manager import ModelManager
from tests.inference.engine.shelf import Collector, Shelf, named
from tests.protocol.lmtp.balanced import PRINT, asked, balanced, mortals, outputs, over
from tests.protocol.lmtp.harness import serving, until
from tests.scripted_model import VOCAB_SIZE, ScriptedModel, tokens_of


class Aliased(ScriptedModel):
    """A model with another name, and a context of its own."""

    def __init__(self, name: str, alias: str = "", context: int = 4096) -> None:
        super().__init__(name=name, fingerprint=PRINT)
        self.aliases = (alias,) if alias else ()
        self.context = context

    def check_name(self, model: str | None) -> None:
        """See `ScriptedModel`."""
        super().check_name(self.name if model in self.aliases else model)

    def models(self) -> list[ModelEntry]:
        """See `Catalogue`."""
        return [replace(super().models()[0], aliases=self.aliases)]

    async def info(self, model: str | None = None) -> ModelInfo:
        """See `TokenModel`."""
        return replace(await super().info(model), context_length=self.context)


class TestRouting:
    """By the name that a request has."""

    async def test_by_name_and_alias(self) -> None:
        """A model's requests go to its workers and no others, under any of its names, whichever worker lists them."""
        one, also, two = Aliased("one", "first"), Aliased("one"), Aliased("two", "second")
        async with balanced(one, also, two) as balancer:
            for name in ("one", "first", "two", "second") * 2:
                found = await outputs(balancer, asked((1, 2), model=name))
                assert [output.token for output in found] == tokens_of((1, 2), 3)
                assert (await balancer.info(name)).model == {"first": "one", "second": "two"}.get(name, name)
        assert (len(one.requests) + len(also.requests), len(two.requests)) == (4, 4)
        assert {request.model for request in (*one.requests, *also.requests)} == {"one"}

    async def test_names(self) -> None:
        """All are listed; without a name, and under an unknown one, the error is that of one server of both."""
        manager = ModelManager(Shelf().load, named("one", "two"))
        async with balanced(ScriptedModel(name="one"), ScriptedModel(name="two")) as balancer:
            assert [entry.name for entry in balancer.models()] == ["one", "two"]
            assert await balancer.main() is None
            for name in (None, "three"):
                sink = Collector()
                manager.submit(asked((1,), model=name), sink)
                await until(lambda: bool(sink.outputs))  # noqa: B023  # awaited here
                [refused] = await outputs(balancer, asked((1,), model=name))
                assert (refused.error, refused.error_code) == (sink.outputs[0].error, "unknown_model")
                with pytest.raises(UnknownModelError) as described:
                    await balancer.info(name)
                with pytest.raises(UnknownModelError) as listed:
                    balancer.entry(name)
                assert {described.value.sentence, listed.value.sentence} == {refused.error}
        await manager.close()

    async def test_a_name_that_is_not_listed(self) -> None:
        """Each worker is asked: one may load it on demand. A path, which no list has, is such a name."""
        one, two = ScriptedModel(name="one"), Hidden("two")
        async with balanced(one, two) as balancer:
            for _ in range(2):
                assert [output.error for output in await outputs(balancer, asked((1,), model="/hidden"))] == [None] * 3
            assert (await balancer.info("/hidden")).model == "two"
        assert len(two.requests) == 2

    async def test_one_is_down(self) -> None:
        """A model whose workers all are down waits for them; the other's streams run."""
        models = ScriptedModel(name="one"), ScriptedModel(name="two")
        async with mortals(*models) as workers, over(*workers, wait_seconds=0.2) as balancer:
            workers[1].die()
            await until(lambda: len(balancer.up) == 1)
            assert (await outputs(balancer, asked((1,), model="one")))[-1].error is None
            [end] = await outputs(balancer, asked((1,), model="two"))
            assert end.error == "no worker that serves two is up; try again in a moment"
            assert [entry.name for entry in balancer.models()] == ["one", "two"]

    async def test_a_stream_without_a_name_keeps_its_model(self) -> None:
        """It goes on when another model has come meanwhile."""
        one, two = ScriptedModel(name="one", manual=True, fingerprint=PRINT), ScriptedModel(name="two")
        async with mortals(one, two) as workers:
            workers[1].die()
            balancer = Balancer([worker.url for worker in workers], check_seconds=0.05)
            balancer.start()
            await until(lambda: len(balancer.up) == 1)
            sink = Collector()
            balancer.submit(asked((1,), 2), sink)
            await until(lambda: bool(one.running))
            one.step()
            await until(lambda: len(sink.outputs) == 1)
            workers[1].revive()
            await until(lambda: len(balancer.up) == 2)
            workers[0].die()
            await until(lambda: len(balancer.up) == 1)
            workers[0].revive()
            await until(lambda: bool(one.running))
            one.step()
            await until(lambda: len(sink.outputs) == 2)
            assert [output.token for output in sink.outputs] == tokens_of((1,), 2)
            await balancer.close()

    async def test_prefixes_are_a_models_own(self) -> None:
        """The same prompt of another model does not draw requests away from the worker that knows it."""
        models = [Aliased("one"), Aliased("one"), Aliased("two"), Aliased("two")]
        async with balanced(*models) as balancer:
            shared = tuple(range(100, 164))
            for number in range(6):
                for name in ("one", "two"):
                    await outputs(balancer, asked((*shared, number), model=name))
        assert sorted(len(model.requests) for model in models) == [0, 0, 6, 6]


async def test_limits_and_tokenizers_are_a_models_own() -> None:
    """Each model's, under each of its names; where all are known, the widest for names that are not."""

    class Tokens:
        longest_token_bytes = 3

    loaded: list[tuple[str, int]] = []

    def load(info: ModelInfo, limits: PromptLimits | None) -> Tokenizer | None:
        assert limits is not None
        loaded.append((info.model, limits.context_length))
        return Tokens() if info.model == "one" else None  # type: ignore[return-value]  # as much as is needed here

    models = Aliased("one", "first", 100), Aliased("two", context=900)
    async with mortals(*models) as workers, over(*workers, load_tokenizer=load) as balancer:
        for _ in range(2):
            assert [(await balancer.info(name)).context_length for name in ("first", "two")] == [100, 900]
        assert loaded == [("one", 100), ("two", 900)]
        assert balancer.tokenizer("first") is balancer.tokenizer("one") is not None
        assert balancer.tokenizer("two") is None
        limits = balancer.limits
        assert limits_of("first", limits) == PromptLimits("one", 100, 100 * 3 * 4, VOCAB_SIZE)
        two = PromptLimits("two", 900, vocab_size=VOCAB_SIZE)
        assert limits_of("two", limits) == limits_of("other", limits) == two


async def test_progress_of_a_model() -> None:
    """Is told to who asked for that model."""
    one, two = ScriptedModel(name="one"), ScriptedModel(name="two")
    two.loaded.clear()
    async with serving(one, catalogue=one) as first, serving(two, catalogue=two) as second:
        balancer = Balancer([first.url, second.url], check_seconds=0.02)
        balancer.start()
        await until(lambda: len(balancer.models()) == 2 and len(balancer.up) == 1)
        seen: dict[str, list[LoadProgress]] = {"one": [], "two": []}
        for name, reports in seen.items():
            balancer.subscribe(name, reports.append)
        assert [report.phase for report in seen["one"]] == ["ready"]
        two.loaded.set()
        await until(lambda: seen["two"][-1].phase == "ready")
        assert [(report.model, report.phase) for report in seen["two"]] == [("two", "waiting"), ("two", "ready")]
        await balancer.close()


class Hidden(ScriptedModel):
    """A model with a name that is in no list."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name)

    def check_name(self, model: str | None) -> None:
        """See `ScriptedModel`."""
        super().check_name(self.name if model == "/hidden" else model)


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
