"""Two streams compared: where they part, whether it was a tie, how far their numbers are apart."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from lmtool.trace.events import Vocab
from lmtool.tui.compare import WINDOW, Comparison, Side, compare, divergence
from lmtool.tui.lines import Spool
from lmtool.tui.view import View
from tests.trace.conftest import generate, token, tokens

if TYPE_CHECKING:
    from lmtool.trace.events import Event

WORDS = Vocab(0.0, 0, {1: "a", 2: "b", 3: "c", 4: "d"})
Token = tuple[int, float, dict[str, float]]


def side(*brought: Token, words: Vocab = WORDS) -> Side:
    """A stream of its own trace."""
    spool = Spool()
    events: list[Event] = [words, generate(0.0)]
    spool.feed([*events, *[tokens(0.1, token(i, logprob=p, top_logprobs=top)) for i, p, top in brought]])
    return Side(View(spool.state, spool), spool.state.streams[0])


def test_where_they_part() -> None:
    """Equal tokens are counted up to the first that differs; a small margin there is a near tie."""
    same: list[Token] = [(1, -0.5, {}), (2, -0.6, {})]
    a = side(*same, (3, -1.0, {"3": -1.0, "4": -1.005}))
    b = side((1, -0.5, {}), (2, -0.65, {}), (4, -1.0, {"4": -1.0, "3": -1.2}))
    made = compare(a, b)
    assert (made.same, made.parted, made.near_tie) == (2, True, True)
    assert list(made.margins) == [pytest.approx(0.005), pytest.approx(0.2)]
    assert made.worst == pytest.approx(0.05, abs=1e-6)
    assert made.worst_at == 1


def test_clearly_apart() -> None:
    """Where neither side had the other's token near, it is no tie; a token it had not at all has no margin."""
    made = compare(side((3, -0.1, {"3": -0.1, "4": -3.0})), side((4, -0.1, {"4": -0.1})))
    assert (made.same, made.near_tie) == (0, False)
    assert list(made.margins) == [pytest.approx(2.9), None]
    assert (made.worst, made.worst_at) == (None, None)


@pytest.mark.parametrize(("a", "b"), [(2, 2), (1, 2), (0, 2), (0, 0)])
def test_one_merely_ends(a: int, b: int) -> None:
    """A stream that is the beginning of another has not parted from it."""
    made = compare(side(*[(1, -0.5, {})] * a), side(*[(1, -0.5, {})] * b))
    assert (made.same, made.parted, made.near_tie) == (min(a, b), False, False)


def test_models_with_other_ids() -> None:
    """Tokens are compared by what they mean, so that models with other ids can be compared."""
    other = Vocab(0.0, 0, {7: "a", 8: "b"})
    made = compare(side((1, -0.5, {"1": -0.5, "2": -1.0})), side((7, -0.5, {"7": -0.5, "8": -1.0}), words=other))
    assert made.same == 1
    assert list(made.divergences) == [pytest.approx(0)]


def test_only_what_is_seen() -> None:
    """A paused view compares what had come by then."""
    a = side(*[(1, -0.5, {})] * 3)
    a.view.moment = 0.05
    assert compare(a, side((2, -0.5, {}))) == Comparison(0, False, False, (None, None), None, None, ())


def test_divergence() -> None:
    """None without shared alternatives, 0 for equal ones, more the further they are apart; never below 0."""
    p = {"a": math.log(0.6), "b": math.log(0.3)}
    assert divergence(p, {"x": -1.0}) is None
    assert divergence(p, p) == pytest.approx(0)
    near = divergence(p, {"a": math.log(0.5), "b": math.log(0.4)})
    far = divergence(p, {"a": math.log(0.1), "b": math.log(0.8)})
    assert near is not None
    assert far is not None
    assert 0 < near < far
    assert far == pytest.approx(0.6 * math.log(6) + 0.3 * math.log(0.3 / 0.8) + 0.1 * math.log(1))


def test_long_streams() -> None:
    """Alternatives are compared near the parting only: they must be read from the frames again."""
    many: list[Token] = [(1, -0.5, {"1": -0.5})] * (WINDOW + 20)
    made = compare(side(*many, (2, -1.0, {})), side(*many, (3, -1.0, {})))
    assert (made.same, len(made.divergences)) == (WINDOW + 20, WINDOW + 1)
