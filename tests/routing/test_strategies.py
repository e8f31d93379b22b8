"""Strategies order members that could take a request."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lmtool.routing.strategies import SLACK, Candidate, least_loaded

loads = st.dictionaries(st.integers(0, 20), st.integers(0, 100), min_size=1)
prefixes = st.dictionaries(st.integers(0, 20), st.integers(1, 9))


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
        """Callers pass the least recently chosen first, so that equals take turns."""
        assert order({2: 1, 0: 1, 1: 1}, {}) == [2, 0, 1]

    def test_no_candidates(self) -> None:
        """Then there is no order."""
        assert least_loaded([]) == []
