"""What a stream still has to compute."""

from __future__ import annotations

from lmtool.engine.sequence import Sequence


def test_generate():
    """A GENERATE stream computes all it knows; the prompt in chunks, generated ids one at a time."""
    sequence = Sequence(number=1, tokens=[5, 6, 7], prompt_length=3, max_length=10, computed=2)
    sequence.tokens.append(8)
    assert (sequence.target, sequence.remaining, sequence.chunked_length) == (4, 2, 3)


def test_score():
    """A SCORE stream never computes its last id: nothing follows it."""
    sequence = Sequence(number=1, tokens=[5, 6, 7], prompt_length=1, max_length=3, scored=True)
    assert (sequence.target, sequence.remaining, sequence.chunked_length) == (2, 2, 2)


def test_capacity():
    """The last id's keys and values are never stored."""
    assert Sequence(number=1, tokens=[5], prompt_length=1, max_length=10).capacity == 9
    assert Sequence(number=1, tokens=[], prompt_length=0, max_length=0, scored=True).capacity == 0


def test_finish_reason():
    """An id that stops, then the length, but nothing where no id came or forced ones still wait for their logits."""
    sequence = Sequence(number=1, tokens=[5, 6, 2], prompt_length=1, max_length=3, stop_ids=frozenset({2}))
    assert (sequence.finish_reason(took=True), sequence.finish_reason(took=False)) == ("stop", None)
    sequence.tokens[-1] = 7
    assert sequence.finish_reason(took=True) == "length"
    sequence.forced = 1
    assert sequence.finish_reason(took=True) is None
    scored = Sequence(number=1, tokens=[5, 6], prompt_length=1, max_length=2, scored=True, computed=1)
    assert scored.finish_reason(took=False) == "stop"
