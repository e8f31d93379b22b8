"""Two streams compared: where they part, whether it was a tie, how far their numbers are apart."""

from __future__ import annotations

import math

import pytest

from lmtool.tui.compare import WINDOW, compare
from tests.trace.conftest import generate
from tests.tui.sequences import Token, plain, score, side, sides


def test_where_they_part() -> None:
    """The margin of each side's own token there tells a near tie; so does the largest difference before."""
    same: list[Token] = [(1, -0.5, {}), (2, -0.6, {})]
    a = side(*same, (3, -1.0, {"3": -1.0, "4": -1.005}))
    b = side((1, -0.5, {}), (2, -0.65, {}), (4, -1.0, {"4": -1.0, "3": -1.2}))
    made = compare(a, b)
    assert (made.alignment.same, made.alignment.parted, made.near_tie) == (2, True, True)
    assert list(made.margins) == [pytest.approx(0.005), pytest.approx(0.2)]
    assert made.candidates == (-1.0, -1.0)
    assert made.worst == pytest.approx(0.05, abs=1e-12)
    assert made.worst_at == (1, 1)


def test_clearly_apart() -> None:
    """Where neither side had the other's token near, it is no tie; a token it had not at all has no margin."""
    made = compare(side((3, -0.1, {"3": -0.1, "4": -3.0})), side((4, -0.1, {"4": -0.1})))
    assert (made.alignment.same, made.near_tie) == (0, False)
    assert list(made.margins) == [pytest.approx(2.9), None]
    assert (made.worst, made.worst_at) == (None, None)


@pytest.mark.parametrize(("a", "b"), [(2, 2), (1, 2), (0, 2), (0, 0)])
def test_one_merely_ends(a: int, b: int) -> None:
    """A stream that ends where the other goes on has not parted from it."""
    made = compare(side(*plain(*[1] * a)), side(*plain(*[1] * b)))
    assert (made.alignment.same, made.alignment.parted, made.near_tie) == (min(a, b), False, False)


def test_a_branch() -> None:
    """What a branch has instead stands in its prompt: its probability is the one that the parent gave it."""
    parent: list[Token] = [(1, -0.5, {}), (2, -0.6, {"2": -0.6, "4": -1.7})]
    made = compare(*sides((generate(0.0), parent), (generate(0.0, 2, prompt=[5, 6, 7, 1, 4]), plain(3))))
    assert (made.candidates, made.margins) == ((-0.6, -1.7), (pytest.approx(1.1), None))
    assert made.divergences == (None,)


def test_models_with_other_ids() -> None:
    """Between tokenizers, alternatives are compared by what they mean."""
    ours = side((1, -0.5, {"1": -0.5, "2": -1.0}))
    theirs = side((7, -0.5, {"7": -0.5, "8": -1.0}), words={5: "x", 6: "y", 7: "a", 8: "b", 9: "z"}, prompt=[5, 6, 9])
    made = compare(ours, theirs)
    assert made.alignment.same == 1
    assert list(made.divergences) == [pytest.approx(0)]


def test_only_what_is_seen() -> None:
    """A paused view compares what had come by then."""
    a = side(*plain(1, 1, 1))
    a.view.moment = 0.05
    made = compare(a, side(*plain(2)))
    assert (made.alignment.same, made.alignment.parted, made.worst, made.divergences) == (0, False, None, ())


def test_two_kinds_of_logprobs() -> None:
    """What is of the model and what is of a biased distribution is never compared in silence."""
    biased = (generate(0.0, logit_bias={"3": 1.0}), plain(1))
    made = compare(*sides(biased, (score([5, 6, 7], [1], 2), plain(1))))
    assert made.notes == ("logprobs of two kinds: A biased, after logit_bias and constraint; B raw, the model's own",)
    assert compare(*sides(biased, (generate(0.0, 2, logit_bias={"3": 1.0}), plain(1)))).notes == ()


def test_divergences() -> None:
    """One for each equal token and one where they part, of B from A."""
    p, q = {"1": math.log(0.6), "2": math.log(0.3)}, {"1": math.log(0.1), "2": math.log(0.8)}
    made = compare(
        side((1, math.log(0.6), p), (1, math.log(0.6), p)), side((1, math.log(0.6), p), (2, math.log(0.8), q))
    )
    assert made.divergences[0] == pytest.approx(0, abs=1e-6)
    assert made.divergences[1] == pytest.approx(0.6 * math.log(6) + 0.3 * math.log(0.3 / 0.8))


def test_long_streams() -> None:
    """Alternatives are compared near the parting only: they must be read from the frames again."""
    many: list[Token] = [(1, -0.5, {"1": -0.5})] * (WINDOW + 20)
    made = compare(side(*many, (2, -1.0, {})), side(*many, (3, -1.0, {})))
    assert (made.alignment.same, len(made.divergences)) == (WINDOW + 20, WINDOW + 1)
