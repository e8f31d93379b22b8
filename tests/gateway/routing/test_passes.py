"""One request over the members of a pool, on a fake clock: nothing here waits."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.core.outcomes import OK, Outcome
from lmtool.gateway.routing.health import ErrorBudget, Health
from lmtool.gateway.routing.passes import GiveUp, Passes, RetryPolicy, Wait
from lmtool.gateway.routing.strategies import STRATEGIES, Candidate

FAULT = Outcome("fault", "status 500")
outcomes = st.one_of(
    st.sampled_from([OK, FAULT, Outcome("key_refused"), Outcome("refused"), Outcome("context_too_long")]),
    st.builds(Outcome, st.just("rate_limit"), st.just(""), st.none() | st.floats(0, 100)),
)


@dataclass
class World:
    """Members whose next outcomes are known, and a clock."""

    answers: dict[int, list[Outcome]]
    """Of each member in turn; the last one stays."""
    strategy: str = "priority"
    budget: ErrorBudget = field(default_factory=ErrorBudget)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.health = {member: Health(self.budget) for member in self.answers}
        self.chooser = STRATEGIES[self.strategy]()
        self.calls: list[tuple[int, float]] = []
        self.pauses: list[float] = []

    def order(self, members: list[int], now: float) -> list[int]:
        return [one.member for one in self.chooser.order([Candidate(member) for member in members], now)]

    def request(self, retry: RetryPolicy | None = None, seconds: float = 0.01) -> GiveUp | None:
        """Run one request; None where it was answered. seconds: how long each call takes."""
        passes = Passes(retry or RetryPolicy(), self.now, self.health, self.order)  # type: ignore[arg-type]
        while True:
            step = passes.step(self.now)
            if isinstance(step, GiveUp):
                return step
            if isinstance(step, Wait):
                self.pauses.append(step.seconds)
                self.now += step.seconds
                continue
            health = self.health[step.member]
            assert health.available(self.now), "called while it rests"
            probe = health.begin()
            self.calls.append((step.member, self.now))
            self.now += seconds
            own = self.answers[step.member]
            outcome = own.pop(0) if len(own) > 1 else own[0]
            health.record(outcome, self.now, probe=probe)
            if outcome.kind == "ok":
                return None
            if outcome.about_request:
                passes.exclude(step.member)

    @property
    def called(self) -> list[int]:
        return [member for member, _ in self.calls]


class TestPasses:
    """Each member once a pass, pauses between passes."""

    def test_the_next_member_answers(self) -> None:
        """Without a pause."""
        world = World({0: [FAULT], 1: [OK]})
        assert world.request() is None
        assert (world.called, world.pauses) == ([0, 1], [])

    def test_passes_pause_longer_each_time_and_not_after_the_last(self) -> None:
        """All down: three passes, two pauses."""
        world = World({0: [FAULT], 1: [FAULT]})
        gave_up = world.request(RetryPolicy(2, 3.0, 0.2, 0.5))
        assert isinstance(gave_up, GiveUp)
        assert gave_up.reason == "exhausted"
        assert (world.called, world.pauses) == ([0, 1] * 3, [0.2, 0.5])

    @pytest.mark.parametrize("strategy", STRATEGIES)
    def test_one_request_never_spends_a_members_whole_budget(self, strategy: str) -> None:
        """When all fail each is called once a pass, under every strategy."""
        world = World({member: [FAULT] for member in range(3)}, strategy)
        world.request(RetryPolicy(0))
        assert sorted(world.called) == [0, 1, 2]

    def test_who_finds_the_request_at_fault_is_not_asked_again(self) -> None:
        """When every member says so, there is nothing to wait for."""
        world = World({0: [Outcome("refused")], 1: [Outcome("context_too_long")]})
        gave_up = world.request()
        assert isinstance(gave_up, GiveUp)
        assert gave_up.reason == "refused"
        assert (world.called, world.pauses) == ([0, 1], [])
        assert all(health.available(world.now) for health in world.health.values())

    def test_a_context_too_long_moves_on(self) -> None:
        """Another member may have room."""
        world = World({0: [Outcome("context_too_long")], 1: [OK]})
        assert world.request() is None
        assert world.called == [0, 1]

    def test_a_pool_that_rests_for_long_is_given_up_at_once(self) -> None:
        """It says when to come again."""
        world = World({0: [Outcome("rate_limit", retry_after=30.0)]})
        world.request()
        calls = len(world.calls)
        gave_up = world.request()
        assert isinstance(gave_up, GiveUp)
        assert gave_up.reason == "unavailable"
        assert gave_up.seconds == pytest.approx(30.0)
        assert (len(world.calls), world.pauses) == (calls, [])

    def test_a_short_rest_is_waited_for(self) -> None:
        """Where it ends before the last pass."""
        world = World({0: [Outcome("rate_limit", retry_after=0.3), OK]})
        assert world.request(RetryPolicy(2, 2.0, 0.2, 2.0)) is None
        assert world.pauses == [0.2, 0.4]

    def test_the_deadline_ends_a_request(self) -> None:
        """Also where calls are slow, and before a pause that would go beyond it."""
        world = World({0: [FAULT], 1: [FAULT]})
        gave_up = world.request(RetryPolicy(100, deadline=10.0), seconds=6.0)
        assert isinstance(gave_up, GiveUp)
        assert gave_up.reason == "deadline"
        assert world.called == [0, 1]


@given(
    answers=st.dictionaries(st.integers(0, 4), st.lists(outcomes, min_size=1, max_size=6), min_size=1),
    strategy=st.sampled_from(sorted(STRATEGIES)),
    retry=st.builds(RetryPolicy, st.integers(0, 4), st.floats(1, 3), st.floats(0, 2), st.floats(0, 5)),
    gaps=st.lists(st.floats(0, 30), min_size=1, max_size=12),
)
def test_every_request_is_finite_and_nobody_is_called_while_resting(
    answers: dict[int, list[Outcome]], strategy: str, retry: RetryPolicy, gaps: list[float]
) -> None:
    """At most a call a member and pass, and no more pauses than retries, whatever members answer."""
    world = World(answers, strategy, ErrorBudget(2, 20.0))
    for gap in gaps:
        world.now += gap
        before, pauses, began = len(world.calls), len(world.pauses), world.now
        world.request(retry)  # which checks that each member it calls is available
        assert len(world.calls) - before <= len(answers) * (retry.max_retries + 1)
        assert len(world.pauses) - pauses <= retry.max_retries
        assert world.now - began <= retry.deadline + 1


def test_a_member_that_comes_back_gets_its_share_again() -> None:
    """Nobody is starved: after its rest the first request goes there alone, and then every turn."""
    world = World({0: [Outcome("rate_limit", retry_after=10.0), OK], 1: [OK]}, "round_robin")
    for _ in range(20):
        world.request()
        world.now += 1
    assert world.called[:4] == [0, 1, 1, 1]
    assert {0: world.called[-6:].count(0), 1: world.called[-6:].count(1)} == {0: 3, 1: 3}
