"""Guesses come from what was said before, and stop when they do not pay."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.inference.engine.speculation import Drafter, StepCost

CHEAP, DEAR = 0.05, 0.95
TEXT = [5, 6, 7, 8, 9, 10, 11, 12]


def test_what_followed_the_last_time():
    """Three ids that occurred before are followed by what followed them then, the latest time counting."""
    assert Drafter().propose([*TEXT, 1, 2, 5, 6, 7], CHEAP, 3) == [8, 9, 10]
    assert Drafter().propose([5, 6, 7, 1, 3, 5, 6, 7, 2, 3, 5, 6, 7], CHEAP, 2) == [2, 3]
    assert Drafter().propose([5, 6, 7, 8], CHEAP, 3) == []


def test_a_loop_goes_on():
    """A text that repeats itself is guessed beyond its end, round and round."""
    assert Drafter().propose([1, 2, 3, 1, 2, 3, 1], CHEAP, 3) == [2, 3, 1]
    drafter = Drafter()
    drafter.learn(50, 50, 7)
    assert drafter.propose([1, 2, 1, 2, 1], CHEAP, 8) == [2, 1] * 4


def test_no_more_than_there_is_room_for():
    """`most` is the end of the stream."""
    assert Drafter().propose([1, 1, 1, 1, 1], CHEAP, 0) == []
    assert Drafter().propose([1, 1, 1, 1, 1], CHEAP, -1) == []


def test_the_dearer_a_row_the_surer_the_guess():
    """Of guesses that come true half of the time few are made; almost sure ones go far, dear rows or not."""
    unsure, sure = Drafter(), Drafter()
    for _ in range(20):
        sure.learn(4, 4, 0)
    text = [1] * 10
    assert len(unsure.propose(text, CHEAP, 99)) == 4
    assert len(sure.propose(text, CHEAP, 99)) == 12
    unsure.learn(2, 1, 10)
    assert unsure.propose(text, DEAR, 99) == []
    assert len(sure.propose(text, 0.5, 99)) == 12


def test_wrong_guesses_stop_and_are_tried_again():
    """After failures nothing is guessed for longer and longer; one success, and guessing goes on."""
    drafter, tried = Drafter(), []
    for length in range(10, 2000):
        if draft := drafter.propose([1] * length, 0.5, 99):
            tried.append(length)
            drafter.learn(len(draft), 0, length)
    assert len(tried) < 12
    gaps = [second - first for first, second in pairwise(tried)]
    assert gaps == sorted(gaps)
    for _ in range(4):
        drafter.learn(2, 2, 2000)
    assert drafter.propose([1] * 2001, 0.5, 99)


def test_a_long_prompt_costs_little_memory():
    """Only the last 8192 positions are looked at."""
    drafter = Drafter()
    drafter.propose(list(range(50_000)), CHEAP, 3)
    assert len(drafter._after) <= 8192


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.floats(0.01, 1), st.integers(-2, 20))
def test_any_text(tokens, share, most):
    """A guess says what some earlier occurrence of the last three ids was followed by."""
    drafter = Drafter()
    for length in range(1, len(tokens) + 1):
        text = tokens[:length]
        draft = drafter.propose(text, share, most)
        assert len(draft) <= max(most, 0)
        if draft:
            last = text[-3:]
            assert any(text[at : at + 3] == last and text[at + 3] == draft[0] for at in range(length - 3))


class TestStepCost:
    """A line through what steps cost."""

    @pytest.mark.parametrize(("base", "slope"), [(10.0, 0.1), (1.0, 1.0), (0.0, 1.0), (5.0, 0.0)])
    def test_finds_the_line(self, base, slope):
        """From steps of several sizes it learns what one more row costs."""
        cost = StepCost()
        for step in range(200):
            cost.learn(4 + step % 5, base + slope * (4 + step % 5))
        assert cost.share(8) == pytest.approx(slope * 8 / (base + slope * 8), abs=0.02)

    def test_steps_of_one_size_tell_nothing_new(self):
        """Without any difference in rows it keeps what it knew."""
        cost = StepCost()
        for _ in range(100):
            cost.learn(4, 1.0)
        assert cost.share(4) == pytest.approx(0.25, abs=0.01)

    def test_a_disturbed_step(self):
        """One step that took a thousand times as long changes little."""
        cost = StepCost()
        for step in range(100):
            cost.learn(4 + step % 3, 1.0 + 0.1 * (step % 3))
        before = cost.share(4)
        cost.learn(5, 1000.0)
        assert cost.share(4) == pytest.approx(before, abs=0.2)

    def test_before_anything_is_known(self):
        """A guess, so that the first drafts are tried."""
        assert 0 < StepCost().share(1) < 0.5
