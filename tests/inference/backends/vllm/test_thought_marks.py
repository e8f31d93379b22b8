"""Thoughts under vLLM: their marks go to the engine's process with the constraint, or without one."""

from __future__ import annotations

import json

import msgspec

from lmtool.core import constraint
from lmtool.core.reasoning import ThoughtMarks
from lmtool.core.types import GenerateRequest
from lmtool.inference.backends.vllm.translation import MARKS, constraint_json, needs_processor

THINK = ThoughtMarks("<think>", ("</think>",), (5, 6), ((1,), (2,)), "\n\n", 7, (8,))


def test_they_are_read_as_they_were_written() -> None:
    """Beside a constraint, which stays what it is, and alone."""
    form = constraint.regex("a")
    members = json.loads(constraint_json(GenerateRequest(1, (1,), constraint=form, thought_marks=THINK)) or "")
    assert msgspec.convert(members.pop(MARKS), ThoughtMarks) == THINK
    assert constraint.constraint_from(members) == form
    bounded = GenerateRequest(1, (1,), thought_marks=THINK)
    assert list(json.loads(constraint_json(bounded) or "")) == [MARKS]
    assert needs_processor(bounded)
    assert constraint_json(GenerateRequest(1, (1,))) is None
    assert MARKS not in (constraint_json(GenerateRequest(1, (1,), constraint=form)) or "")
