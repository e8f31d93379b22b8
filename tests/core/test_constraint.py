"""One constraint from each spelling."""

from __future__ import annotations

import json

import pytest

from lmtool.core import constraint
from lmtool.core.constraint import constraint_from, written
from lmtool.core.errors import ConstraintError
from lmtool.core.types import Constraint

TAG = {"structures": [], "triggers": []}


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ({"json": {"type": "object"}}, Constraint("json_schema", '{"type":"object"}')),
        ({"json": '{"b": 1,\n"a": 2}', "regex": None}, Constraint("json_schema", '{"b":1,"a":2}')),
        ({"json": True, "strict": False}, Constraint("json_schema", "true", strict=False)),
        ({"json": {}, "disable_any_whitespace": False}, Constraint("json_schema", "{}", any_whitespace=True)),
        ({"json_object": True}, Constraint("json_schema", '{"type":"object"}')),
        ({"json_object": False, "regex": "é"}, Constraint("regex", "é")),
        ({"choice": ["b", "a", "b"]}, Constraint("choice", '["b","a"]')),
        ({"grammar": 'start: "a"'}, Constraint("grammar", 'start: "a"')),
        ({"structural_tag": TAG}, Constraint("structural_tag", '{"structures":[],"triggers":[]}')),
        ({"structural_tag": json.dumps(TAG)}, Constraint("structural_tag", '{"structures":[],"triggers":[]}')),
    ],
)
def test_read(given, made):
    """Each spelling has one canonical form, whatever its blanks; the order of properties stays."""
    assert constraint_from(given) == made
    assert constraint_from(written(made)) == made


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "has no constraint"),
        ([], "expected an object"),
        ({"json": {}, "regex": "a"}, "json and regex"),
        ({"regexp": "a"}, "'regexp'"),
        ({"regex": ""}, "constraint.regex"),
        ({"regex": "a{100001}"}, "100000 times"),
        ({"regex": "a{99999999999}"}, "100000 times"),
        ({"regex": "a" * 20_001}, "20001 characters"),
        ({"regex": "\ud800"}, "surrogate"),
        ({"json": "{"}, "no JSON"),
        ({"json": 5}, "JSON Schema"),
        ({"json": {"const": float("inf")}}, "JSON"),
        ({"json": {"const": "\ud800"}}, "surrogate"),
        ({"json": {"const": "x" * 600_000}}, "bytes"),
        ({"json": "[" * 50_000}, "nested"),
        ({"choice": []}, "at least one"),
        ({"choice": ["a", 1]}, "at least one"),
        ({"choice": [str(n) for n in range(50_001)]}, "50001 entries"),
        ({"grammar": "x" * 200_000}, "200000 bytes"),
        ({"structural_tag": []}, "structures"),
        ({"json_object": 1}, "expected true"),
        ({"json": {}, "strict": "yes"}, "constraint.strict"),
    ],
)
def test_refused(given, sentence):
    """What is no constraint is refused with the member's name, shortly."""
    with pytest.raises(ConstraintError, match=sentence) as caught:
        constraint_from(given)
    assert len(caught.value.message) < 300


def test_nesting():
    """A schema may be nested so deep and no deeper, however it arrives."""
    deep: object = {}
    for _ in range(constraint.MAX_NESTING - 1):
        deep = {"items": deep}
    assert constraint.json_schema(deep)
    with pytest.raises(ConstraintError, match="nested"):
        constraint.json_schema({"items": [deep]})


def test_where():
    """The sentence names the field as the client wrote it."""
    with pytest.raises(ConstraintError, match=r"structured_outputs\.regex is 5"):
        constraint_from({"regex": 5}, where="structured_outputs")
