"""How surprising a token was, as one of eight steps, and the colours or attributes of each step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from lmtool.core.logprobs.distribution import bits, probability
from lmtool.core.logprobs.numbers import short

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.core.logprobs.distribution import Distribution

HeatMode: TypeAlias = Literal["prob", "surprisal", "entropy", "rank", "gap", "stream"]
MODES: tuple[HeatMode, ...] = get_args(HeatMode)
"""Probability; surprisal in bits; entropy of the alternatives in bits, an upper bound; rank among them; milliseconds
since the stream's token before; which stream."""

Palette: TypeAlias = Literal["blue-orange", "green-red"]
"""`blue-orange` can be told apart with every common colour blindness."""

STEPS = 8
UPPER: Mapping[HeatMode, tuple[float, ...]] = {
    "prob": (-0.9, -0.7, -0.5, -0.3, -0.1, -0.03, -0.01),
    "surprisal": (1, 2, 4, 6, 8, 10, 13),
    "entropy": (0.5, 1, 2, 3, 4, 5, 7),
    "rank": (1, 2, 3, 5, 10, 20, 50),
    "gap": (5, 10, 20, 40, 80, 160, 500),
}
"""Largest value of each step but the last; probabilities are negated, so that more is always more surprising."""

COLORS: Mapping[Palette, tuple[tuple[int, int], ...]] = {
    # Lightness rises with every step: the order can be told without seeing hues. Each step names its own text colour,
    # so that it is readable on light and dark terminals alike.
    "blue-orange": ((231, 17), (231, 24), (16, 31), (16, 67), (16, 109), (16, 180), (16, 215), (16, 222)),
    "green-red": ((231, 22), (231, 28), (16, 34), (16, 106), (16, 142), (16, 178), (16, 166), (231, 160)),
}
"""Text and background of each step, as numbers of the 256 colours."""

LIGHT_COLORS: Mapping[Palette, tuple[tuple[int, int], ...]] = {
    # Lightness falls with every step: what is expected is as light as the ground, what is not stands out.
    "blue-orange": ((16, 255), (16, 189), (16, 153), (16, 117), (16, 215), (16, 208), (16, 166), (231, 130)),
    "green-red": ((16, 194), (16, 157), (16, 120), (16, 220), (16, 214), (16, 208), (16, 202), (231, 160)),
}
"""`COLORS` for light grounds."""

THOUGHT_COLORS = ((231, 53), (231, 54), (231, 90), (231, 96), (16, 139), (16, 176), (16, 213), (16, 225))
"""`COLORS` of what a model thinks before its answer, under every palette: purple, as no step of an answer is."""
LIGHT_THOUGHT_COLORS = ((16, 225), (16, 219), (16, 183), (16, 177), (16, 170), (231, 127), (231, 90), (231, 53))
"""`THOUGHT_COLORS` for light grounds."""
THOUGHT_INK = 139
"""Of thoughts whose heat is not known or not shown, one of the 256 colours; on light grounds `LIGHT_THOUGHT_INK`."""
LIGHT_THOUGHT_INK = 96

ATTRIBUTES = ("dim", "dim", "dim", "", "", "bold", "bold", "bold underline")
"""Of each step, where there are no colours."""

STREAM_COLORS = (39, 214, 78, 205, 227, 141, 51, 203, 150, 180, 111, 168)
"""Numbers of the 256 colours for streams, in order of their beginning, again from the start after the last."""


def heat_value(
    mode: HeatMode, logprob: float | None, distribution: Distribution[Any] | None, vocab_size: int | None
) -> float | None:
    """Value of a token in a mode that needs no clock: a probability, bits, the largest entropy, the least rank.

    distribution: what is known of the one it was chosen from; None where it came without alternatives.
    """
    if mode in ("entropy", "rank"):
        if distribution is None:
            return None
        if mode == "rank":
            return None if distribution.rank is None else distribution.rank.place
        bounds = distribution.entropy(vocab_size)
        return None if bounds is None else bounds[1]
    if logprob is None:
        return None
    return probability(logprob) if mode == "prob" else bits(logprob)


def step_of(mode: HeatMode, value: float | None) -> int | None:
    """Which of eight steps a value belongs to, 0 the most expected; None for None and for modes without steps."""
    if value is None or mode not in UPPER:
        return None
    more = -value if mode == "prob" else value
    return sum(more > upper for upper in UPPER[mode])


def legend(mode: HeatMode) -> list[tuple[str, int]]:
    """Label and step of each step, from expected to surprising; empty for modes without steps."""
    upper = UPPER.get(mode, ())
    if not upper:
        return []
    if mode == "prob":
        labels = [f"≥{short(-u)}" for u in upper] + [f"<{short(-upper[-1])}"]
    else:
        labels = [f"≤{short(u)}" for u in upper] + [f">{short(upper[-1])}"]
    return [(label, i) for i, label in enumerate(labels)]
