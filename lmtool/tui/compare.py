"""Two streams beside each other: how long they agree, where they part, and how near that was to a tie."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmtool.tui import heat

if TYPE_CHECKING:
    from array import array

    from lmtool.tui.streams import Stream
    from lmtool.tui.view import View

TIE = 0.02
"""Nats: two tokens nearer than this are a tie, which another order of additions can turn (FORMAT.md, `tie_eps`)."""
WINDOW = 512
"""Equal tokens before the parting whose alternatives are compared."""


@dataclass(frozen=True, slots=True)
class Side:
    """One stream, looked at through its view."""

    view: View
    stream: Stream

    @property
    def rows(self) -> array[int]:
        """Its tokens that are seen."""
        return self.stream.rows[: self.stream.count(self.view.seen)]

    def text(self, row: int) -> str:
        """What a token means on its own."""
        return self.view.state.token_text(row)

    def top(self, row: int) -> dict[str, float]:
        """Alternatives of a token by text; two models need not share ids."""
        view = self.view
        return {view.alternative_text(one): value for one, value in view.alternatives(row)}


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two streams have in common."""

    same: int
    """Tokens that are equal, from the first one on."""
    parted: bool
    """Whether both go on differently; otherwise one merely ends, or both do."""
    near_tie: bool
    """Whether, where they part, the two candidates are within `TIE` of each other on at least one side."""
    margins: tuple[float | None, float | None]
    """For each side: by how many nats its own token is ahead of the other's; None where that is not known."""
    worst: float | None
    """Largest difference of the logprobs of equal tokens, in nats."""
    worst_at: int | None
    divergences: tuple[float | None, ...]
    """Of the last `WINDOW` equal tokens and the one where they part: KL divergence in nats over what both have."""


def compare(a: Side, b: Side) -> Comparison:
    """Compare two streams token by token, by text."""
    rows_a, rows_b = a.rows, b.rows
    same = _same(a, b, rows_a, rows_b)
    parted = same < min(len(rows_a), len(rows_b))
    worst, worst_at = _worst(a, b, list(zip(rows_a[:same], rows_b[:same], strict=True)))
    looked_at = range(max(0, same - WINDOW), same + parted)
    divergences = tuple(divergence(a.top(rows_a[i]), b.top(rows_b[i])) for i in looked_at)
    margins: tuple[float | None, float | None] = (None, None)
    if parted:
        own_a, own_b = a.text(rows_a[same]), b.text(rows_b[same])
        margins = _margin(a.top(rows_a[same]), own_a, own_b), _margin(b.top(rows_b[same]), own_b, own_a)
    near_tie = any(margin is not None and abs(margin) <= TIE for margin in margins)
    return Comparison(same, parted, near_tie, margins, worst, worst_at, divergences)


def _same(a: Side, b: Side, rows_a: array[int], rows_b: array[int]) -> int:
    """How many tokens are equal from the first one on."""
    pairs = zip(rows_a, rows_b, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if a.text(x) != b.text(y)), min(len(rows_a), len(rows_b)))


def _worst(a: Side, b: Side, pairs: list[tuple[int, int]]) -> tuple[float | None, int | None]:
    """Largest difference of the logprobs of equal tokens, and at which of them it is first."""
    ours, theirs = a.view.state.tokens.logprobs, b.view.state.tokens.logprobs
    gaps = [abs(ours[x] - theirs[y]) for x, y in pairs]
    known = [gap for gap in gaps if not math.isnan(gap)]
    return (max(known), gaps.index(max(known))) if known else (None, None)


def _margin(top: dict[str, float], own: str, other: str) -> float | None:
    return top[own] - top[other] if own in top and other in top else None


def divergence(a: dict[str, float], b: dict[str, float]) -> float | None:
    """KL(a || b) in nats over what both have, what is left of each side as one more class; None for nothing shared."""
    shared = sorted(a.keys() & b.keys())
    if not shared:
        return None
    p, _ = heat.normalised([a[one] for one in shared])
    q, _ = heat.normalised([b[one] for one in shared])
    p.append(max(1e-9, 1 - math.fsum(p)))
    q.append(max(1e-9, 1 - math.fsum(q)))
    return max(0.0, math.fsum(x * math.log(x / y) for x, y in zip(p, q, strict=True) if x > 0 and y > 0))
