"""The colours of heat on light and on dark grounds, as rules of a style sheet; on both the unlikely stands out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.core.logprobs.heat import (
    COLORS,
    LIGHT_COLORS,
    LIGHT_THOUGHT_COLORS,
    LIGHT_THOUGHT_INK,
    THOUGHT_COLORS,
    THOUGHT_INK,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_CUBE = (0, 95, 135, 175, 215, 255)
"""Levels of the 256 colours' cube."""
_GREYS = 232
"""The first of the 256 colours that are greys."""


def scale(*, light: bool, is_thought: bool = False) -> Sequence[tuple[str, str]]:
    """Text and ground of each step of the heat, as `#rrggbb`. light: for a light page; is_thought: of thoughts."""
    thoughts = LIGHT_THOUGHT_COLORS if light else THOUGHT_COLORS
    answers = (LIGHT_COLORS if light else COLORS)["blue-orange"]
    return [(rgb(ink), rgb(ground)) for ink, ground in (thoughts if is_thought else answers)]


def thought_ink(*, light: bool) -> str:
    """Text of a thought whose heat is not known."""
    return rgb(LIGHT_THOUGHT_INK if light else THOUGHT_INK)


def rules(pattern: str, *, light: bool) -> str:
    """A rule for each step of answers and thoughts. pattern: what `{name}`, `{ink}` and `{ground}` are put into."""
    return "".join(
        pattern.format(name=f"{'.thought' if thought else ''}.h{step}", ink=ink, ground=ground)
        for thought in (False, True)
        for step, (ink, ground) in enumerate(scale(light=light, is_thought=thought))
    )


def on_both_grounds(pattern: str) -> str:
    """The rules for a light page, and those that replace them on a dark one. pattern: as for `rules`."""
    return f"{rules(pattern, light=True)}@media (prefers-color-scheme: dark) {{\n{rules(pattern, light=False)}}}\n"


def rgb(number: int) -> str:
    """One of the colours 16 to 255 of the 256, as `#rrggbb`."""
    if number >= _GREYS:
        return "#" + f"{8 + 10 * (number - _GREYS):02x}" * 3
    red, green, blue = (_CUBE[(number - 16) // base % 6] for base in (36, 6, 1))
    return f"#{red:02x}{green:02x}{blue:02x}"
