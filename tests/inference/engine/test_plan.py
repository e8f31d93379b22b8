"""What a step computes of a sequence, and what it records."""

from __future__ import annotations

import pytest

from lmtool.inference.engine.plan import Plan, Sequence, Span


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
        (Span(generating(7, 5, forced_count=2), 5, 2), [5, 6]),
        (Span(generating(7, 3, 7, scoring=True), 0, 4), [2, 3]),
        (Span(generating(7, 3, 7, scoring=True), 4, 2), [4, 5]),
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
        (Span(generating(7, 5, forced_count=2), 5, 2), False, False),
        (Span(generating(7, 3, 7, scoring=True), 0, 4), False, False),
        (Span(generating(7, 3, 7, scoring=True), 4, 2), False, True),
    ],
)
def test_what_is_certain_before_the_outcome(span: Span, *, one: bool, ends: bool) -> None:
    """Whether one new id comes of it and nothing else is known, and whether it is surely the last."""
    assert (span.yields_one_id, span.ends_sequence) == (one, ends)


def test_tokens() -> None:
    """Of all spans together."""
    assert Plan([Span(generating(5, 5), 0, 3), Span(generating(5, 5), 3, 2)]).tokens == 5


def test_generate():
    """A GENERATE stream computes all it knows; the prompt in chunks, generated ids one at a time."""
    sequence = Sequence(number=1, tokens=[5, 6, 7], prompt_length=3, max_length=10, computed=2)
    sequence.tokens.append(8)
    assert (sequence.target, sequence.remaining, sequence.chunked_length) == (4, 2, 3)


def test_score():
    """A SCORE stream never computes its last id: nothing follows it."""
    sequence = Sequence(number=1, tokens=[5, 6, 7], prompt_length=1, max_length=3, scoring=True)
    assert (sequence.target, sequence.remaining, sequence.chunked_length) == (2, 2, 2)


def test_capacity():
    """The last id's keys and values are never stored."""
    assert Sequence(number=1, tokens=[5], prompt_length=1, max_length=10).capacity == 9
    assert Sequence(number=1, tokens=[], prompt_length=0, max_length=0, scoring=True).capacity == 0


def test_finish_reason():
    """An id that stops, then the length, but nothing where no id came or forced ones still wait for their logits."""
    sequence = Sequence(number=1, tokens=[5, 6, 2], prompt_length=1, max_length=3, stop_ids=frozenset({2}))
    assert (sequence.finish_reason(recorded=True), sequence.finish_reason(recorded=False)) == ("stop", None)
    sequence.tokens[-1] = 7
    assert sequence.finish_reason(recorded=True) == "length"
    sequence.forced_count = 1
    assert sequence.finish_reason(recorded=True) is None
    scored = Sequence(number=1, tokens=[5, 6], prompt_length=1, max_length=2, scoring=True, computed=1)
    assert scored.finish_reason(recorded=False) == "stop"
