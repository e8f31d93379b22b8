"""Which models are in memory: unloading, loads beside each other, a budget of bytes, pins."""

from __future__ import annotations

import logging

import pytest

from lmtool.core.errors import (
    ModelLoadError,
    RequestError,
)
from lmtool.core.types import TokenOutput
from lmtool.inference.engine.model_manager import ModelBudget, ModelManager, ServedModel
from tests.inference.engine.shelf import Clock, Collector, Shelf, ask, named, sized, turn, until


class TestUnloading:
    """Models that make room."""

    async def test_oldest_idle_goes(self) -> None:
        """With the memory full, the model unused longest goes, in a thread, and its requests load it again."""
        shelf, sink, clock = Shelf(), Collector(), Clock()
        host = ModelManager(shelf.load, named("a", "b", "c"), budget=ModelBudget(2), clock=clock)
        for name in ("a", "b"):
            await host.info(name)
            clock.now += 1
        host.submit(ask(1, "a"), sink)
        await shelf.models["a"].finish()
        old = shelf.models["b"]
        await host.info("c")
        assert old.closed.is_set()
        assert old.closed_in.startswith("lmtool-load")
        assert not shelf.models["a"].closed.is_set()
        clock.now += 1
        host.submit(ask(2, "b"), sink)
        await until(lambda: shelf.models["b"] is not old)
        await turn()
        assert shelf.models["b"].requests == [ask(2)]
        assert shelf.models["a"].closed.is_set()
        assert shelf.loads == ["a", "b", "c", "b"]
        await host.close()

    async def test_running_streams_keep_a_model(self) -> None:
        """A model with running streams is never unloaded: who needs its room waits until the last has ended."""
        shelf, sink = Shelf(), Collector()
        host = ModelManager(shelf.load, named("a", "b"), budget=ModelBudget(1))
        await host.info("a")
        host.submit(ask(1, "a"), sink)
        host.submit(ask(2, "a"), sink)
        host.submit(ask(3, "b"), sink)
        model = shelf.models["a"]
        model.running[0].end(TokenOutput(1, 5, finish_reason="stop"))
        await turn()
        assert shelf.loads == ["a"]
        await model.finish()
        await until(lambda: "b" in shelf.models)
        assert model.closed.is_set()
        await turn()
        assert shelf.models["b"].requests == [ask(3)]
        await host.close()

    async def test_request_while_unloading(self) -> None:
        """A request for a model that is just being unloaded waits and gets it loaded again."""
        shelf, sink = Shelf(), Collector()
        host = ModelManager(shelf.load, named("a", "b"), budget=ModelBudget(1))
        await host.info("a")
        host.submit(ask(1, "b"), sink)
        host.submit(ask(2, "a"), sink)
        await until(lambda: "b" in shelf.models)
        await turn()
        await shelf.models["b"].finish()
        await until(lambda: shelf.loads == ["a", "b", "a"] and not shelf.models["a"].closed.is_set())
        await turn()
        assert shelf.models["a"].requests == [ask(2)]
        await host.close()

    async def test_idle_seconds(self) -> None:
        """A model unused for so long is unloaded; one with streams, or used since, is not."""
        shelf, sink, clock = Shelf(), Collector(), Clock()
        host = ModelManager(shelf.load, named("a", "b", "c"), idle_seconds=60, clock=clock)
        for name in ("a", "b", "c"):
            await host.info(name)
        host.submit(ask(1, "b"), sink)
        clock.now += 30
        await host.info("c")
        clock.now += 30
        host.sweep()
        await until(shelf.models["a"].closed.is_set)
        assert not shelf.models["b"].closed.is_set()
        assert not shelf.models["c"].closed.is_set()
        heard: list[str] = []
        await until(lambda: host.entry("a").phase == "unloaded")
        host.subscribe("a", lambda progress: heard.append(progress.phase))
        assert heard == ["waiting"]
        await host.info("a")
        assert shelf.loads == ["a", "b", "c", "a"]
        await host.close()

    async def test_timer(self) -> None:
        """Nobody needs to ask: a timer unloads idle models."""
        shelf = Shelf()
        host = ModelManager(shelf.load, named("a"), idle_seconds=0.01)
        await host.info("a")
        await until(shelf.models["a"].closed.is_set)
        await host.close()

    async def test_close_that_fails(self, caplog: pytest.LogCaptureFixture) -> None:
        """A model that cannot be closed cleanly is logged and gone."""
        shelf = Shelf()
        host = ModelManager(shelf.load, named("a", "b"), budget=ModelBudget(1))
        await host.info("a")
        shelf.models["a"].refuses_to_close = True
        with caplog.at_level(logging.ERROR):
            await host.info("b")
        assert "unloading a failed" in caplog.text
        await host.close()


