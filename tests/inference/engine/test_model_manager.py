"""Models that are loaded when asked for, and unloaded when idle."""

from __future__ import annotations

import asyncio
import logging

import pytest

from lmtool.core.errors import (
    LmtoolError,
    ModelLoadError,
    OutOfMemoryError,
    OverloadedError,
    UnknownModelError,
)
from lmtool.core.interfaces import client_of
from lmtool.core.prompt_limits import PromptLimits
from lmtool.core.types import LoadProgress, TokenOutput
from lmtool.inference.engine import model_manager as host_module
from lmtool.inference.engine.model_manager import CountingSink, ModelBudget, ModelManager, ModelSlot, ServedModel
from tests.inference.engine.shelf import Clock, Collector, Shelf, anything, ask, named, turn, until


class TestWaiting:
    """Requests for a model that is on its way."""

    async def test_order(self) -> None:
        """Requests wait in order and are submitted when the model is ready; it is loaded once."""
        shelf, sink = Shelf(open_=False), Collector()
        host = ModelManager(shelf.load, named("m"))
        for stream_id in range(3):
            host.submit(ask(stream_id), sink)
        shelf.gate.set()
        await until(lambda: shelf.models)
        await turn()
        assert [request.stream_id for request in shelf.models["m"].requests] == [0, 1, 2]
        host.submit(ask(3, "m"), sink)
        assert shelf.models["m"].requests[-1] == ask(3)
        await shelf.models["m"].finish()
        assert [output.stream_id for output in sink.outputs] == [0, 1, 2, 3]
        assert shelf.loads == ["m"]
        await host.close()

    async def test_cancel_pause_resume(self) -> None:
        """A waiting stream can be cancelled, which ends it at once, and paused, which holds when it has started."""
        shelf, sink = Shelf(open_=False), Collector()
        host = ModelManager(shelf.load, named("m"))
        handles = [host.submit(ask(stream_id), sink) for stream_id in range(4)]
        handles[0].cancel()
        handles[0].cancel()
        handles[1].pause()
        handles[2].pause()
        handles[2].resume()
        await turn()
        assert sink.outputs == [TokenOutput(0, finish_reason="cancelled")]
        shelf.gate.set()
        await until(lambda: shelf.models)
        await turn()
        model = shelf.models["m"]
        assert [(made.request.stream_id, made.paused) for made in model.running] == [(1, True), (2, False), (3, False)]
        handles[1].resume()
        handles[3].cancel()
        await model.finish()
        assert [len(sink.of(stream_id)) for stream_id in range(4)] == [1, 1, 1, 1]
        assert sink.of(3)[0].finish_reason == "cancelled"
        await host.close()

    async def test_limit(self) -> None:
        """So many requests may wait; cancelled ones do not count."""
        shelf, sink = Shelf(open_=False), Collector()
        host = ModelManager(shelf.load, named("m"), max_waiting=2)
        first = host.submit(ask(1), sink)
        host.submit(ask(2), sink)
        host.submit(ask(3), sink)
        first.cancel()
        host.submit(ask(4), sink)
        await turn()
        assert sink.of(3)[0].error_code == OverloadedError.code
        shelf.gate.set()
        await until(lambda: shelf.models)
        await turn()
        assert [request.stream_id for request in shelf.models["m"].requests] == [2, 4]
        await host.close()

    async def test_preload(self) -> None:
        """All served models can be loaded in order before anybody asks."""
        shelf = Shelf()
        host = ModelManager(shelf.load, named("a", "b"))
        host.preload()
        await until(lambda: len(shelf.models) == 2)
        assert shelf.loads == ["a", "b"]
        await host.close()


