"""How surprising a token was, as one of eight steps, and the colours or attributes of each step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

if TYPE_CHECKING:
    from lmtool.types import TokenOutput

HeatMode: TypeAlias = Literal["prob", "surprisal", "entropy", "rank"]
MODES: tuple[HeatMode, ...] = get_args(HeatMode)
"""Probability; surprisal in bits; entropy of the alternatives in bits, an upper bound; rank among them."""

Depth: TypeAlias = Literal["256", "16", "attributes", "none"]
"""What a terminal can show: a palette of 256 or 16 colours, only bold and the like (NO_COLOR), or nothing."""

ALTERNATIVES: Mapping[HeatMode, int] = {"prob": 1, "surprisal": 1, "entropy": 20, "rank": 50}
"""How many `top_logprobs` a mode needs to be worth looking at."""

STEPS = 8
_UPPER: Mapping[HeatMode, tuple[float, ...]] = {
    "prob": (-0.9, -0.7, -0.5, -0.3, -0.1, -0.03, -0.01),
    "surprisal": (1, 2, 4, 6, 8, 10, 13),
    "entropy": (0.5, 1, 2, 3, 4, 5, 7),
    "rank": (1, 2, 3, 5, 10, 20, 50),
}
"""Largest value of each step but the last; probabilities are negated, so that more is always more surprising."""

_ATTRIBUTES = ("2", "2", "2", "", "", "1", "1", "1;4")
_STYLES: Mapping[Depth, tuple[str, ...]] = {
    # Blue to orange, lightness rising with every step: the order can be told without seeing hues. Each step names
    # its own text colour, so that it is readable on light and dark terminals alike.
    "256": (
        "38;5;231;48;5;17",
        "38;5;231;48;5;24",
        "38;5;16;48;5;31",
        "38;5;16;48;5;67",
        "38;5;16;48;5;109",
        "38;5;16;48;5;180",
        "38;5;16;48;5;215",
        "38;5;16;48;5;222",
    ),
    # Sixteen colours have no orange: bright yellow is nearest, and bold marks the steps that share a colour.
    "16": ("34", "94", "36", "96", "37", "33", "93", "1;93"),
    "attributes": _ATTRIBUTES,
    "none": ("",) * STEPS,
}


def style(step: int, depth: Depth) -> str:
    """SGR parameters of a step (0 expected, 7 most surprising); empty for none."""
    return _STYLES[depth][step]


def step(output: TokenOutput, mode: HeatMode, vocab_size: int | None = None) -> int | None:
    """Which of eight steps a token belongs to, 0 the most expected; None where the mode's figures are missing."""
    value = measure(output, mode, vocab_size)
    if value is None:
        return None
    more = -value if mode == "prob" else value
    return sum(more > upper for upper in _UPPER[mode])


def measure(output: TokenOutput, mode: HeatMode, vocab_size: int | None = None) -> float | None:
    """Value of a token in a mode: a probability, bits, or a rank from 1."""
    if mode == "entropy":
        return entropy_bound(output.top_logprobs or (), vocab_size)
    if mode == "rank":
        return rank(output)
    if output.logprob is None:
        return None
    return math.exp(min(output.logprob, 0.0)) if mode == "prob" else bits(output.logprob)


def bits(logprob: float) -> float:
    """Surprisal in bits of a natural-log probability."""
    return max(0.0, -logprob / math.log(2))


def rank(output: TokenOutput) -> int | None:
    """Place of the token among its alternatives, 1 the likeliest; None where it came without alternatives.

    A chosen token that is not among the k best is sent behind them: its place is then a lower bound, k + 1.
    """
    if output.logprob is None or not output.top_logprobs:
        return None
    return 1 + sum(logprob > output.logprob and token != output.token for token, logprob in output.top_logprobs)


def entropy_bound(top: tuple[tuple[int, float], ...], vocab_size: int | None) -> float | None:
    """Largest entropy in bits of a distribution with these most likely tokens.

    The unseen mass R is largest in entropy when spread evenly over the unseen ids. Where the size of the vocabulary is
    not known, only what is seen counts, and R as if it were one id. None for fewer than two alternatives.
    """
    if len(top) < 2:
        return None
    seen = [math.exp(min(logprob, 0.0)) for _, logprob in top]
    rest = max(0.0, 1.0 - math.fsum(seen))
    unseen = max(1, vocab_size - len(seen)) if vocab_size else 1
    total = -math.fsum(p * math.log2(p) for p in seen if p > 0)
    return total - rest * math.log2(rest / unseen) if rest > 0 else total


def depth_of(environment: Mapping[str, str], *, color: bool, terminal: bool) -> Depth:
    """What can be shown. color: whether colours are welcome; terminal: whether a person watches."""
    term = environment.get("TERM", "")
    if color:
        return "16" if terminal and "256" not in term and not environment.get("COLORTERM") else "256"
    return "attributes" if terminal and term not in {"", "dumb"} else "none"


def legend(mode: HeatMode) -> list[tuple[str, int]]:
    """Label and step of each step that has a look of its own, from expected to surprising."""
    upper = _UPPER[mode]
    if mode == "prob":
        labels = [f"≥{_short(-u)}" for u in upper] + [f"<{_short(-upper[-1])}"]
    else:
        labels = [f"≤{_short(u)}" for u in upper] + [f">{_short(upper[-1])}"]
    return [(label, i) for i, label in enumerate(labels)]


def _short(number: float) -> str:
    text = f"{number:g}"
    return text[1:] if text.startswith("0.") else text
