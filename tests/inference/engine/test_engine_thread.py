"""A step's outputs reach each sink once, in order, in its own loop."""

from __future__ import annotations

import asyncio
import threading

import torch

from lmtool.core.types import TokenOutput
from lmtool.inference.engine.engine_thread import EngineThread, Outbox, Rest


def test_rests():
    """Without work, what is for times of rest is done once, in order; work interrupts it, and then it begins anew."""
    seen, entered, going_on = [], threading.Event(), threading.Event()

    def second(interrupted):
        entered.set()
        assert going_on.wait(30)
        going_on.clear()
        seen.append(interrupted())

    def step():
        seen.append("step")
        return False

    rests = [Rest(0.0, lambda _: seen.append("first")), Rest(0.01, second)]
    thread = EngineThread("test", torch.device("cpu"), None, step=step, finish=lambda *_: None, rests=rests)
    thread.start()
    for _ in range(2):
        assert entered.wait(30)
        entered.clear()
        thread.post(lambda: seen.append("command"))
        going_on.set()
    assert entered.wait(30)
    assert seen == 2 * ["first", True, "command", "step"] + ["first"]
    going_on.set()
    thread.close()


async def test_one_call_a_sink():
    """Outputs of a flush come together, in order; nothing is delivered twice."""
    loop, seen, other, done = asyncio.get_running_loop(), [], [], asyncio.Event()
    outbox = Outbox()
    for token in (1, 2):
        outbox.put(loop, seen.append, TokenOutput("a", token))
    outbox.put(loop, other.append, TokenOutput("b", 3))
    assert outbox.flush() == set()
    assert outbox.flush() == set()
    assert seen == []
    loop.call_soon(loop.call_soon, done.set)
    await done.wait()
    assert [[output.token for output in call] for call in seen] == [[1, 2]]
    assert [[output.token for output in call] for call in other] == [[3]]


async def test_a_sink_that_raises():
    """Its neighbours get their outputs; the loop hears of the error."""
    loop, seen, problems, done = asyncio.get_running_loop(), [], [], asyncio.Event()
    loop.set_exception_handler(lambda _, context: problems.append(context["exception"]))

    def broken(outputs):
        raise ZeroDivisionError

    outbox = Outbox()
    outbox.put(loop, broken, TokenOutput("a", 1))
    outbox.put(loop, seen.append, TokenOutput("b", 2))
    outbox.flush()
    loop.call_soon(loop.call_soon, done.set)
    await done.wait()
    assert [type(problem) for problem in problems] == [ZeroDivisionError]
    assert len(seen) == 1


def test_closed_loop():
    """A loop that is gone is reported."""
    loop = asyncio.new_event_loop()
    loop.close()
    outbox = Outbox()
    outbox.put(loop, print, TokenOutput("a", 1))
    assert outbox.flush() == {loop}
