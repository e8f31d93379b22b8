"""Strategies order members that could take a request."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.gateway.routing.strategies import SLACK, STRATEGIES, Candidate, LatencyPolicy, LeastLatency, least_loaded

loads = st.dictionaries(st.integers(0, 20), st.integers(0, 100), min_size=1)
prefixes = st.dictionaries(st.integers(0, 20), st.integers(1, 9))
subsets = st.lists(st.sets(st.integers(0, 4)), min_size=1, max_size=40)


def firsts(name: str, candidates: list[Candidate], requests: int) -> list[int]:
    """Which member was first in each of these requests, a second apart."""
    strategy = STRATEGIES[name]()
    return [strategy.order(candidates, float(now))[0].member for now in range(requests)]


class TestAll:
    """What any strategy promises."""

    @pytest.mark.parametrize("name", STRATEGIES)
    @given(rounds=subsets, weights=st.lists(st.integers(1, 9), min_size=5, max_size=5))
    def test_each_candidate_comes_once(self, name: str, rounds: list[set[int]], weights: list[int]) -> None:
        """The order is finite, whoever can take a request just then."""
        strategy = STRATEGIES[name]()
        for now, members in enumerate(rounds):
            ordered = strategy.order([Candidate(one, weight=weights[one], cost=one) for one in members], float(now))
            assert sorted(candidate.member for candidate in ordered) == sorted(members)
            strategy.record_latency(now % 5, 0.1 * now, float(now))

    def test_priority_is_the_order_of_the_list(self) -> None:
        """Always."""
        assert firsts("priority", [Candidate(2), Candidate(1), Candidate(3)], 3) == [1, 1, 1]

    def test_least_cost_is_the_cheapest_and_those_of_one_price_in_turn(self) -> None:
        """A dearer one is only for fallback."""
        members = [Candidate(0, cost=3.0), Candidate(1, cost=1.0), Candidate(2, cost=1.0)]
        assert firsts("least_cost", members, 4) == [1, 2, 1, 2]
        assert [one.member for one in STRATEGIES["least_cost"]().order(members, 0.0)] == [1, 2, 0]


class TestShares:
    """Who gets which part of the requests."""

    @given(st.integers(1, 6), st.integers(1, 5))
    def test_round_robin_is_exact_over_whole_rounds(self, members: int, rounds: int) -> None:
        """Each member once a round."""
        chosen = firsts("round_robin", [Candidate(number) for number in range(members)], members * rounds)
        assert chosen == list(range(members)) * rounds

    def test_a_member_that_cannot_leaves_its_share_to_all(self) -> None:
        """Not to its neighbour alone."""
        chosen = firsts("round_robin", [Candidate(number) for number in (0, 2, 3)], 12)
        assert Counter(chosen) == {0: 4, 2: 4, 3: 4}

    @given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 3))
    def test_weighted_shares_are_exact_over_whole_rounds(self, weights: list[int], rounds: int) -> None:
        """Each member by its weight; nobody is starved."""
        members = [Candidate(number, weight=weight) for number, weight in enumerate(weights)]
        chosen = Counter(firsts("weighted_round_robin", members, sum(weights) * rounds))
        assert chosen == {number: weight * rounds for number, weight in enumerate(weights)}

    def test_weighted_turns_are_spread(self) -> None:
        """The heavy one is not all at once."""
        members = [Candidate(0, weight=5), Candidate(1), Candidate(2)]
        assert firsts("weighted_round_robin", members, 7) == [0, 0, 1, 0, 2, 0, 0]


class TestLeastLatency:
    """Warm-up in turn, then the quickest; old averages are looked at again."""

    def run(self, seconds: list[float], requests: int, step: float = 1.0) -> list[int]:
        """Which member each request went to. seconds: what each member takes for a token; infinite: it fails."""
        strategy, chosen = LeastLatency(), []
        for number in range(requests):
            first = strategy.order([Candidate(one) for one in range(len(seconds))], number * step)[0].member
            if seconds[first] < 1e9:
                strategy.record_latency(first, seconds[first], number * step)
            chosen.append(first)
        return chosen

    def test_each_is_warmed_up_in_turn_and_then_the_quickest_goes_first(self) -> None:
        """Three requests each."""
        assert self.run([0.3, 0.1, 0.2], 15) == [0, 1, 2] * 3 + [1] * 6

    def test_a_member_that_never_answers_does_not_stay_in_warm_up(self) -> None:
        """It counts as slowest."""
        assert self.run([float("inf"), 0.1], 10)[6:] == [1] * 4

    @given(st.lists(st.floats(0.01, 10), min_size=2, max_size=5))
    def test_nobody_is_starved(self, seconds: list[float]) -> None:
        """Each gets a request within its interval, so that one that has become quick is noticed."""
        chosen = self.run(seconds, 120)
        for start in range(len(seconds) * 3, 120 - 40):
            assert set(chosen[start : start + 40]) == set(range(len(seconds)))

    def test_averages_move_with_what_is_measured(self) -> None:
        """By their decay; a member that has become slow is left."""
        strategy = LeastLatency(dict.fromkeys((0, 1), LatencyPolicy(decay=0.5, warmup_samples=1)))
        both = [Candidate(0), Candidate(1)]
        for member, value in ((0, 0.1), (1, 0.2)):
            assert strategy.order(both, 0.0)[0].member == member
            strategy.record_latency(member, value, 0.0)
        assert strategy.order(both, 1.0)[0].member == 0
        strategy.record_latency(0, 0.5, 1.0)  # 0.3 on average
        assert strategy.order(both, 2.0)[0].member == 1


def order(running: dict[int, int], known: dict[int, int]) -> list[int]:
    candidates = [Candidate(member, load, known.get(member, 0)) for member, load in running.items()]
    return [candidate.member for candidate in least_loaded(candidates)]


class TestLeastLoaded:
    """Least loaded first; a known prefix decides while loads are near."""

    @given(loads)
    def test_without_a_prefix_members_come_by_load(self, running: dict[int, int]) -> None:
        """Each once, as any strategy promises."""
        assert [running[member] for member in order(running, {})] == sorted(running.values())

    @given(loads, prefixes)
    def test_a_prefix_never_outweighs_a_load_that_is_not_near(
        self, running: dict[int, int], known: dict[int, int]
    ) -> None:
        """Nor does it bring in a member that is no candidate."""
        first, *others = order(running, known)
        assert {first, *others} == running.keys()
        least = min(running.values())
        assert running[first] <= least + max(SLACK, least // 4)

    def test_the_longest_known_prefix_goes_first(self) -> None:
        """Among members that are near the least loaded one."""
        assert order({0: 0, 1: 2, 2: 1}, {1: 5, 2: 3}) == [1, 2, 0]
        assert order({0: 0, 1: 3, 2: 1}, {1: 5, 2: 3}) == [2, 0, 1]
        assert order({0: 0, 1: 9, 2: 9}, {1: 5, 2: 3})[0] == 0
        assert order({0: 40, 1: 50}, {1: 1})[0] == 1

    def test_equals_keep_their_order(self) -> None:
        """So that the strategy lets equals take turns."""
        assert order({2: 1, 0: 1, 1: 1}, {}) == [2, 0, 1]
        assert firsts("least_loaded", [Candidate(0), Candidate(1), Candidate(2)], 6) == [0, 1, 2, 0, 1, 2]

    def test_no_candidates(self) -> None:
        """Then there is no order."""
        assert least_loaded([]) == []
