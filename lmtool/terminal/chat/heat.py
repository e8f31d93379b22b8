"""Colours of surprising tokens in a scrolling terminal: the steps of `lmtool.core.logprobs.heat` in SGR."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from lmtool.core.logprobs.distribution import Distribution
from lmtool.core.logprobs.heat import ATTRIBUTES, COLORS, STEPS, THOUGHT_COLORS, THOUGHT_INK

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.core.types import TokenOutput

HeatMode: TypeAlias = Literal["prob", "surprisal", "entropy", "rank"]
MODES: tuple[HeatMode, ...] = get_args(HeatMode)
"""Probability; surprisal in bits; entropy of the alternatives in bits, an upper bound; rank among them."""

Depth: TypeAlias = Literal["256", "16", "attributes", "none"]
"""What a terminal can show: a palette of 256 or 16 colours, only bold and the like (NO_COLOR), or nothing."""

ALTERNATIVES: Mapping[HeatMode, int] = {"prob": 1, "surprisal": 1, "entropy": 20, "rank": 50}
"""How many `top_logprobs` a mode needs to be worth looking at."""

_SGR = {"dim": "2", "": "", "bold": "1", "bold underline": "1;4"}
STYLES: Mapping[Depth, tuple[str, ...]] = {
    "256": tuple(f"38;5;{text};48;5;{ground}" for text, ground in COLORS["blue-orange"]),
    # Sixteen colours have no orange: bright yellow is nearest, and bold marks the steps that share a colour.
    "16": ("34", "94", "36", "96", "37", "33", "93", "1;93"),
    "attributes": tuple(_SGR[name] for name in ATTRIBUTES),
    "none": ("",) * STEPS,
}
"""SGR parameters of each step, from expected to most surprising; empty for none."""
THOUGHT: Mapping[Depth, str] = {"256": f"3;38;5;{THOUGHT_INK}", "16": "3;35", "attributes": "2;3", "none": ""}
"""SGR parameters of what a model thinks before its answer."""
THOUGHT_STYLES: Mapping[Depth, tuple[str, ...]] = {
    "256": tuple(f"3;38;5;{text};48;5;{ground}" for text, ground in THOUGHT_COLORS),
    "16": (*["3;35"] * 4, *["3;95"] * 3, "1;3;95"),
    "attributes": tuple(f"{style};3".removeprefix(";") for style in STYLES["attributes"]),
    "none": ("",) * STEPS,
}
"""`STYLES` of what a model thinks."""


def distribution(output: TokenOutput, k: int | None = None) -> Distribution[int | None]:
    """The part of a token's distribution that its output has. k: alternatives that were requested."""
    return Distribution.of(output.token, output.logprob, output.top_logprobs or (), k)


def depth_of(environment: Mapping[str, str], *, color: bool, terminal: bool) -> Depth:
    """The styles that stdout may have. color: whether colours are welcome; terminal: whether it is one."""
    term = environment.get("TERM", "")
    if color:
        return "16" if terminal and "256" not in term and not environment.get("COLORTERM") else "256"
    return "attributes" if terminal and term not in {"", "dumb"} else "none"
