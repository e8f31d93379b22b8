"""Numbers: right, or declined."""

from __future__ import annotations

import re
from itertools import pairwise
from random import Random

from lmtool.tiny import arithmetic
from lmtool.tiny.arithmetic import Sum, ask, big_sum, counting, every_sum, neighbour, numbers, small_sum


def test_sums_are_right() -> None:
    """Every exercise within the range has its right result."""
    for exercise in every_sum():
        left, result = exercise.answer.split(" = ")
        a, sign, b = left.split()
        assert int(result) == (int(a) + int(b) if sign == "+" else int(a) - int(b))


def test_range_is_zero_to_ten() -> None:
    """Sums of 0 to 10, and their differences that are not below zero."""
    assert len(every_sum()) == 121 + 66


def test_beyond_the_range_is_declined() -> None:
    """Larger operands, negative results and products have words for an answer."""
    assert Sum(11, "+", 1).answer == arithmetic.TOO_BIG
    assert Sum(3, "-", 4).answer == arithmetic.BELOW_ZERO
    assert Sum(3, "*", 4).answer == arithmetic.NO_PRODUCT
    refusals = {arithmetic.TOO_BIG, arithmetic.NO_PRODUCT, arithmetic.NO_MATHS}
    assert {big_sum(Random(seed)).reply for seed in range(300)} == refusals


def test_exercise_is_asked_with_its_numbers() -> None:
    """However it is asked, both operands are in the question."""
    for seed in range(200):
        turn = small_sum(Random(seed))
        digits = re.findall(r"\d+", turn.prompt)
        assert not digits or turn.reply == arithmetic.BELOW_ZERO or sorted(digits) == sorted(turn.reply.split()[0:3:2])


def test_counting_runs_from_first_to_last() -> None:
    """Counting goes by ones, up or down, or is declined."""
    for seed in range(200):
        reply = counting(Random(seed)).reply
        if reply != arithmetic.TOO_FAR:
            counted = [int(number) for number in reply.split(", ")]
            assert {b - a for a, b in pairwise(counted)} <= ({1}, {-1})[counted[0] > counted[-1]]


def test_the_next_number_is_one_more() -> None:
    """What comes after a number is that number and one."""
    for seed in range(50):
        turn = neighbour(Random(seed))
        (asked,) = re.findall(r"\d+", turn.prompt)
        assert turn.reply == f"{int(asked) + 1} comes after {asked}."


def test_any_request_about_numbers_has_an_answer() -> None:
    """The theme mixes all kinds."""
    assert all(numbers(Random(seed)).reply for seed in range(100))
    assert ask(Random(1), Sum(2, "+", 2))
