"""Heat: steps, colours that can be told apart, entropy as bounds."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.tui.heat import ATTRIBUTES, COLORS, MODES, STEPS, UPPER, bits, entropy_bounds, legend, normalised, step_of


@pytest.mark.parametrize(
    ("mode", "value", "step"),
    [
        ("prob", 1.0, 0), ("prob", 0.9, 0), ("prob", 0.89, 1), ("prob", 0.5, 2), ("prob", 0.1, 4), ("prob", 0.0, 7),
        ("surprisal", 0.5, 0), ("surprisal", 20.0, 7), ("rank", 1, 0), ("rank", 2, 1), ("rank", 51, 7),
        ("entropy", 0.5, 0), ("entropy", 0.51, 1), ("gap", 5, 0), ("gap", 501, 7),
        ("prob", None, None), ("stream", 1.0, None),
    ],
)  # fmt: skip
def test_steps(mode: str, value: float | None, step: int | None) -> None:
    """A value belongs to the first step whose limit it does not pass."""
    assert step_of(mode, value) == step  # type: ignore[arg-type] # one of the modes


@pytest.mark.parametrize("mode", MODES)
def test_the_legend_names_every_step(mode: str) -> None:
    """A label for each step, in order; none for a mode that colours by stream."""
    labels = legend(mode)  # type: ignore[arg-type] # one of the modes
    assert [step for _, step in labels] == (list(range(STEPS)) if mode in UPPER else [])
    assert len({label for label, _ in labels}) == len(labels)


@pytest.mark.parametrize("palette", COLORS)
def test_every_step_has_a_look(palette: str) -> None:
    """Eight colours, no two the same, each with a text that can be read on it; and eight attributes for no colour."""
    colors = COLORS[palette]  # type: ignore[index] # one of the palettes
    assert len(colors) == len(ATTRIBUTES) == STEPS
    assert len({ground for _, ground in colors}) == STEPS
    assert {text for text, _ in colors} == {231, 16}


def test_bits() -> None:
    """One bit is a half; a logprob above 0, which some servers send, is no surprise."""
    assert bits(math.log(0.5)) == pytest.approx(1)
    assert bits(0.3) == 0


@given(st.lists(st.floats(0.001, 1), min_size=6, max_size=30), st.integers(2, 5))
def test_entropy_lies_between_its_bounds(weights: list[float], k: int) -> None:
    """Whatever the unseen tokens are like, the true entropy is between the bounds."""
    total = math.fsum(weights)
    ps = sorted((w / total for w in weights), reverse=True)
    bounds = entropy_bounds([math.log(p) for p in ps[:k]], len(ps))
    true = -math.fsum(p * math.log2(p) for p in ps)
    assert bounds is not None
    assert bounds[0] - 1e-6 <= true <= bounds[1] + 1e-6


@given(st.lists(st.floats(-40, 3), min_size=2, max_size=8), st.none() | st.integers(1, 100_000))
def test_bounds_are_numbers(logprobs: list[float], vocab_size: int | None) -> None:
    """Whatever a server sends, also what is not normalised, the bounds are finite and in order."""
    bounds = entropy_bounds(logprobs, vocab_size)
    assert bounds is not None
    assert -1e-9 <= bounds[0] <= bounds[1]
    assert math.isfinite(bounds[1])


def test_everything_seen() -> None:
    """Where the alternatives are all there is, the bounds are the entropy."""
    bounds = entropy_bounds([math.log(0.5), math.log(0.5)], 100)
    assert bounds is not None
    assert bounds == pytest.approx((1, 1))
    assert entropy_bounds([math.log(0.5)], 100) is None


def test_an_unknown_vocabulary() -> None:
    """Without the size of the vocabulary the upper bound is that of a very large one."""
    seen = [math.log(0.5), math.log(0.25)]
    unknown, known = entropy_bounds(seen, None), entropy_bounds(seen, 50_000)
    assert unknown is not None
    assert known is not None
    assert unknown[0] == known[0]
    assert unknown[1] > known[1]


def test_what_a_server_did_not_normalise() -> None:
    """Sums above 1 are brought down to 1, and told; sums below 1 are left as they are."""
    seen, scaled = normalised([math.log(2.0), math.log(2.0)])
    assert (seen == pytest.approx([0.5, 0.5]), scaled) == (True, True)
    seen, scaled = normalised([math.log(0.5), math.log(0.25)])
    assert (seen == pytest.approx([0.5, 0.25]), scaled) == (True, False)
    assert normalised([1000.0, -1000.0])[0] == [1.0, 0.0]