class TestBeside:
    """Loads run beside each other, within the budget."""

    async def test_at_once(self) -> None:
        """As many as the budget allows; the others wait their turn."""
        shelf = Shelf(open_=False)
        host = ModelManager(shelf.load, named("a", "b", "c"), budget=ModelBudget(max_loading=2))
        host.preload()
        await until(lambda: len(shelf.loads) == 2)
        await turn()
        assert [entry.phase for entry in host.models()] == ["loading", "loading", "queued"]
        shelf.gate.set()
        await host.info("c")
        assert sorted(shelf.loads) == ["a", "b", "c"]
        await host.close()

    async def test_one_fails(self) -> None:
        """The failure of one load is its own: the one beside it goes on."""
        shelf, sink = Shelf(open_=False), Collector()
        shelf.errors["a"] = ModelLoadError("cut off")
        host = ModelManager(shelf.load, named("a", "b"))
        host.submit(ask(1, "a"), sink)
        host.submit(ask(2, "b"), sink)
        await until(lambda: len(shelf.loads) == 2)
        shelf.gate.set()
        assert (await host.info("b")).model == "b"
        await until(lambda: sink.of(1))  # either thread may be first
        assert [output.error for output in sink.of(1)] == ["cut off"]
        assert shelf.models["b"].requests == [ask(2)]
        await host.close()

    async def test_room_for_those_on_their_way(self) -> None:
        """A load that has begun takes its room already: no second one is begun for the same room."""
        shelf = Shelf(open_=False)
        host = ModelManager(shelf.load, named("a", "b"), budget=ModelBudget(max_loaded=1))
        host.submit(ask(1, "a"), Collector())
        host.submit(ask(2, "b"), Collector())
        await until(lambda: shelf.loads)
        await turn()
        assert [entry.phase for entry in host.models()] == ["loading", "queued"]
        shelf.gate.set()
        await host.close()

    async def test_who_waits_for_room_is_told_who_makes_it(self) -> None:
        """The progress of a load says that another model is unloaded for it."""
        shelf, sink, phases = Shelf(), Collector(), []
        host = ModelManager(shelf.load, named("a", "b"), budget=ModelBudget(max_loaded=1))
        await host.load("a")
        host.submit(ask(1, "b"), sink)
        host.subscribe("b", lambda progress: phases.append((progress.phase, progress.message)))
        await until(lambda: "b" in shelf.models)
        await turn()
        assert phases[0] == ("unloading", "another model is unloaded to make room")
        assert [phase for phase, _ in phases[-2:]] == ["loading", "ready"]
        await host.close()


