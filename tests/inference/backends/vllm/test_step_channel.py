"""The side channel from vLLM's engine to the worker, over a real socket."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmtool.core.errors import ConstraintError, ConstraintTooComplexError, LmtoolError, ServerError
from lmtool.inference.backends.vllm.step_channel import StepReceiver, StepReport, StepSender, error_from, error_parts


@pytest.fixture
def sender(tmp_path: Path):
    sender = StepSender(tmp_path / "steps")
    yield sender
    sender.close()


@pytest.fixture
async def receiver(tmp_path: Path):
    receiver = StepReceiver(tmp_path / "steps")
    yield receiver
    receiver.close()


async def test_reports_are_there_at_once(receiver: StepReceiver, sender: StepSender) -> None:
    """Before the event loop runs again, many streams together, each report once; other streams are dropped."""
    for name in ("a", "b"):
        receiver.subscribe(name)
    reports = [StepReport(name, at, 0.5, ((3, -1.0), (4, -2.0))) for name in ("a", "b", "c") for at in range(9)]
    assert sender.send(reports)
    assert receiver.report("a", 8) == reports[8]
    assert receiver.report("b", 0) == reports[9]
    for name, index in (("a", 8), ("c", 0)):
        with pytest.raises(ServerError, match="sent no report"):
            receiver.report(name, index)
    receiver.unsubscribe("a")
    with pytest.raises(ServerError):
        receiver.report("a", 1)


async def test_an_error_is_raised_at_its_token(receiver: StepReceiver, sender: StepSender) -> None:
    """As the same kind of error, with its hints."""
    receiver.subscribe("a")
    assert sender.send([StepReport("a", 0, error=("constraint_too_complex", "too much", "less"))])
    with pytest.raises(ConstraintTooComplexError) as raised:
        receiver.report("a", 0)
    assert (raised.value.message, raised.value.hints) == ("too much", ("less",))


@pytest.mark.parametrize("error", [ConstraintError("bad", "be good"), ServerError("broken")])
def test_errors_travel(error: LmtoolError) -> None:
    """By their code."""
    copy = error_from(error_parts(error))
    assert (type(copy), copy.message, copy.hints) == (type(error), error.message, error.hints)


def test_a_missing_worker(tmp_path: Path) -> None:
    """Is a result, not an exception: the engine goes on."""
    assert not StepSender(tmp_path / "none").send([StepReport("a", 0)])


async def test_an_engine_that_ends(receiver: StepReceiver, tmp_path: Path) -> None:
    """Is forgotten, and another one is accepted."""
    receiver.subscribe("a")
    first, second = StepSender(tmp_path / "steps"), StepSender(tmp_path / "steps")
    assert first.send([StepReport("a", 0)])
    assert receiver.report("a", 0).token_index == 0
    first.close()
    assert second.send([StepReport("a", 1)])
    receiver._accept()
    assert receiver.report("a", 1).token_index == 1
    second.close()
