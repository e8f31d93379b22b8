"""What says how a stream thinks: plain values, which requests and caches compare."""

from __future__ import annotations

from dataclasses import replace

from lmtool.core.reasoning import Reasoning, ThoughtMarks
from lmtool.core.types import GenerateRequest


def test_nothing_is_bounded_unless_it_is_said() -> None:
    """A request asks for no thought; one that asks has no budget."""
    assert GenerateRequest(1, ()).reasoning is None
    assert Reasoning() == Reasoning(None, "")


def test_marks_are_keys() -> None:
    """A compiler knows kinds of thoughts by them, whatever their budgets."""
    marks = ThoughtMarks("<think>", ("</think>",), (5, 6), budget=9)
    assert {marks: 1}[replace(marks, budget=9)] == 1
    assert hash(marks) == hash(replace(marks))
    assert marks != replace(marks, budget=8)
