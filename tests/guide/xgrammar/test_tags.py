"""Structural tags for xgrammar."""

from __future__ import annotations

import pytest

from lmtool.errors import ConstraintError
from lmtool.guide.xgrammar.tags import MAX_WORDS, TagWriter


def writer() -> TagWriter:
    return TagWriter(lambda schema, where: f"{where}: {schema}", lambda pattern, where: f"{where}: {pattern}")


def test_structures_and_triggers() -> None:
    """The older form becomes triggered tags, its schemas grammars."""
    tag = {"structures": [{"begin": "<a>", "schema": {"x": 1}, "end": "</a>"}], "triggers": ["<a"]}
    content = {"type": "grammar", "grammar": "structures[0].schema: {'x': 1}"}
    assert writer().written(tag)["format"] == {
        "type": "triggered_tags",
        "triggers": ["<a"],
        "tags": [{"type": "tag", "begin": "<a>", "content": content, "end": "</a>"}],
    }


def test_schemas_and_patterns_become_grammars() -> None:
    """Deep inside as well; all other parts stay as they are."""
    inner = {
        "type": "sequence",
        "elements": [{"type": "regex", "pattern": "a+"}, {"type": "any_text", "excludes": ["b"]}],
    }
    tag = {"begin": "<", "content": {"type": "or", "elements": [inner, {"type": "json_schema", "json_schema": True}]}}
    form = {"type": "triggered_tags", "triggers": ["<"], "tags": [{**tag, "end": ">"}], "at_least_one": True}
    made = writer().written({"type": "structural_tag", "format": form})["format"]
    [one] = made["tags"]  # type: ignore[index]
    assert made["at_least_one"] is True  # type: ignore[index]
    pattern, free = one["content"]["elements"][0]["elements"]
    assert pattern == {"type": "grammar", "grammar": "format.tags[0].content.elements[0].elements[0].pattern: a+"}
    assert free == inner["elements"][1]
    assert one["content"]["elements"][1]["grammar"].endswith("json_schema: True")


@pytest.mark.parametrize(
    ("form", "told"),
    [
        ({"type": "token", "token": 3}, "format.type is 'token'"),
        ("text", "format.type is None"),
        ({"type": "any_text", "max_tokens": 3}, "format.max_tokens"),
        ({"type": "json_schema", "json_schema": {}, "style": "qwen_xml"}, "format.style"),
        ({"type": "json_schema", "json_schema": 3}, "a JSON Schema"),
        ({"type": "regex", "pattern": 3}, "format.pattern is 3"),
        ({"type": "or", "elements": []}, "at least one"),
        ({"type": "tag", "begin": 3, "content": {"type": "any_text"}, "end": ""}, "format.begin is 3"),
        ({"type": "tag", "begin": "", "content": 3, "end": ""}, "format.content.type"),
        ({"type": "sequence", "elements": [{"type": "any_text"}] * (MAX_WORDS + 1)}, "parts"),
    ],
)
def test_refused(form: object, told: str) -> None:
    """What is wrong or not supported is named with its place."""
    with pytest.raises(ConstraintError) as refused:
        writer().written({"format": form})
    assert told in refused.value.message


@pytest.mark.parametrize("tag", [{}, {"structures": [], "triggers": ["a"]}, {"structures": [{}], "triggers": ["a"]}])
def test_neither_form(tag: dict[str, object]) -> None:
    """Without tags there is nothing to hold."""
    with pytest.raises(ConstraintError):
        writer().written(tag)
