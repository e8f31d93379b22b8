"""Several models that a server begins with."""

from __future__ import annotations

import asyncio
import logging

import pytest

from lmtool.core.errors import ModelLoadError
from lmtool.core.types import LoadProgress
from lmtool.inference.engine.model_manager import ModelBudget, ModelManager
from lmtool.serving.service import JointProgress, load_together
from tests.inference.engine.shelf import Shelf, named, until


def ignore(_progress: LoadProgress) -> None:
    """Progress that nobody looks at."""


async def test_all_are_loaded() -> None:
    """Each of them, in the order in which they were named; the listener gets one load, over with the last of them."""
    shelf, phases = Shelf(), []
    models = ModelManager(shelf.load, named("a", "b", "on demand"))
    infos = await load_together(models, ["a", "b"], lambda progress: phases.append(progress.phase))
    assert [info.model for info in infos] == ["a", "b"]
    assert [entry.phase for entry in models.models()] == ["ready", "ready", "unloaded"]
    assert phases[-1] == "ready"
    assert phases.count("ready") == 1
    await models.close()


async def test_as_many_as_fit() -> None:
    """What has no room beside the others waits for its first request: nothing is loaded only to be unloaded."""
    shelf = Shelf()
    models = ModelManager(shelf.load, named("a", "b", "c"), budget=ModelBudget(2))
    assert len(await load_together(models, ["a", "b", "c"], ignore)) == 2
    assert shelf.loads == ["a", "b"]
    assert (await models.info("c")).model == "c"
    await models.close()


async def test_one_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    """The others are served; the log says why it is not, and so does the answer to a request."""
    shelf = Shelf()
    shelf.errors["a"] = ModelLoadError("the file is cut off", "download it again")
    models = ModelManager(shelf.load, named("a", "b"))
    with caplog.at_level(logging.WARNING, "lmtool"):
        assert [info.model for info in await load_together(models, ["a", "b"], ignore)] == ["b"]
    assert "a is not in memory: the file is cut off; download it again" in caplog.text
    with pytest.raises(ModelLoadError, match="cut off"):
        await models.info("a")
    await models.close()


async def test_none_can_be_loaded() -> None:
    """A server without any model ends with the reason of the first; a bug is never a warning."""
    shelf = Shelf()
    shelf.errors |= {"a": ModelLoadError("no weights"), "b": ModelLoadError("no config")}
    models = ModelManager(shelf.load, named("a", "b"))
    with pytest.raises(ModelLoadError, match="no weights"):
        await load_together(models, ["a", "b"], ignore)
    await models.close()


async def test_listed_while_one_loads() -> None:
    """Both are listed at once, each with its phase."""
    shelf = Shelf(open_=False)
    models = ModelManager(shelf.load, named("a", "b"))
    loading = asyncio.create_task(load_together(models, ["a", "b"], ignore))
    await until(lambda: shelf.loads)
    assert [entry.name for entry in models.models()] == ["a", "b"]
    assert {entry.phase for entry in models.models()} <= {"queued", "loading"}
    shelf.gate.set()
    await loading
    await models.close()


def test_joint_progress() -> None:
    """Bytes are summed; it names what is still on its way, and is over with the last load."""
    heard: list[LoadProgress] = []
    joint = JointProgress(["a", "b"], heard.append)
    for progress in (
        LoadProgress("b", "waiting"),
        LoadProgress("a", "loading", 3, 4),
        LoadProgress("a", "failed", 3, 4, "no"),
        LoadProgress("b", "loading", 5, 10),
        LoadProgress("b", "ready", 10, 10),
    ):
        joint.update(progress)
    assert [(one.model, one.phase, one.done_bytes, one.total_bytes) for one in heard] == [
        ("a, b", "waiting", 0, 0),
        ("a, b", "loading", 3, 4),
        ("b", "loading", 3, 4),
        ("b", "loading", 8, 14),
        ("a, b", "ready", 13, 14),
    ]
    JointProgress(["a"], heard.append).update(LoadProgress("a", "failed", message="no"))
    assert heard[-1] == LoadProgress("a", "failed", message="no")
