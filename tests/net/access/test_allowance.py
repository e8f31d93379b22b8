"""What a key or an address may use: counts at once, and budgets of a minute."""

from __future__ import annotations

import pytest

from lmtool.core.errors import RateLimitError
from lmtool.net.access.allowance import Allowance, Budget
from lmtool.net.access.keys import Limits


def test_budget() -> None:
    """A minute's worth at once, then evenly; overdrawn units are paid off first; a clock that goes back gives none."""
    budget = Budget()
    for _ in range(3):
        assert budget.wait(3, 100.0) == 0
        budget.spend(1, 3, 100.0)
    assert budget.wait(3, 100.0) == pytest.approx(20)
    assert budget.wait(3, 110.0) == pytest.approx(10)
    assert budget.wait(3, 50.0) == pytest.approx(10)
    assert budget.wait(3, 60.0) == 0
    budget.spend(30, 3, 60.0)
    assert budget.wait(3, 60.0) == pytest.approx(60 * 31 / 3 - 20)


def test_without_a_limit() -> None:
    """Nothing is counted, so that a limit that comes later finds no debt."""
    budget = Budget()
    budget.spend(1000, None, 0.0)
    assert (budget.wait(None, 0.0), budget.wait(1, 0.0)) == (0, 0)


def test_counts() -> None:
    """One more than the limit is refused, by its name and the owner's, and may be tried again."""
    limits = Limits(connections=1, streams=2, queue=1)
    allowance = Allowance("the key a", limits)
    allowance.check_connection()
    allowance.connections = 1
    with pytest.raises(RateLimitError, match="connections of the key a: 1 at once") as caught:
        allowance.check_connection()
    assert (caught.value.retry_after, caught.value.retryable, allowance.refused) == (1, True, 1)
    allowance.waiting = 1
    with pytest.raises(RateLimitError, match="queue of the key a"):
        allowance.check_stream()
    allowance.waiting, allowance.streams = 0, 2
    with pytest.raises(RateLimitError, match="streams of the key a"):
        allowance.check_stream()


def test_minutes() -> None:
    """Requests and tokens: the error says when the next one may come, rounded up."""
    allowance = Allowance("the key a", Limits(requests_per_minute=2, tokens_per_minute=60))
    allowance.check_request(0.0)
    allowance.requests.spend(2, 2, 0.0)
    with pytest.raises(RateLimitError, match="requests_per_minute of the key a: 2") as caught:
        allowance.check_request(0.5)
    assert (caught.value.retry_after, caught.value.hints) == (30, ("try again in 30 s",))
    allowance.check_request(30.0)
    allowance.tokens.spend(61, 60, 30.0)
    with pytest.raises(RateLimitError, match="tokens_per_minute") as caught:
        allowance.check_request(30.0)
    assert caught.value.retry_after == 2