class TestNames:
    """Which model a request means."""

    async def test_aliases(self) -> None:
        """All names of a model mean the one model, and the first is shown, also in place of a path."""
        shelf, sink = Shelf(), Collector()
        host = ModelManager(shelf.load, [ServedModel("/models/small", ("short", "/models/small", "small"))])
        for name in ("short", "small", "/models/small", None):
            info = await host.info(name)
            assert (info.model, info.constructor) == ("short", "load('short')")
            host.submit(ask(name, name), sink)
        assert shelf.loads == ["/models/small"]
        assert len(shelf.models["/models/small"].requests) == 4
        await host.close()

    @pytest.mark.parametrize("name", ["other", "", "x" * 1000, None])
    async def test_unknown(self, name: str | None) -> None:
        """A name not served is an error that lists what is; so is no name where several are served."""
        shelf, sink = Shelf(), Collector()
        host = ModelManager(shelf.load, named("a", "b"))
        host.submit(ask(1, name), sink)
        assert not sink.outputs
        await turn()
        [output] = sink.outputs
        assert output.error_code == UnknownModelError.code
        assert "served here: a, b" in output.error
        assert len(output.error) < 300
        with pytest.raises(UnknownModelError):
            await host.info(name)
        heard: list[LoadProgress] = []
        host.subscribe(name, heard.append)()
        assert [progress.phase for progress in heard] == ["failed"]
        assert not shelf.loads
        await host.close()

    async def test_any_name(self) -> None:
        """Where any name goes, models are loaded as clients name them; without a name, the only loaded one is meant."""
        shelf, sink = Shelf(), Collector()
        host = ModelManager(shelf.load, [], on_demand=anything)
        host.submit(ask(1), sink)
        await turn()
        assert sink.of(1)[0].error_code == UnknownModelError.code
        await host.info("anything")
        host.submit(ask(2), sink)
        assert shelf.models["anything"].requests == [ask(2)]
        host.submit(ask(3, "new\nline"), sink)
        await turn()
        assert "not a possible model name" in sink.of(3)[0].error
        await host.close()

    async def test_names_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Names that clients made known and that failed are forgotten for new ones; those in use are not."""
        monkeypatch.setattr(host_module, "MAX_NAMES", 2)
        shelf = Shelf()
        shelf.errors = {"bad": ModelLoadError("no such model")}
        host = ModelManager(shelf.load, [], on_demand=anything)
        await host.info("a")
        for _ in range(2):
            with pytest.raises(ModelLoadError):
                await host.info("bad")
        await host.info("b")
        with pytest.raises(OverloadedError):
            await host.info("c")
        await host.close()


class TestFailure:
    """Loads that fail."""

    async def test_everybody_is_told(self) -> None:
        """A failed load fails all who wait with its reason and code; later ones get the same at once."""
        shelf, sink, clock = Shelf(open_=False), Collector(), Clock()
        shelf.errors["m"] = OutOfMemoryError("no room for m", "try --dtype bfloat16")
        host = ModelManager(shelf.load, named("m"), retry_seconds=10, clock=clock)
        assert host.can_answer
        host.submit(ask(1), sink)
        host.submit(ask(2), sink).cancel()
        waiting = asyncio.create_task(host.info("m"))
        await shelf.started.wait()
        shelf.gate.set()
        with pytest.raises(OutOfMemoryError, match="no room"):
            await waiting
        await turn()
        failed = TokenOutput(1, error="no room for m; try --dtype bfloat16", error_code="out_of_memory")
        assert sink.of(1) == [failed]
        assert [output.finish_reason for output in sink.of(2)] == ["cancelled"]
        assert not host.can_answer
        clock.now += 9.9
        host.submit(ask(1), sink)
        await turn()
        assert sink.of(1) == [failed, failed]
        with pytest.raises(OutOfMemoryError):
            await host.info("m")
        assert shelf.loads == ["m"]
        await host.close()

    async def test_retry(self) -> None:
        """After the back-off the next request tries again."""
        shelf, sink, clock = Shelf(), Collector(), Clock()
        shelf.errors["m"] = ModelLoadError("the disk was asleep")
        host = ModelManager(shelf.load, named("m"), retry_seconds=10, clock=clock)
        with pytest.raises(ModelLoadError):
            await host.info()
        clock.now += 10
        del shelf.errors["m"]
        heard: list[str] = []
        host.submit(ask(1), sink)
        host.subscribe("m", lambda progress: heard.append(progress.phase))
        await until(lambda: shelf.models)
        await turn()
        assert shelf.models["m"].requests == [ask(1)]
        assert heard[-1] == "ready"
        assert "failed" not in heard
        await host.close()

    async def test_a_bug_while_loading(self, caplog: pytest.LogCaptureFixture) -> None:
        """Any other exception fails the load too, and its traceback is in the log."""
        shelf = Shelf()
        shelf.errors["m"] = KeyError("layers")
        host = ModelManager(shelf.load, named("m"))
        with caplog.at_level(logging.ERROR), pytest.raises(ModelLoadError, match="KeyError: 'layers'"):
            await host.info()
        assert caplog.records[0].exc_info is not None
        await host.close()


class TestProgress:
    """How a load proceeds."""

    async def test_phases(self) -> None:
        """A listener hears waiting, loading with the bytes, and ready, under the served name."""
        shelf = Shelf()
        host = ModelManager(shelf.load, [ServedModel("/models/small", ("small",))])
        heard: list[LoadProgress] = []
        host.subscribe("small", heard.append)
        assert heard == [LoadProgress("small", "waiting")]
        await turn()
        assert not shelf.loads
        await host.info()
        assert heard[1:] == [
            LoadProgress("small", "waiting"),
            LoadProgress("small", "loading"),
            LoadProgress("small", "loading", 1, 2),
            LoadProgress("small", "loading", 2, 2, "done"),
            LoadProgress("small", "ready", 2, 2),
        ]
        await host.close()

    async def test_failure(self) -> None:
        """A failed load tells its reason."""
        shelf = Shelf()
        shelf.errors["m"] = ModelLoadError("no such folder")
        host = ModelManager(shelf.load, named("m"))
        heard: list[LoadProgress] = []
        host.subscribe(None, heard.append)
        with pytest.raises(LmtoolError):
            await host.info()
        assert (heard[-1].phase, heard[-1].message) == ("failed", "no such folder")
        await host.close()


class TestControl:
    """Loading and unloading on request."""

    async def test_load_and_unload(self) -> None:
        """Each returns when it is done, and does nothing where it is done already."""
        shelf = Shelf()
        host = ModelManager(shelf.load, [ServedModel("/m/a", ("a", "alias")), *named("b")])
        for _ in range(2):
            await host.load("alias")
            assert [entry.phase for entry in host.models()] == ["ready", "unloaded"]
        for _ in range(2):
            await host.unload("a")
            assert shelf.models["/m/a"].closed.is_set()
            assert [entry.phase for entry in host.models()] == ["unloaded", "unloaded"]
        assert shelf.loads == ["/m/a"]
        await host.close()

    async def test_in_use(self) -> None:
        """A model with streams, or on its way, stays, and the error says why; afterwards it can go."""
        shelf, sink = Shelf(open_=False), Collector()
        host = ModelManager(shelf.load, named("a"))
        host.submit(ask(1, "a"), sink)
        with pytest.raises(OverloadedError, match="is being loaded"):
            await host.unload("a")
        shelf.gate.set()
        await host.load("a")
        with pytest.raises(OverloadedError, match="a is in use: 1 stream runs"):
            await host.unload("a")
        await shelf.models["a"].finish()
        await host.unload("a")
        assert [output.finish_reason for output in sink.outputs] == ["length"]
        await host.close()

    @pytest.mark.parametrize("any_name", [False, True])
    async def test_unknown(self, *, any_name: bool) -> None:
        """What is not in memory under any name cannot go; it is not made known by that either."""
        host = ModelManager(Shelf().load, named("a"), on_demand=anything if any_name else None)
        with pytest.raises(UnknownModelError, match="'other' is not in memory here"):
            await host.unload("other")
        assert [entry.name for entry in host.models()] == ["a"]
        await host.close()

    async def test_both_at_once(self) -> None:
        """Two that unload one model wait for the one unload; a request meanwhile loads it again."""
        shelf, sink = Shelf(), Collector()
        host = ModelManager(shelf.load, named("a"))
        await host.load("a")
        old = shelf.models["a"]
        going = [asyncio.create_task(host.unload("a")) for _ in range(2)]
        await asyncio.sleep(0)
        host.submit(ask(1, "a"), sink)
        await asyncio.gather(*going)
        assert old.closed.is_set()
        await host.load("a")
        await turn()
        assert shelf.models["a"].requests == [ask(1)]
        await host.close()


class TestEnd:
    """Shutting down."""

    async def test_drain_and_close(self) -> None:
        """Draining lets running streams go on and refuses new ones; closing closes every model."""
        shelf, sink = Shelf(), Collector()
        host = ModelManager(shelf.load, named("a", "b"))
        await host.info("a")
        await host.info("b")
        host.submit(ask(1, "a"), sink)
        assert await host.drain(3) == 1
        assert [shelf.models[name].drained for name in "ab"] == [3, 3]
        host.submit(ask(2, "a"), sink)
        await turn()
        assert sink.of(2)[0].error_code == OverloadedError.code
        with pytest.raises(OverloadedError):
            await host.info("a")
        await shelf.models["a"].finish()
        assert len(sink.of(1)) == 1
        await host.close()
        assert all(model.closed.is_set() for model in shelf.models.values())

    async def test_close_while_loading(self) -> None:
        """Who waits for a load is refused; the model that still comes is closed."""
        shelf, sink = Shelf(open_=False), Collector()
        host = ModelManager(shelf.load, named("a", "b"), budget=ModelBudget(max_loading=1))
        host.submit(ask(1, "a"), sink)
        host.submit(ask(2, "b"), sink)
        info = asyncio.create_task(host.info("b"))
        await shelf.started.wait()
        closing = asyncio.create_task(host.close())
        await turn()
        assert [output.error_code for output in sink.outputs] == [OverloadedError.code] * 2
        with pytest.raises(OverloadedError):
            await info
        shelf.gate.set()
        await closing
        assert shelf.models["a"].closed.is_set()
        assert shelf.loads == ["a"]


class TestCatalogue:
    """What is listed, and that listing loads nothing."""

    async def test_phases(self) -> None:
        """Each served model with its names and how far it is; paths are not told, but may be asked for."""
        shelf, sink, clock = Shelf(open_=False), Collector(), Clock()
        models = [ServedModel("/m/a", ("a", "b", "/m/a"), ("b",)), ServedModel("c", ("c",))]
        host = ModelManager(shelf.load, models, clock=clock)
        assert [(one.name, one.aliases, one.phase) for one in host.models()] == [
            ("a", ("b",), "unloaded"),
            ("c", (), "unloaded"),
        ]
        assert shelf.loads == []
        host.submit(ask(1, "a"), sink)
        assert [host.entry(name).phase for name in ("a", "b", "/m/a", "c")] == ["loading"] * 3 + ["unloaded"]
        shelf.gate.set()
        await until(lambda: shelf.models)
        await turn()
        await host.info("a")
        assert (host.entry("a").phase, host.entry("a").idle_seconds) == ("ready", None), "a stream runs"
        await shelf.models["/m/a"].finish()
        assert host.entry("a").idle_seconds == 0
        clock.now += 7
        assert host.entry("a").idle_seconds == 7
        assert host.entry("a").context_length == (await host.info("a")).context_length
        with pytest.raises(UnknownModelError, match="'other' is not served here"):
            host.entry("other")
        with pytest.raises(UnknownModelError, match="names no model"):
            host.entry(None)
        assert shelf.loads == ["/m/a"]
        await host.close()

    async def test_on_demand(self) -> None:
        """Under any name those are listed that are in memory; what could not be loaded is not."""
        shelf = Shelf()
        shelf.errors["bad"] = ModelLoadError("no such model")
        host = ModelManager(shelf.load, [], on_demand=anything)
        assert host.models() == []
        with pytest.raises(UnknownModelError, match="not in memory"):
            host.entry("good")
        await host.info("good")
        with pytest.raises(ModelLoadError):
            await host.info("bad")
        assert [(one.name, one.phase) for one in host.models()] == [("good", "ready")]
        await host.close()

    async def test_failed(self) -> None:
        """A served model that could not be loaded says so."""
        shelf = Shelf()
        shelf.errors["m"] = ModelLoadError("broken", "mend it")
        host = ModelManager(shelf.load, named("m"))
        with pytest.raises(ModelLoadError):
            await host.info()
        assert [(one.phase, one.error) for one in host.models()] == [("failed", "broken; mend it")]
        await host.close()


class TestLimits:
    """What prompts may have, of the models that are in memory."""

    async def test_by_name(self) -> None:
        """Of each by all its names; once all that can be asked for are known, the widest for every other name."""
        shelf = Shelf()
        host = ModelManager(shelf.load, [ServedModel("a", ("a", "alias")), ServedModel("b", ("b",))])
        assert host.limits == {}
        await host.info("alias")
        own = PromptLimits("a", 10, 100)
        shelf.models["a"].limits = {None: own}
        assert host.limits == {"a": own, "alias": own}
        await host.info("b")
        assert host.limits == {"a": own, "alias": own}, "nothing is known of b"
        shelf.models["b"].limits = {None: PromptLimits("b", 20, 50)}
        assert host.limits[None] == PromptLimits("b", 20, 100)
        await host.close()

    async def test_any_name(self) -> None:
        """A model that is not in memory may have any limits."""
        shelf = Shelf()
        host = ModelManager(shelf.load, named("a"), on_demand=anything)
        await host.info("a")
        shelf.models["a"].limits = {None: PromptLimits("a", 10)}
        assert host.limits == {"a": PromptLimits("a", 10)}
        await host.close()


def test_listeners_hear_until_the_end() -> None:
    """A listener hears where the load is, each change, and nothing after `ready` or `failed`."""
    slot = ModelSlot(ServedModel("m", ("m",)))
    heard: list[str] = []
    slot.subscribe(lambda progress: heard.append(progress.phase))
    stop = slot.subscribe(lambda progress: heard.append("other " + progress.phase))
    stop()
    stop()
    for phase in ("loading", "ready", "waiting"):
        slot.publish(LoadProgress("m", phase))
    assert heard == ["waiting", "other waiting", "loading", "ready"]


def test_late_listener_hears_once() -> None:
    """A listener that comes when the load is over hears that, once."""
    slot = ModelSlot(ServedModel("m", ("m",)))
    slot.publish(LoadProgress("m", "failed", message="no"))
    heard: list[LoadProgress] = []
    slot.subscribe(heard.append)()
    slot.publish(LoadProgress("m", "waiting"))
    assert heard == [LoadProgress("m", "failed", message="no")]


def test_counting_sink() -> None:
    """Outputs pass; once the last running stream has ended, that is told."""
    passed: list[object] = []
    empty: list[bool] = []
    sink = CountingSink(passed.append, lambda: empty.append(True))
    sink.running = 2
    sink([TokenOutput(1, 5), TokenOutput(2, 6, finish_reason="stop")])
    assert not empty
    sink([TokenOutput(1, error="broken")])
    assert len(passed) == 2
    assert empty == [True]


def test_counting_sink_is_its_clients() -> None:
    """A client whose streams have all ended keeps its turn: another sink, of the same client, counts its next ones."""
    sink = Collector()
    first, second = (CountingSink(sink, lambda: None) for _ in range(2))
    assert client_of(first) == client_of(second) == client_of(sink) == sink
