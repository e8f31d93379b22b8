"""When requests may go to a member, on a clock of numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.core.outcomes import OK, Outcome
from lmtool.gateway.routing.health import LONGEST_RATE_LIMIT_REST, MAX_BACKOFF, RATE_LIMIT_REST, ErrorBudget, Health

FAULT = Outcome("fault", "timeout")
KEY = Outcome("key_refused")
DOWN = Outcome("unreachable")

outcomes = st.one_of(
    st.sampled_from([OK, FAULT, KEY, DOWN, Outcome("refused"), Outcome("context_too_long")]),
    st.builds(Outcome, st.just("rate_limit"), st.just(""), st.none() | st.floats(-5, 5000)),
)


def call(health: Health, outcome: Outcome, now: float) -> None:
    """One call that ends at once."""
    assert health.available(now)
    health.record(outcome, now, probe=health.begin())


class TestRests:
    """By the outcome table."""

    @pytest.mark.parametrize(
        ("retry_after", "seconds"),
        [(None, RATE_LIMIT_REST), (30.0, 30.0), (1e9, LONGEST_RATE_LIMIT_REST), (-3.0, 0.0)],
    )
    def test_a_rate_limit_rests_until_retry_after(self, retry_after: float | None, seconds: float) -> None:
        """Five seconds where none is named, ten minutes at most."""
        health = Health()
        call(health, Outcome("rate_limit", retry_after=retry_after), 100.0)
        assert health.rest_seconds(100.0) == seconds
        assert health.available(100.0 + seconds)
        assert not health.available(99.9 + seconds)

    @pytest.mark.parametrize(("outcome", "first"), [(KEY, 60.0), (DOWN, 2.0)])
    def test_rests_of_keys_and_of_members_that_are_down_double_and_heal(self, outcome: Outcome, first: float) -> None:
        """With each one in a row, up to a limit; a success starts over."""
        health, now, rests = Health(), 0.0, []
        for _ in range(8):
            call(health, outcome, now)
            rests.append(health.rest_seconds(now) / first)
            now += health.rest_seconds(now)
        assert rests == [1, 2, 4, 8, 16, MAX_BACKOFF, MAX_BACKOFF, MAX_BACKOFF]
        call(health, OK, now)
        call(health, outcome, now)
        assert health.rest_seconds(now) == first

    def test_a_crowd_that_is_refused_together_counts_once(self) -> None:
        """The rest does not double by calls that began before it."""
        health = Health()
        probes = [health.begin() for _ in range(5)]
        for probe in probes:
            health.record(KEY, 0.0, probe=probe)
        assert health.rest_seconds(0.0) == 60.0

    def test_a_request_at_fault_costs_nothing(self) -> None:
        """Nor does it start a rest."""
        health = Health(ErrorBudget(1))
        for kind in ("refused", "context_too_long", "ok"):
            call(health, Outcome(kind), 1.0)
        assert health.available(1.0)
        assert health.tokens(1.0) == 1.0


class TestErrorBudget:
    """A token bucket of faults."""

    def test_a_budget_is_spent_by_faults_and_fills_with_time(self) -> None:
        """`10/m`: ten faults at once, then one every six seconds; success refunds nothing."""
        health = Health(ErrorBudget(10, 60.0))
        for _ in range(9):
            call(health, FAULT, 0.0)
            call(health, OK, 0.0)
        assert health.available(0.0)
        call(health, FAULT, 0.0)
        assert health.rest_seconds(0.0) == 6.0
        call(health, FAULT, 6.0)
        assert health.rest_seconds(6.0) == 6.0
        call(health, OK, 12.0)
        assert health.tokens(12.0) == 1.0
        assert health.tokens(1e6) == 10.0


class TestHalfOpen:
    """The first request after a rest goes alone."""

    def test_the_first_request_after_a_rest_goes_alone(self) -> None:
        """Others wait for its outcome; once it is good, all may go."""
        health = Health()
        call(health, Outcome("rate_limit", retry_after=1.0), 0.0)
        probe = health.begin()
        assert probe
        assert not health.available(2.0)
        health.record(OK, 2.0, probe=probe)
        assert health.available(2.0)
        assert not health.begin()

    def test_a_probe_that_is_given_up_is_followed_by_another(self) -> None:
        """The caller left: how the member is is not known."""
        health = Health()
        call(health, Outcome("rate_limit", retry_after=1.0), 0.0)
        health.release(probe=health.begin())
        assert health.available(2.0)
        assert health.begin()
        assert not health.available(2.0)

    def test_an_answer_to_a_call_before_the_rest_ends_nothing(self) -> None:
        """It says nothing of the member of now."""
        health = Health()
        early = health.begin()
        call(health, Outcome("rate_limit", retry_after=9.0), 0.0)
        health.record(OK, 1.0, probe=early)
        assert not health.available(1.0)
        assert health.outcome is not None

    @given(st.lists(st.tuples(st.floats(0, 400), outcomes), max_size=40))
    def test_every_member_heals(self, calls: list[tuple[float, Outcome]]) -> None:
        """However its calls ended, it rests for a bounded time and then takes a request."""
        health, now = Health(), 0.0
        for pause, outcome in calls:
            now += pause
            if health.available(now):
                call(health, outcome, now)
            assert health.rest_seconds(now) <= 60.0 * MAX_BACKOFF
            assert health.available(health.available_at(now))
