"""What other parameters would have left: exact where the alternatives say so, bounds that hold elsewhere."""

from __future__ import annotations

import math

import pytest

from lmtool.core.logprobs.distribution import Distribution
from lmtool.core.logprobs.what_if import Knobs, draw, what_if


def sent(*ps: float, chosen: int = 0) -> Distribution[int]:
    """Tokens 0, 1, ... of these probabilities, best first."""
    logprobs = [(i, math.log(p)) for i, p in enumerate(ps)]
    return Distribution.of(chosen, logprobs[chosen][1], logprobs, len(ps))


class TestExact:
    """Where the alternatives cover what is left."""

    def test_top_k(self) -> None:
        """The first k share the whole."""
        made = what_if(sent(0.5, 0.25, 0.1), Knobs(top_k=2), 1000)
        assert made is not None
        assert made.is_exact
        assert [one.stays for one in made.chances] == [True, True, False]
        assert [one.low for one in made.chances] == pytest.approx([2 / 3, 1 / 3, 0], abs=1e-4)
        assert made.other is not None
        assert (made.other.stays, made.other.high, made.other.before) == (False, 0.0, pytest.approx(0.15))

    def test_top_p(self) -> None:
        """The smallest set that has the share; the token that reaches it stays."""
        made = what_if(sent(0.5, 0.25, 0.1), Knobs(top_p=0.6), 1000)
        assert made is not None
        assert made.is_exact
        assert [one.stays for one in made.chances] == [True, True, False]

    def test_min_p(self) -> None:
        """Relative to the likeliest."""
        made = what_if(sent(0.5, 0.25, 0.1), Knobs(min_p=0.4), 1000)
        assert made is not None
        assert [one.stays for one in made.chances] == [True, True, False]
        assert made.is_exact

    def test_temperature_over_a_whole_vocabulary(self) -> None:
        """Powers, normalised."""
        made = what_if(sent(0.7, 0.2, 0.1), Knobs(0.5), 3)
        assert made is not None
        assert made.other is None
        squares = [0.49, 0.04, 0.01]
        assert [one.low for one in made.chances] == pytest.approx([p / 0.54 for p in squares], abs=1e-4)

    def test_greedy(self) -> None:
        """The likeliest alone, of equally likely ones the first id."""
        made = what_if(Distribution.of(4, math.log(0.4), [(4, math.log(0.4)), (2, math.log(0.4))], 2), Knobs(0.0), 9)
        assert made is not None
        assert [(one.token, one.stays) for one in made.chances] == [(4, False), (2, True)]
        assert draw(made, 0.9).token == 2


class TestBounds:
    """Where they do not."""

    def test_a_nucleus_beyond_what_was_sent(self) -> None:
        """Then the others are an interval, and so are those that were sent."""
        made = what_if(sent(0.5, 0.2), Knobs(top_p=0.95), 1000)
        assert made is not None
        assert not made.is_exact
        assert made.other is not None
        assert made.other.stays is None
        assert made.chances[0].stays is True
        assert made.chances[0].low < 0.5 / 0.95 < made.chances[0].high + 1e-4

    def test_a_high_temperature(self) -> None:
        """What was not sent grows, by how much depends on how many tokens share it."""
        made = what_if(sent(0.5, 0.2), Knobs(2.0), 1000)
        assert made is not None
        assert made.other is not None
        assert made.other.low < 0.4
        assert made.other.high > 0.9

    def test_the_chosen_one_beyond(self) -> None:
        """A chosen token that was not among the sent ones may be cut by top-p, and is by a small top-k."""
        distribution = Distribution.of(
            9, math.log(0.01), [(0, math.log(0.5)), (1, math.log(0.3)), (9, math.log(0.01))], 2
        )
        for knobs, stays in (
            (Knobs(top_k=2), False),
            (Knobs(top_p=0.9), None),
            (Knobs(top_p=0.7), False),
            (Knobs(), True),
        ):
            made = what_if(distribution, knobs, 1000)
            assert made is not None
            assert made.chances[-1].token == 9
            assert made.chances[-1].stays is stays

    def test_equally_likely_tokens_at_the_cut(self) -> None:
        """Which of them top-k keeps is not known."""
        made = what_if(sent(0.4, 0.2, 0.2, 0.1), Knobs(top_k=2), 1000)
        assert made is not None
        assert [one.stays for one in made.chances] == [True, None, None, False]

    def test_nothing_is_known(self) -> None:
        """Without alternatives, or with numbers that are no distribution."""
        assert what_if(Distribution.of(1, None, []), Knobs(), 100) is None
        assert what_if(Distribution.of(1, -0.1, [(1, -0.1), (2, -0.2)], 2), Knobs(), 100) is None


class TestDraws:
    """Where a seed would have gone."""

    def test_in_order_of_ids(self) -> None:
        """The sampler's sum runs over ids, not from the likeliest down."""
        distribution = Distribution.of(7, math.log(0.6), [(7, math.log(0.6)), (3, math.log(0.4))], 2)
        made = what_if(distribution, Knobs(top_k=2), 100)
        assert made is not None
        assert [draw(made, number).token for number in (0.0, 0.39, 0.41, 0.999)] == [3, 3, 7, 7]
        assert draw(made, 0.4).token is None
        assert set(draw(made, 0.4).possible) == {3, 7}

    def test_what_was_not_sent_may_be_drawn(self) -> None:
        """Unless the number falls where nothing else can be, however the others lie."""
        made = what_if(sent(0.45, 0.45), Knobs(), 100)
        assert made is not None
        assert draw(made, 0.3).token == 0
        assert draw(made, 0.7).token == 1
        middle = draw(made, 0.45)
        assert middle.token is None
        assert middle.other
        assert set(middle.possible) == {0, 1}
