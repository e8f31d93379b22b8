"""Heat: steps of surprise and their looks."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.core.logprobs.heat import STEPS
from lmtool.core.types import TokenOutput
from lmtool.terminal.chat.heat import ALTERNATIVES, MODES, STYLES, Depth, HeatMode, depth_of, distribution
from lmtool.terminal.chat.render import TokenColorer


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
    words = STYLES["256"][heat].split(";")
    return int(words[2]), int(words[5])


def step(output: TokenOutput, mode: HeatMode, vocab_size: int | None = None) -> int | None:
    """The step whose colours a token is shown in; None for no colours."""
    style = TokenColorer("256", mode, vocab_size).style(output)
    return STYLES["256"].index(style) if style else None


@given(st.floats(1e-12, 1), st.floats(1e-12, 1), st.sampled_from(["prob", "surprisal"]))
def test_less_likely_is_never_cooler(a: float, b: float, mode: HeatMode) -> None:
    """Steps follow the order of the probabilities."""
    low, high = sorted((a, b))
    assert step(token(low), mode) >= step(token(high), mode)  # type: ignore[operator] # these modes have steps for any


def test_figures_of_the_alternatives() -> None:
    """Rank and entropy are those of `logprobs.distribution`: the least that the one, the most that the other can be."""
    assert step(token(0.3, 0.5, 0.3, chosen=1), "rank") == 1
    assert step(token(0.001, 0.5, 0.3, 0.001, chosen=2), "rank") == 2
    assert str(distribution(token(0.001, 0.5, 0.3, 0.001, chosen=2), 2).rank) == ">2"
    assert step(token(0.25, 0.25, 0.25), "entropy", 4) == 3
    assert step(token(0.25, 0.25, 0.25), "entropy") == 7  # nobody knows how many ids there are
    assert [step(token(0.5), mode) for mode in ("rank", "entropy")] == [None, None]


def test_ramp_rises_in_lightness() -> None:
    """Each step is lighter than the one before, from blue to orange, and its text is readable on it."""
    backgrounds = [colours(i)[1] for i in range(STEPS)]
    for before, after in pairwise(backgrounds):
        assert luminance(before) < luminance(after)
    for i in range(STEPS):
        light, dark = sorted((luminance(colours(i)[0]), luminance(colours(i)[1])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5


def test_every_step_can_be_told_apart() -> None:
    """By its colours, wherever there are some; without, by dim, plain, bold, bold and underlined."""
    for depth in get_args(Depth):
        styles = STYLES[depth]
        assert len(styles) == STEPS
        assert len(set(styles)) == {"256": STEPS, "16": STEPS, "attributes": 4, "none": 1}[depth]


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


def test_modes() -> None:
    """Each mode says how many alternatives it needs, and its legend names each step."""
    for mode in MODES:
        assert ALTERNATIVES[mode] >= 1
        assert len(TokenColorer("256", mode).legend()) == 2 * STEPS + 1
