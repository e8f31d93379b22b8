"""A step's outputs reach each sink once, in order, in its own loop."""

from __future__ import annotations

import asyncio

from lmtool.engine.engine_thread import Outbox
from lmtool.types import TokenOutput


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
