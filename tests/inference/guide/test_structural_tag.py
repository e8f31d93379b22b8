"""Structural tags: what matches them, and where in their text JSON stands."""

from __future__ import annotations

import pytest

from lmtool.core import constraint
from lmtool.core.errors import ConstraintError
from lmtool.inference.guide.structural_tag import JsonPart, as_format, tag_grammar
from tests.inference.guide.following import accepts

NUMBER = {"type": "json_schema", "json_schema": {"type": "integer"}}
WORD = {"type": "const_string", "value": "so "}
TAG = {"type": "tag", "begin": "<n>", "content": NUMBER, "end": "</n>"}
FREE = {"type": "tag", "begin": "<t>", "content": {"type": "any_text"}, "end": "</t>"}


MARKED = {"type": "sequence", "elements": [{"type": "token", "token": 1}, NUMBER]}


def triggered(**more):
    return {"type": "triggered_tags", "triggers": ["<n"], "tags": [TAG], **more}


def separated(**more):
    return {"type": "tags_with_separator", "tags": [TAG, FREE], "separator": ",", **more}


@pytest.mark.parametrize(
    ("node", "good", "bad"),
    [
        (WORD, ["so "], ["so", ""]),
        (NUMBER, ["12"], ["x"]),
        ({"type": "regex", "pattern": "a/[0-9]+"}, ["a/1"], ["a/"]),
        ({"type": "any_text"}, ["", "all\nof it"], []),
        ({"type": "sequence", "elements": [WORD, NUMBER]}, ["so 5"], ["so ", "5"]),
        ({"type": "sequence", "elements": [WORD, {"type": "any_text"}]}, ["so what"], ["what"]),
        ({"type": "or", "elements": [WORD, NUMBER]}, ["so ", "5"], ["so 5"]),
        (TAG, ["<n>5</n>"], ["<n>x</n>", "<n>5"]),
        (FREE, ["<t>a < b</t>", "<t></t>"], ["<t>a", "<t>a</t>b"]),
        (triggered(), ["free", "a<n>1</n>b<n>2</n>", ""], ["a<n>x</n>", "<nx"]),
        (triggered(at_least_one=True), ["a<n>1</n>b"], ["free"]),
        (triggered(at_least_one=True, stop_after_first=True), ["a<n>1</n>"], ["a<n>1</n>b", "free"]),
        (separated(), ["", "<n>1</n>", "<n>1</n>,<t>x</t>,<n>2</n>"], ["<n>1</n>,", "<n>1</n><n>2</n>"]),
        (separated(at_least_one=True, stop_after_first=True), ["<t>x</t>"], ["", "<n>1</n>,<n>2</n>"]),
        ({"type": "sequence", "elements": [{"type": "optional", "content": WORD}, NUMBER]}, ["so 5", "5"], ["so "]),
        ({"type": "regex", "pattern": ".{2,4}", "also": ["a.*"], "excludes": ["b"]}, ["ac", "acdc"], ["ab", "cd", "a"]),
        (
            {"type": "regex", "pattern": "(?s:.){1,3}", "end": "\n;", "excludes": [";"]},
            ["a\n;", "a\n\n;"],
            ["a;\n;", "a"],
        ),
        (
            {"type": "sequence", "elements": [{"type": "any_text"}, {"type": "optional", "content": MARKED}]},
            ["any text", ""],
            [],
        ),
    ],
)
def test_what_matches(backend, node, good, bad):
    """Each kind of part takes what it says and nothing else."""
    template = backend.compile(constraint.structural_tag({"type": "structural_tag", "format": node}))
    assert [text for text in good if not accepts(backend, template, text)] == []
    assert [text for text in bad if accepts(backend, template, text)] == []


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (5, "format needs a type"),
        ({"type": "poem"}, "one of const_string"),
        ({"type": "const_string", "value": 5}, "format.value is 5"),
        ({"type": "sequence", "elements": []}, "format.elements"),
        ({"type": "sequence", "elements": [{"type": "any_text"}, WORD]}, r"elements\[0\] is free text"),
        ({"type": "sequence", "elements": [triggered(), WORD]}, r"elements\[0\] is free text"),
        ({"type": "any_text", "excludes": ["x"]}, "excludes is not supported"),
        ({"type": "regex", "pattern": "a", "also": [5]}, "also is .5.; expected a list of texts"),
        (
            {"type": "sequence", "elements": [{"type": "any_text"}, {"type": "optional", "content": MARKED}, WORD]},
            r"elements\[0\] is free text",
        ),
        ({"type": "json_schema", "json_schema": 5}, "json_schema is 5"),
        ({**TAG, "end": None}, "format.end"),
        ({**triggered(), "triggers": ["<x"]}, "begins with one of triggers"),
    ],
)
def test_what_is_none(backend, node, why):
    """Refused with the part that is wrong."""
    with pytest.raises(ConstraintError, match=why):
        backend.compile(constraint.structural_tag({"format": node}))


