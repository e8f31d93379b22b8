"""How surprising a token was, for a terminal that scrolls: the steps of `lmtool.tui.heat` as SGR parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from lmtool.tui import heat
from lmtool.tui.heat import ATTRIBUTES, COLORS, STEPS, bits, step_of

if TYPE_CHECKING:
    from lmtool.types import TokenOutput

HeatMode: TypeAlias = Literal["prob", "surprisal", "entropy", "rank"]
MODES: tuple[HeatMode, ...] = get_args(HeatMode)
"""Probability; surprisal in bits; entropy of the alternatives in bits, an upper bound; rank among them."""

Depth: TypeAlias = Literal["256", "16", "attributes", "none"]
"""What a terminal can show: a palette of 256 or 16 colours, only bold and the like (NO_COLOR), or nothing."""

ALTERNATIVES: Mapping[HeatMode, int] = {"prob": 1, "surprisal": 1, "entropy": 20, "rank": 50}
"""How many `top_logprobs` a mode needs to be worth looking at."""

_SGR = {"dim": "2", "": "", "bold": "1", "bold underline": "1;4"}
_STYLES: Mapping[Depth, tuple[str, ...]] = {
    "256": tuple(f"38;5;{text};48;5;{ground}" for text, ground in COLORS["blue-orange"]),
    # Sixteen colours have no orange: bright yellow is nearest, and bold marks the steps that share a colour.
    "16": ("34", "94", "36", "96", "37", "33", "93", "1;93"),
    "attributes": tuple(_SGR[name] for name in ATTRIBUTES),
    "none": ("",) * STEPS,
}


def style(step: int, depth: Depth) -> str:
    """SGR parameters of a step (0 expected, 7 most surprising); empty for none."""
    return _STYLES[depth][step]


def step(output: TokenOutput, mode: HeatMode, vocab_size: int | None = None) -> int | None:
    """Which of eight steps a token belongs to, 0 the most expected; None where the mode's figures are missing."""
    return step_of(mode, measure(output, mode, vocab_size))


def measure(output: TokenOutput, mode: HeatMode, vocab_size: int | None = None) -> float | None:
    """Value of a token in a mode: a probability, bits, or a rank from 1."""
    if mode == "entropy":
        return entropy_bound(output.top_logprobs or (), vocab_size)
    if mode == "rank":
        return rank(output)
    if output.logprob is None:
        return None
    return math.exp(min(output.logprob, 0.0)) if mode == "prob" else bits(output.logprob)


def rank(output: TokenOutput) -> int | None:
    """Place of the token among its alternatives, 1 the likeliest; None where it came without alternatives.

    A chosen token that is not among the k best is sent behind them: its place is then a lower bound, k + 1.
    """
    if output.logprob is None or not output.top_logprobs:
        return None
    return 1 + sum(logprob > output.logprob and token != output.token for token, logprob in output.top_logprobs)


def entropy_bound(top: tuple[tuple[int, float], ...], vocab_size: int | None) -> float | None:
    """Largest entropy in bits of a distribution with these most likely tokens; None for fewer than two.

    Where the size of the vocabulary is not known, what is unseen counts as one id: steps of colour stay apart so.
    """
    bounds = heat.entropy_bounds([min(logprob, 0.0) for _, logprob in top], vocab_size or len(top) + 1)
    return None if bounds is None else bounds[1]


def depth_of(environment: Mapping[str, str], *, color: bool, terminal: bool) -> Depth:
    """What can be shown. color: whether colours are welcome; terminal: whether a person watches."""
    term = environment.get("TERM", "")
    if color:
        return "16" if terminal and "256" not in term and not environment.get("COLORTERM") else "256"
    return "attributes" if terminal and term not in {"", "dumb"} else "none"


def legend(mode: HeatMode) -> list[tuple[str, int]]:
    """Label and step of each step that has a look of its own, from expected to surprising."""
    return heat.legend(mode)
