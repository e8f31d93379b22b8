"""The JSON in structural tags."""

from __future__ import annotations

import pytest

from lmtool import constraint
from lmtool.errors import ConstraintError
from lmtool.guide.tag_parts import JsonPart, as_format, json_parts
from tests.guide.test_unique_names import templates  # noqa: F401  # the fixture

OPEN = {"type": "object"}
JSON = {"type": "json_schema", "json_schema": OPEN}
FREE = {"type": "regex", "pattern": "[a-z]*"}
TAG = {"type": "tag", "begin": "<f>", "content": JSON, "end": "</f>"}


def word(text):
    return {"type": "const_string", "value": text}


def sequence(*parts):
    return {"type": "sequence", "elements": list(parts)}


def either(*parts):
    return {"type": "or", "elements": list(parts)}


def separated(*tags, separator=","):
    return {"type": "tags_with_separator", "tags": list(tags), "separator": separator}


@pytest.mark.parametrize(
    ("form", "markers"),
    [
        (JSON, [("",)]),
        (sequence(word("a"), JSON), [("a",)]),
        (sequence(FREE, JSON), [()]),
        (sequence(JSON, JSON), [("",), ()]),
        (sequence({"type": "token", "token": 5}, JSON), [()]),
        (sequence(either(word("a"), word("b")), JSON), [("a", "b")]),
        (sequence(either(word("a"), FREE), JSON), [()]),
        (either(JSON, sequence(word("a"), JSON)), [("",), ("a",)]),
        (TAG, [("<f>",)]),
        (sequence(TAG, JSON), [("<f>",), ("</f>",)]),
        ({**TAG, "begin": ""}, [("",)]),
        (sequence({**TAG, "end": ""}, JSON), [("<f>",), ()]),
        (sequence({**TAG, "end": "", "content": word("x")}, JSON), [("x",)]),
        ({"type": "triggered_tags", "triggers": ["<"], "tags": [TAG]}, [("<f>",)]),
        (separated(TAG), [("<f>",)]),
        (separated({**TAG, "begin": ""}), [("", ",")]),
        (separated({**TAG, "begin": ""}, separator=""), [()]),
        (separated(sequence(word("a"), TAG)), [("<f>",)]),
        (sequence(word("a"), separated(TAG), JSON), [("<f>",), ("a", "</f>")]),
        (sequence(word("a"), {**separated(TAG), "at_least_one": True}, JSON), [("<f>",), ("</f>",)]),
        (sequence(word("a"), word(""), JSON), [("a",)]),
        ({"type": "star", "content": sequence(word("a"), JSON)}, [("a",)]),
        (sequence(word("a"), {"type": "optional", "content": JSON}), [()]),
        (FREE, []),
    ],
)
def test_what_stands_before(form, markers):
    """The constant texts right before each place of JSON; nothing where something else may stand there."""
    assert [part.markers for part in json_parts(form)] == markers


def test_schemas():
    """Each part has its schema; `true` allows anything."""
    form = either(sequence(word("a"), {**JSON, "json_schema": True, "strict": False}), sequence(word("b"), JSON))
    assert json_parts(form) == [JsonPart(("a",), {}, strict=False), JsonPart(("b",), OPEN, strict=True)]


def test_the_older_form():
    """Structures become tags; `false` allows nothing."""
    tag = {"structures": [{"begin": "<f>", "schema": OPEN, "end": "</f>"}], "triggers": ["<"]}
    form = as_format(tag)
    assert form == {
        "type": "triggered_tags",
        "triggers": ["<"],
        "tags": [{key: TAG[key] for key in TAG if key != "type"}],
    }
    never = as_format({**tag, "structures": [{"begin": "<f>", "schema": False}]})
    assert never["tags"][0]["content"]["json_schema"] == {"not": {}}
    assert as_format({"format": JSON}) is JSON


def test_json_without_a_text_before_it(templates):  # noqa: F811  # the fixture
    """Its names could not be followed: it is refused where they are not listed."""
    listed = {"type": "json_schema", "json_schema": {"type": "integer"}}
    templates.make(constraint.structural_tag({"format": sequence(FREE, listed)}))
    with pytest.raises(ConstraintError, match="no constant text before"):
        templates.make(constraint.structural_tag({"format": sequence(FREE, JSON)}))