OPEN = {"type": "object"}
JSON = {"type": "json_schema", "json_schema": OPEN}
LETTERS = {"type": "regex", "pattern": "[a-z]*"}
JSON_TAG = {"type": "tag", "begin": "<f>", "content": JSON, "end": "</f>"}


def word(text):
    return {"type": "const_string", "value": text}


def sequence(*parts):
    return {"type": "sequence", "elements": list(parts)}


def either(*parts):
    return {"type": "or", "elements": list(parts)}


def separated_by(separator, *tags):
    return {"type": "tags_with_separator", "tags": list(tags), "separator": separator}


def parts(form):
    return tag_grammar({"format": form})[1]


@pytest.mark.parametrize(
    ("form", "markers"),
    [
        (JSON, [("",)]),
        (sequence(word("a"), JSON), [("a",)]),
        (sequence(LETTERS, JSON), [()]),
        (sequence(JSON, JSON), [("",), ()]),
        (sequence({"type": "token", "token": 5}, JSON), [()]),
        (sequence(either(word("a"), word("b")), JSON), [("a", "b")]),
        (sequence(either(word("a"), LETTERS), JSON), [()]),
        (either(JSON, sequence(word("a"), JSON)), [("",), ("a",)]),
        (JSON_TAG, [("<f>",)]),
        (sequence(JSON_TAG, JSON), [("<f>",), ("</f>",)]),
        ({**JSON_TAG, "begin": ""}, [("",)]),
        (sequence({**JSON_TAG, "end": ""}, JSON), [("<f>",), ()]),
        (sequence({**JSON_TAG, "end": "", "content": word("x")}, JSON), [("x",)]),
        ({"type": "triggered_tags", "triggers": ["<"], "tags": [JSON_TAG]}, [("<f>",)]),
        (separated_by(",", JSON_TAG), [("<f>",)]),
        (separated_by(",", {**JSON_TAG, "begin": ""}), [("", ",")]),
        (separated_by("", {**JSON_TAG, "begin": ""}), [()]),
        (separated_by(",", sequence(word("a"), JSON_TAG)), [("<f>",)]),
        (sequence(word("a"), separated_by(",", JSON_TAG), JSON), [("<f>",), ("a", "</f>")]),
        (sequence(word("a"), {**separated_by(",", JSON_TAG), "at_least_one": True}, JSON), [("<f>",), ("</f>",)]),
        (LETTERS, []),
    ],
)
def test_what_stands_before(form, markers):
    """The constant texts right before each place of JSON; nothing where something else may stand there."""
    assert [part.markers for part in parts(form)] == markers


def test_schemas():
    """Each part has its schema; `true` allows anything."""
    form = either(sequence(word("a"), {**JSON, "json_schema": True, "strict": False}), sequence(word("b"), JSON))
    assert parts(form) == [JsonPart(("a",), {}, strict=False), JsonPart(("b",), OPEN, strict=True)]


def test_the_older_form():
    """Structures become tags; `false` allows nothing."""
    tag = {"structures": [{"begin": "<f>", "schema": OPEN, "end": "</f>"}], "triggers": ["<"]}
    form = as_format(tag)
    assert form == {
        "type": "triggered_tags",
        "triggers": ["<"],
        "tags": [{key: JSON_TAG[key] for key in JSON_TAG if key != "type"}],
    }
    never = as_format({**tag, "structures": [{"begin": "<f>", "schema": False}]})
    assert never["tags"][0]["content"]["json_schema"] == {"not": {}}
    assert as_format({"format": JSON}) is JSON


def test_json_without_a_text_before_it(backend):
    """Its names could not be followed: it is refused where they are not listed."""
    listed = {"type": "json_schema", "json_schema": {"type": "integer"}}
    backend.compile(constraint.structural_tag({"format": sequence(LETTERS, listed)}))
    with pytest.raises(ConstraintError, match="no constant text before"):
        backend.compile(constraint.structural_tag({"format": sequence(LETTERS, JSON)}))
