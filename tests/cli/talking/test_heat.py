"""Heat: steps of surprise and their looks."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.cli.talking.heat import (
    ALTERNATIVES,
    MODES,
    STEPS,
    Depth,
    depth_of,
    distribution,
    legend,
    measure,
    step,
    style,
)
from lmtool.types import TokenOutput


def token(p: float, *alternatives: float, chosen: int = 0) -> TokenOutput:
    """Return a token of probability p whose alternatives have ids from 0 on."""
    top = tuple((i, math.log(a)) for i, a in enumerate(alternatives)) or None
    return TokenOutput(1, token=chosen, logprob=math.log(p), top_logprobs=top)


def luminance(code: int) -> float:
    """Relative luminance (WCAG 2) of a colour of the 256-colour cube."""
    levels = (0, 95, 135, 175, 215, 255)
    cube = code - 16
    rgb = [levels[cube // 36] / 255, levels[cube // 6 % 6] / 255, levels[cube % 6] / 255]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def colours(heat: int) -> tuple[int, int]:
    """Return foreground and background code of a step."""
    words = style(heat, "256").split(";")
    return int(words[2]), int(words[5])


@pytest.mark.parametrize(
    ("p", "expected"),
    [(1, 0), (0.91, 0), (0.8, 1), (0.6, 2), (0.4, 3), (0.2, 4), (0.05, 5), (0.02, 6), (0.001, 7)],
)
def test_probability_steps(p: float, expected: int) -> None:
    """Eight steps from certain to hardly possible."""
    assert step(token(p), "prob") == expected


@pytest.mark.parametrize(("p", "attributes"), [(0.6, "2"), (0.4, ""), (0.11, ""), (0.05, "1"), (0.005, "1;4")])
def test_attributes_without_colour(p: float, attributes: str) -> None:
    """NO_COLOR: p of at least .5 dim, .1 to .5 plain, .01 to .1 bold, below .01 bold and underlined."""
    heat = step(token(p), "prob")
    assert heat is not None
    assert style(heat, "attributes") == attributes


@given(st.floats(1e-12, 1), st.floats(1e-12, 1), st.sampled_from(["prob", "surprisal"]))
def test_less_likely_is_never_cooler(a: float, b: float, mode: str) -> None:
    """Steps follow the order of the probabilities."""
    low, high = sorted((a, b))
    assert step(token(low), mode) >= step(token(high), mode)  # type: ignore[arg-type, operator] # modes are strings here


def test_surprisal_is_in_bits() -> None:
    """A token of probability 1/8 carries three bits."""
    assert measure(token(1 / 8), "surprisal") == pytest.approx(3)


def test_figures_of_the_alternatives() -> None:
    """Rank and entropy are those of `logprobs.distribution`: the least that the one, the most that the other can be."""
    assert measure(token(0.3, 0.5, 0.3, chosen=1), "rank") == 2
    assert measure(token(0.001, 0.5, 0.3, 0.001, chosen=2), "rank") == 3
    assert str(distribution(token(0.001, 0.5, 0.3, 0.001, chosen=2), 2).rank) == ">2"
    assert measure(token(0.25, 0.25, 0.25), "entropy", 4) == pytest.approx(2, abs=1e-4)
    assert measure(token(0.25, 0.25, 0.25), "entropy") > 8  # type: ignore[operator] # a number: nobody knows how many ids there are
    assert [step(token(0.5), mode) for mode in ("rank", "entropy")] == [None, None]


def test_ramp_rises_in_lightness() -> None:
    """Each step is lighter than the one before, from blue to orange, and its text is readable on it."""
    backgrounds = [colours(i)[1] for i in range(STEPS)]
    for before, after in pairwise(backgrounds):
        assert luminance(before) < luminance(after)
    for i in range(STEPS):
        light, dark = sorted((luminance(colours(i)[0]), luminance(colours(i)[1])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5


def test_every_table_has_every_step() -> None:
    """Each depth names a style for each step; colour tables tell all steps apart."""
    for depth in get_args(Depth):
        styles = [style(i, depth) for i in range(STEPS)]
        if depth in {"256", "16"}:
            assert len(set(styles)) == STEPS


@pytest.mark.parametrize(
    ("environment", "color", "terminal", "depth"),
    [
        ({"TERM": "xterm-256color"}, True, True, "256"),
        ({"TERM": "xterm", "COLORTERM": "truecolor"}, True, True, "256"),
        ({"TERM": "linux"}, True, True, "16"),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, False, True, "attributes"),
        ({"TERM": "dumb"}, False, True, "none"),
        ({"TERM": "xterm"}, False, False, "none"),
        ({}, True, False, "256"),
    ],
)
def test_depth(environment: dict[str, str], color: bool, terminal: bool, depth: str) -> None:
    """Colours where they are welcome, attributes on a terminal without, nothing in a pipe."""
    assert depth_of(environment, color=color, terminal=terminal) == depth


def test_legend_names_each_step() -> None:
    """The legend of each mode has a label a step, and each mode says how many alternatives it needs."""
    assert [label for label, _ in legend("prob")] == ["≥.9", "≥.7", "≥.5", "≥.3", "≥.1", "≥.03", "≥.01", "<.01"]
    assert [label for label, _ in legend("rank")][-2:] == ["≤50", ">50"]
    for mode in MODES:
        assert [i for _, i in legend(mode)] == list(range(STEPS))
        assert ALTERNATIVES[mode] >= 1