class TestMemory:
    """A budget in bytes."""

    async def test_the_one_unused_longest_goes(self) -> None:
        """As many go as are needed, and no more; what they take is measured when they are loaded."""
        shelf, clock = Shelf(), Clock()
        shelf.parameters |= {"a": 100, "b": 50, "c": 100, "d": 200}
        host = ModelManager(
            shelf.load, sized(a=10, b=10, c=400, d=800), budget=ModelBudget(memory_bytes=1000), clock=clock
        )
        for name in ("a", "b", "c"):
            await host.info(name)
            clock.now += 1
        assert [entry.phase for entry in host.models()] == ["ready", "ready", "ready", "unloaded"]  # 400 + 200 + 400
        await host.info("b")
        await host.info("d")
        assert [entry.phase for entry in host.models()] == ["unloaded", "ready", "unloaded", "ready"]
        await host.close()

    async def test_more_than_was_expected(self) -> None:
        """Where a loaded model takes more than its files, another one that is idle goes."""
        shelf, clock = Shelf(), Clock()
        shelf.parameters |= {"a": 100, "b": 200}
        host = ModelManager(shelf.load, sized(a=400, b=400), budget=ModelBudget(memory_bytes=1000), clock=clock)
        await host.info("a")
        clock.now += 1
        await host.load("b")
        await until(shelf.models["a"].closed.is_set)
        await until(lambda: [entry.phase for entry in host.models()] == ["unloaded", "ready"])
        await host.close()

    async def test_no_room_at_all(self) -> None:
        """It is an error of its requests that names both numbers, before the load or as soon as it is known."""
        shelf = Shelf()
        shelf.parameters["b"] = 1000
        host = ModelManager(shelf.load, sized(a=5000, b=10, c=10), budget=ModelBudget(memory_bytes=1000))
        with pytest.raises(ModelLoadError, match=r"a takes 5\.0 kB, and all models together may take 1\.0 kB"):
            await host.info("a")
        with pytest.raises(ModelLoadError, match=r"b takes 4\.0 kB"):
            await host.info("b")
        assert shelf.loads == ["b"]
        assert shelf.models["b"].closed.is_set()
        assert (await host.info("c")).model == "c"
        await host.close()

    async def test_preload(self) -> None:
        """At the start as many are loaded as fit beside each other."""
        shelf = Shelf()
        host = ModelManager(shelf.load, sized(a=400, b=700, c=500), budget=ModelBudget(memory_bytes=1000))
        assert host.preload() == ["a", "c"]
        await host.info("c")
        assert sorted(shelf.loads) == ["a", "c"]
        await host.close()


class TestPins:
    """Models that stay."""

    async def test_never_unloaded(self) -> None:
        """Neither to make room, nor when idle, nor on request; others make room in its place."""
        shelf, clock = Shelf(), Clock()
        models = [ServedModel("a", ("a",), pinned=True), *named("b", "c")]
        host = ModelManager(shelf.load, models, budget=ModelBudget(max_loaded=2), idle_seconds=60, clock=clock)
        for name in ("a", "b", "c"):
            await host.info(name)
            clock.now += 1
        assert [(entry.phase, entry.pinned) for entry in host.models()] == [
            ("ready", True),
            ("unloaded", False),
            ("ready", False),
        ]
        clock.now += 100
        host.sweep()
        await until(lambda: host.entry("c").phase == "unloaded")
        with pytest.raises(RequestError, match="a is pinned"):
            await host.unload("a")
        assert host.entry("a").phase == "ready"
        await host.close()

    async def test_preload(self) -> None:
        """Where not all fit at the start, those that are pinned are loaded."""
        models = [*sized(a=600, b=100), ServedModel("c", ("c",), pinned=True, size_bytes=500)]
        shelf = Shelf()
        host = ModelManager(shelf.load, models, budget=ModelBudget(memory_bytes=1000))
        assert host.preload() == ["b", "c"]
        await host.info("c")
        await host.close()

    async def test_their_bytes(self) -> None:
        """What pinned models take is never there for others, in memory or not."""
        shelf = Shelf()
        models = [ServedModel("a", ("a",), pinned=True, size_bytes=600), *sized(b=500)]
        host = ModelManager(shelf.load, models, budget=ModelBudget(memory_bytes=1000))
        with pytest.raises(ModelLoadError, match="of which pinned models take 600"):
            await host.info("b")
        await host.close()
