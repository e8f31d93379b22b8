"""Two answers that should be the same: where they part, and how far their logprobs are from each other before that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmtool.measure.audit.evidence import is_clear

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.measure.audit.evidence import Choice, Name, Token


@dataclass(frozen=True, slots=True)
class Difference:
    """How two rows of tokens differ."""

    off: float = 0.0
    """Greatest difference of two logprobs of one token in one context, in nats."""
    at: int = 0
    """The position of that."""
    parting: int | None = None
    """The first position with two tokens; None where one row is the other's beginning."""
    tie: bool = False
    """True if these two tokens are about equally likely there, so that rounding may choose."""
    shorter: int = 0
    """By how many tokens one is shorter, where they do not part."""
    compared: int = 0
    """Positions that were compared."""

    def sentence(self, tolerance: float) -> str:
        """What is wrong; empty where nothing is. tolerance: nats."""
        if self.off > tolerance:
            return f"logprobs differ by {self.off:.4f} nats at token {self.at}"
        if self.parting is not None and not self.tie:
            return f"the tokens part at token {self.parting}"
        if self.shorter:
            return f"one is {self.shorter} tokens shorter"
        return ""


def difference(one: Sequence[Token], other: Sequence[Token], tolerance: float) -> Difference:
    """The difference of two rows of tokens. tolerance: nats within which two tokens are equally likely."""
    off, where = 0.0, 0
    for at, (first, second) in enumerate(zip(one, other, strict=False)):
        deviation = _deviation(first, second)
        if deviation > off:
            off, where = deviation, at
        if first.name != second.name and is_clear(first.name) and is_clear(second.name):
            return Difference(off, where, at, _is_tie(first, second.name, tolerance), 0, at + 1)
    shorter = abs(len(one) - len(other))
    return Difference(off, where, None, tie=False, shorter=shorter, compared=min(len(one), len(other)))


def _deviation(first: Token, second: Token) -> float:
    """Of logprobs that both have: those of one token in one context."""
    one, other = first.best, second.best
    found = max((abs(one[name] - other[name]) for name in one.keys() & other.keys()), default=0.0)
    if first.name == second.name and first.logprob is not None and second.logprob is not None:
        found = max(found, abs(first.logprob - second.logprob))
    return found


def _is_tie(token: Token, other: Name, tolerance: float) -> bool:
    best = token.best
    return token.name in best and other in best and abs(best[token.name] - best[other]) <= tolerance


def frame_difference(one: Choice, other: Choice) -> str:
    """What of two answers of the same tokens differs beside these; empty where nothing does."""
    if one.text != other.text and None not in (one.text, other.text):
        return f"the texts differ: {(one.text or '')[-40:]!r} and {(other.text or '')[-40:]!r}"
    if one.finish_reason != other.finish_reason:
        return f"finish_reason is {one.finish_reason!r} and {other.finish_reason!r}"
    if one.ids is not None and other.ids is not None and one.ids != other.ids:
        return "token_ids differ"
    return ""
