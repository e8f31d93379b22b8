"""What a step computes of a sequence, and what that brings."""

from __future__ import annotations

import pytest

from lmtool.engine.plan import Plan, Span
from lmtool.engine.sequence import Sequence


def generating(tokens: int, prompt: int, most: int = 9, **more: object) -> Sequence:
    """A stream with so many ids, the first of them its prompt."""
    return Sequence(1, [1] * tokens, prompt, most, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("span", "logits"),
    [
        (Span(generating(5, 5), 0, 3), []),
        (Span(generating(5, 5), 0, 5), [4]),
        (Span(generating(7, 5), 6, 1), [6]),
        (Span(generating(7, 5, draft=[1, 1]), 6, 3), [6, 7, 8]),
        (Span(generating(7, 5, forced=2), 5, 2), [5, 6]),
        (Span(generating(7, 3, 7, scored=True), 0, 4), [2, 3]),
        (Span(generating(7, 3, 7, scored=True), 4, 2), [4, 5]),
    ],
)
def test_positions_whose_logits_are_needed(span: Span, logits: list[int]) -> None:
    """The last known one, what was drafted and forced behind it, and all before a scored id."""
    assert list(span.logits) == logits


@pytest.mark.parametrize(
    ("span", "one", "ends"),
    [
        (Span(generating(5, 5), 0, 5), True, False),
        (Span(generating(5, 5), 0, 4), False, False),
        (Span(generating(8, 5), 7, 1), True, True),
        (Span(generating(7, 5, draft=[1]), 6, 2), False, False),
        (Span(generating(7, 5, forced=2), 5, 2), False, False),
        (Span(generating(7, 3, 7, scored=True), 0, 4), False, False),
        (Span(generating(7, 3, 7, scored=True), 4, 2), False, True),
    ],
)
def test_what_is_certain_before_the_outcome(span: Span, *, one: bool, ends: bool) -> None:
    """Whether one new id comes of it and nothing else is known, and whether it is surely the last."""
    assert (span.brings_one_id, span.ends_sequence) == (one, ends)


def test_tokens() -> None:
    """Of all spans together."""
    assert Plan([Span(generating(5, 5), 0, 3), Span(generating(5, 5), 3, 2)]).tokens == 5
