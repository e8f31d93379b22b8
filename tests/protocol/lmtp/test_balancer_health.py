"""Which workers of a balancer are given streams: not those that rest."""

from __future__ import annotations

import pytest

from lmtool.core.errors import LmtoolError, OverloadedError, RequestError, ServerError
from lmtool.core.types import TokenOutput
from tests.protocol.lmtp.balanced import Refusing, asked, balanced, outputs
from tests.protocol.lmtp.harness import until


async def test_an_overloaded_worker_rests_and_returns() -> None:
    """As a member of a pool: streams go to the others meanwhile, and the first one after the rest goes alone.

    The stream that it has refused goes to another one at once, and is refused where all rest.
    """
    first, second = Refusing(manual=True), Refusing()
    async with balanced(first, second) as balancer:
        first.error = OverloadedError("its queue is full")
        [worker, other] = balancer._workers
        assert balancer.can_answer
        assert [one.error_code for one in await outputs(balancer, asked((1,)))] == [None] * 3
        assert 0 < worker.rest_seconds <= 1
        for number in range(3):
            assert (await outputs(balancer, asked((number, 2))))[-1].error is None
        assert (len(first.requests), len(second.requests)) == (1, 4)

        second.error = OverloadedError("its queue is full")
        assert [one.error for one in await outputs(balancer, asked((3,)))] == ["its queue is full"]
        [refused] = await outputs(balancer, asked((4,)))
        assert (refused.error_code, "every worker that is up rests" in str(refused.error)) == ("overloaded", True)
        assert (len(first.requests), len(second.requests)) == (1, 5)

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
