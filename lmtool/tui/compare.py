"""Two streams beside each other: how long they agree, where they part, and how near that was to a tie."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmtool.logprobs.distribution import least_divergence
from lmtool.logprobs.mode import MEANINGS
from lmtool.tui.alignment import align

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.tui.alignment import Alignment, Name, Side

TIE = 0.02
"""Nats: two tokens nearer than this are a tie, which another order of additions can turn (FORMAT.md, `tie_eps`)."""
WINDOW = 512
"""Equal tokens before the parting whose alternatives are compared."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two streams have in common."""

    alignment: Alignment
    near_tie: bool
    """Whether, where they part, the two candidates are within `TIE` of each other on at least one side."""
    margins: tuple[float | None, float | None]
    """For each side: by how many nats its own token is ahead of the other's; None where that is not known."""
    candidates: tuple[float | None, float | None]
    """Logprob of what each side goes on with: its own, or where it has none the other side's."""
    worst: float | None
    """Largest difference of the logprobs of equal tokens, in nats."""
    worst_at: tuple[int, int] | None
    """Row of that token on each side."""
    divergences: tuple[float | None, ...]
    """Least KL divergence of B from A in nats: of the last `WINDOW` equal tokens and the one where they part."""
    notes: tuple[str, ...]
    """What must be known to read this."""


def compare(a: Side, b: Side) -> Comparison:
    """Compare two streams token by token."""
    found = align(a, b)
    worst, worst_at = _worst(a, b, found.pairs)
    pairs = found.pairs[-WINDOW:]
    sides: list[Mapping[Name, float]] = [{}, {}]
    if found.parted:
        for i, side in enumerate((a, b)):
            if 0 <= found.places[i] < len(side.rows):
                sides[i] = side.top(side.rows[found.places[i]], by_ids=found.by_ids)
    divergences = [least_divergence(a.top(x, by_ids=found.by_ids), b.top(y, by_ids=found.by_ids)) for x, y in pairs]
    if found.parted:
        divergences.append(least_divergence(*sides))
    ours, theirs = found.names
    margins = _margin(sides[0], ours, theirs), _margin(sides[1], theirs, ours)
    return Comparison(
        found,
        any(margin is not None and abs(margin) <= TIE for margin in margins),
        margins,
        (_first(ours, sides[0], sides[1]), _first(theirs, sides[1], sides[0])),
        worst,
        worst_at,
        tuple(divergences),
        (*found.notes, *_modes(a, b)),
    )


def _worst(a: Side, b: Side, pairs: list[tuple[int, int]]) -> tuple[float | None, tuple[int, int] | None]:
    """Largest difference of the logprobs of equal tokens, and at which of them it is first."""
    ours, theirs = a.view.state.tokens.logprobs, b.view.state.tokens.logprobs
    gaps = [abs(ours[x] - theirs[y]) for x, y in pairs]
    known = [gap for gap in gaps if not math.isnan(gap)]
    return (max(known), pairs[gaps.index(max(known))]) if known else (None, None)


def _modes(a: Side, b: Side) -> tuple[str, ...]:
    """What to say of logprobs that are of different distributions."""
    modes = a.stream.logprobs_mode, b.stream.logprobs_mode
    if modes[0] == modes[1]:
        return ()
    ours, theirs = ("as its server has them" if mode is None else f"{mode}, {MEANINGS[mode]}" for mode in modes)
    return (f"logprobs of two kinds: A {ours}; B {theirs}",)


def _margin(top: Mapping[Name, float], own: Name | None, other: Name | None) -> float | None:
    if own is None or other is None or own not in top or other not in top:
        return None
    return top[own] - top[other]


def _first(name: Name | None, *tops: Mapping[Name, float]) -> float | None:
    """Logprob of a token on the first side that has it."""
    return next((top[name] for top in tops if name is not None and name in top), None)
