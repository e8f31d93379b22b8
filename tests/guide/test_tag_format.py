"""Structural tags in their newer form."""

from __future__ import annotations

import pytest

from lmtool import constraint
from lmtool.errors import ConstraintError
from tests.guide.following import accepts

NUMBER = {"type": "json_schema", "json_schema": {"type": "integer"}}
WORD = {"type": "const_string", "value": "so "}
TAG = {"type": "tag", "begin": "<n>", "content": NUMBER, "end": "</n>"}
FREE = {"type": "tag", "begin": "<t>", "content": {"type": "any_text"}, "end": "</t>"}


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
    ],
)
def test_what_matches(templates, node, good, bad):
    """Each kind of part takes what it says and nothing else."""
    template = templates.make(constraint.structural_tag({"type": "structural_tag", "format": node}))
    assert [text for text in good if not accepts(templates, template, text)] == []
    assert [text for text in bad if accepts(templates, template, text)] == []


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
        ({"type": "json_schema", "json_schema": 5}, "json_schema is 5"),
        ({**TAG, "end": None}, "format.end"),
        ({**triggered(), "triggers": ["<x"]}, "begins with one of triggers"),
    ],
)
def test_what_is_none(templates, node, why):
    """Refused with the part that is wrong."""
    with pytest.raises(ConstraintError, match=why):
        templates.make(constraint.structural_tag({"format": node}))
