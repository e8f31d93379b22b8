"""One served model: its names, its progress, its streams."""

from __future__ import annotations

from lmtool.engine.model_slot import CountingSink, ModelSlot, ServedModel
from lmtool.types import LoadProgress, TokenOutput


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
