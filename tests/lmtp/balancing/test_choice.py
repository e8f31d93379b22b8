"""Which worker takes a request."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lmtool.lmtp.balancing.choice import BLOCK, MOST_BLOCKS, SLACK, Prefixes, choose, pieces
from lmtool.types import ChatMessage

loads = st.dictionaries(st.integers(0, 20), st.integers(0, 100), min_size=1)
owners = st.dictionaries(st.integers(0, 20), st.integers(1, 9))


class TestChoose:
    """Least loaded first; a known prefix decides while loads are near."""

    @given(loads)
    def test_the_least_loaded_one(self, running: dict[int, int]) -> None:
        """Where nobody knows the prompt."""
        chosen = choose(running, {})
        assert chosen is not None
        assert running[chosen] == min(running.values())

    @given(loads, owners)
    def test_a_worker_that_is_up_and_near(self, running: dict[int, int], known: dict[int, int]) -> None:
        """A prefix never sends a request far above the least loaded one, nor to one that is down."""
        chosen = choose(running, known)
        assert chosen is not None
        least = min(running.values())
        assert running[chosen] <= least + max(SLACK, least // 4)

    def test_a_known_prefix(self) -> None:
        """The one that knows most of it, among those that are near."""
        assert choose({0: 0, 1: 2, 2: 1}, {1: 5, 2: 3}) == 1
        assert choose({0: 0, 1: 3, 2: 1}, {1: 5, 2: 3}) == 2
        assert choose({0: 0, 1: 9, 2: 9}, {1: 5, 2: 3}) == 0
        assert choose({0: 40, 1: 50}, {1: 1}) == 1

    def test_equals_take_turns(self) -> None:
        """The first of the order given."""
        assert choose({2: 1, 0: 1, 1: 1}, {}) == 2

    def test_nobody_is_up(self) -> None:
        """Then there is no choice."""
        assert choose({}, {1: 5}) is None


class TestPrefixes:
    """Who was last sent which beginning."""

    def test_the_longest_common_beginning_counts(self) -> None:
        """In whole pieces; what differs early is unknown."""
        known = Prefixes()
        prompt = tuple(range(5 * BLOCK))
        known.remember(prompt, 3)
        assert known.owners(prompt) == {3: 5}
        assert known.owners((*prompt[: 2 * BLOCK], *range(900, 960))) == {3: 2}
        assert known.owners((7, *prompt)) == {}
        assert known.owners(prompt[: BLOCK - 1]) == {}

    def test_the_last_owner_counts(self) -> None:
        """A shared beginning belongs to whoever was sent it last; the rest stays where it was."""
        known = Prefixes()
        shared = tuple(range(2 * BLOCK))
        first, second = (*shared, *range(100, 100 + BLOCK)), (*shared, *range(200, 200 + BLOCK))
        known.remember(first, 0)
        known.remember(second, 1)
        assert known.owners(first) == {1: 2, 0: 3}

    def test_texts_and_messages(self) -> None:
        """A text in pieces of 64 characters, a conversation in turns."""
        known = Prefixes()
        known.remember("x" * 200, 0)
        assert known.owners("x" * 130 + "y" * 70) == {0: 2}
        turns = (ChatMessage("user", "a"), ChatMessage("assistant", "b"))
        known.remember(turns, 1)
        assert known.owners((*turns, ChatMessage("user", "c"))) == {1: 2}

    def test_a_worker_that_is_lost_knows_nothing(self) -> None:
        """What others know stays."""
        known = Prefixes()
        known.remember((1,) * BLOCK, 0)
        known.remember((2,) * BLOCK, 1)
        known.forget(0)
        assert known.owners((1,) * BLOCK) == {}
        assert known.owners((2,) * BLOCK) == {1: 1}

    def test_memory_is_bounded(self) -> None:
        """The oldest pieces go first; of a very long prompt only the beginning is looked at."""
        known = Prefixes(limit=3)
        for token in range(5):
            known.remember((token,) * BLOCK, token)
        assert [bool(known.owners((token,) * BLOCK)) for token in range(5)] == [False, False, True, True, True]
        assert len(list(pieces((1,) * (BLOCK * (MOST_BLOCKS + 9))))) == MOST_BLOCKS
