"""How surprising a token was, for a terminal that scrolls: the steps of `lmtool.tui.heat` as SGR parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from lmtool.logprobs.distribution import Distribution, bits, probability
from lmtool.tui import heat
from lmtool.tui.heat import ATTRIBUTES, COLORS, STEPS, step_of

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
    """Value of a token in a mode: a probability, bits, the most that the entropy can be, the least a rank can be."""
    if mode in ("entropy", "rank") and not output.top_logprobs:
        return None
    if mode == "entropy":
        bounds = distribution(output).entropy(vocab_size)
        return None if bounds is None else bounds[1]
    if mode == "rank":
        rank = distribution(output).rank
        return None if rank is None else rank.place
    if output.logprob is None:
        return None
    return probability(output.logprob) if mode == "prob" else bits(output.logprob)


def distribution(output: TokenOutput, k: int | None = None) -> Distribution[int | None]:
    """What is known of the distribution that a token was chosen from. k: how many alternatives the request has."""
    return Distribution.of(output.token, output.logprob, output.top_logprobs or (), k)


def depth_of(environment: Mapping[str, str], *, color: bool, terminal: bool) -> Depth:
    """What can be shown. color: whether colours are welcome; terminal: whether a person watches."""
    term = environment.get("TERM", "")
    if color:
        return "16" if terminal and "256" not in term and not environment.get("COLORTERM") else "256"
    return "attributes" if terminal and term not in {"", "dumb"} else "none"


def legend(mode: HeatMode) -> list[tuple[str, int]]:
    """Label and step of each step that has a look of its own, from expected to surprising."""
    return heat.legend(mode)
