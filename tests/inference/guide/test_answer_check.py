"""Finished answers, validated."""

from __future__ import annotations

import json
import time

import pytest

from lmtool.core import constraint
from lmtool.core.errors import ConstraintTooComplexError, InvalidAnswerError, ServerError
from lmtool.core.interfaces import Verdict
from lmtool.inference.guide.answer_check import JsonAnswerCheck, validate
from tests.inference.guide.test_structural_tag import either, sequence, word

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
SLOW = {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"items": {"$ref": "#/$defs/a"}, "minItems": 1}] * 8}}}
DEEP = "[" * 30 + "]" * 30
TAG = {
    "structures": [
        {"begin": "<n>", "schema": NUMBER, "end": "</n>"},
        {"begin": "<b>", "schema": {"type": "boolean"}, "end": "</b>"},
    ],
    "triggers": ["<"],
}


@pytest.fixture(scope="module")
def check():
    """With little time for each answer."""
    made = JsonAnswerCheck(seconds=2.0)
    yield made
    made.close()


def checked(check, wanted, text, warnings=()):
    return check.begin(wanted, text, warnings).result(60)


def test_strict_answers(check):
    """A valid one passes; one that is not, or has a name twice, brings the error that ends its stream."""
    wanted = constraint.json_schema(NUMBER)
    assert checked(check, wanted, '{"n":1}') == Verdict()
    for text, why in (
        ('{"n":"1"}', "not of type 'integer'"),
        ('{"n":1,"n":2}', "'n' occurs twice"),
        ('{"n"', "not valid JSON"),
    ):
        found = checked(check, wanted, text)
        assert isinstance(found.error, InvalidAnswerError)
        assert why in found.error.message
        assert "report" in found.error.hints[0]


def test_lenient_answers(check):
    """What does not hold is told in warnings, where something was left out; else nothing is looked at."""
    wanted = constraint.json_schema(NUMBER, strict=False)
    assert checked(check, wanted, '{"n":"1"}') == Verdict()
    found = checked(check, wanted, '{"n":"1"}', ("'x' was left out",))
    assert found.error is None
    assert found.warnings == ("the answer is not valid: at $.n: '1' is not of type 'integer'",)
    assert checked(check, wanted, '{"n":1}', ("'x' was left out",)) == Verdict()


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("no call", True),
        ('so <n>{"n":1}</n> and <b>true</b><n>{"n":2}</n> end', True),
        ('so <n>{"n":1}</n> and <b>1</b>', False),
        ('<n>{"n":1,"n":1}</n>', False),
        ('<b>true</b><n>{"n":"<b>"}</n>', False),
        ('<n>{"n":1', False),
    ],
)
def test_structural_tags(check, text, valid):
    """The JSON of each tag is judged by its schema."""
    assert (checked(check, constraint.structural_tag(TAG), text).error is None) == valid


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("5", True),
        ("true", False),
        ("a5", True),
        ("axb", False),
        ('b"a"', True),
        ("btrue", True),
        ("b5", False),
        ("banana", True),
        ('c{"n":1}', True),
        ('c{"n":1,"n":1}', False),
    ],
)
def test_tags_without_a_begin(text, valid):
    """A value may stand anywhere, also behind a special token; of the schemas that may stand there any will do."""
    number, text_, flag = (
        {"type": "json_schema", "json_schema": {"type": kind}} for kind in ("integer", "string", "boolean")
    )
    ways = (sequence(word("a"), number), sequence(word("b"), text_), sequence(word("b"), flag), word("banana"))
    special = sequence({"type": "token", "token": 5}, word("c"), {"type": "json_schema", "json_schema": NUMBER})
    form = either(number, *ways, special)
    assert (validate(constraint.structural_tag({"format": form}), text, 1000).error is None) == valid


def test_a_lenient_part_of_a_tag():
    """It promises nothing."""
    form = {"type": "json_schema", "json_schema": {"type": "array", "uniqueItems": True}, "strict": False}
    assert validate(constraint.structural_tag({"format": form}), "[1,1]", 1000) == Verdict()


def test_what_cannot_be_judged(check):
    """Is told, and ends no stream."""
    [told] = checked(check, constraint.json_schema({"$ref": "https://example.org"}), "1").warnings
    assert "not validated" in told
    [told] = checked(check, constraint.json_schema({}), "[" * 5000 + "]" * 5000).warnings
    assert "nested too deeply" in told


def test_other_constraints_have_no_json(check):
    """Only schemas are judged."""
    kinds = (constraint.regex("a"), constraint.choice(["a"]), constraint.grammar('start: "a"'))
    assert not any(map(check.applies_to, kinds))
    assert check.applies_to(constraint.json_schema({}))
    assert check.applies_to(constraint.structural_tag(TAG))


def test_long_answers():
    """They are judged in another process, in time that grows with their length."""
    check = JsonAnswerCheck()
    schema = {"type": "array", "items": NUMBER}
    good = [{"n": at} for at in range(12_000)]
    text = json.dumps(good)
    assert len(text) > 100_000
    assert checked(check, constraint.json_schema(schema), text) == Verdict()
    bad = checked(check, constraint.json_schema(schema), json.dumps([*good, {"n": None}]))
    assert isinstance(bad.error, InvalidAnswerError)
    assert "[12000].n" in bad.error.message
    check.close()


def test_hostile_schemas_are_bounded(check):
    """What takes too long ends after the time it may take, while other answers are judged at once."""
    began = time.monotonic()
    slow = [check.begin(constraint.json_schema(SLOW), DEEP, ()) for _ in range(2)]
    lenient = check.begin(constraint.json_schema(SLOW, strict=False), DEEP, ("something was left out",))
    assert checked(check, constraint.json_schema(NUMBER), '{"n":1}') == Verdict()
    assert not any(one.done() for one in slow)
    assert all(isinstance(one.result(60).error, ConstraintTooComplexError) for one in slow)
    found = lenient.result(60)
    assert found.error is None
    assert "more than 2 s" in found.warnings[0]
    assert time.monotonic() - began < 50


def test_after_the_end():
    """What is being judged when the server stops, and what comes later, ends with an error."""
    check = JsonAnswerCheck(seconds=60.0)
    slow = check.begin(constraint.json_schema(SLOW), DEEP, ())
    check.close()
    assert isinstance(slow.result(60).error, ServerError)
    assert isinstance(check.begin(constraint.json_schema({}), "1", ()).result(0).error, ServerError)
