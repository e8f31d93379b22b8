"""Characters that a pattern leaves out do not come as escapes either."""

from __future__ import annotations

import json
import re

import pytest

from lmtool import constraint
from lmtool.guide.exact_patterns import exact_pattern, exact_patterns
from lmtool.guide.json_validation import examine
from lmtool.guide.llguidance import ConstraintBackend
from lmtool.guide.name_patterns import matches
from tests.guide.following import accepts, compact, compiled_schema

TEXTS = ["j", "j\\s", "\\", 'j"s', '"', "j\ns", "a\\\\b", "é", "\x01", "]", "x\\", "1", "A", "[", "&", "-", "~", "a]"]


@pytest.mark.filterwarnings("ignore:Possible:FutureWarning")  # `re` may take these classes otherwise one day
@pytest.mark.parametrize(
    "pattern",
    [
        r"^[^\\]+$", r'^[^"]*$', r'^[^"\\]+$', r"^[^\]\\]+$", r"^[^A-z]+$", r"^[\x00-\x5b\x5d-\xff]+$", r"^[^\n\\]+$",
        r'[^\W"]', r"^[^a]+$", r"^[\s\S]$", r"^\[?[^\\]$", r"^\D\W*$",
        r'^(?:[^"\\\x00]|\x00)+$', r"^(?:[\x00-\x0f]|[\x10-\x1f]|j)+$", r'^(?:\s|[\x00-\x08\x0e-\x1f]|[^\x00-!])+$',
        r'^[^"&&[a-z]+$', r'^[[^"]+$', r"^[^[]+$", r"^[[:alpha:]]$", r"^[a~~&&1]$", r"^[+--]$", r"^[--a]+$",
        r"^[\[-\]]$",
    ],
)  # fmt: skip
def test_quotes_and_backslashes(backend: ConstraintBackend, pattern: str) -> None:
    """Texts and names match as `re` says, for the grammar and for whoever validates answers."""
    found = [text for text in TEXTS if re.search(pattern, text, re.ASCII)]
    texts = {"type": "string", "pattern": pattern}
    names = {"type": "object", "patternProperties": {pattern: {}}, "additionalProperties": False}
    either = {"oneOf": [{"type": "null"}, {"anyOf": [texts, {"const": 5}]}]}
    for schema, made in ((texts, str), (names, lambda text: {text: 1}), (either, str)):
        ready = compiled_schema(backend, schema)
        assert [text for text in TEXTS if accepts(backend, ready, compact(made(text)))] == found
    assert [text for text in TEXTS if matches(pattern, text)] == found
    assert [text for text in TEXTS if not examine(json.dumps(texts), json.dumps(text), 100)] == found


@pytest.mark.parametrize(
    ("pattern", "missing"),
    [
        (r"^\P{P}+$", '"\\]-[&'), (r"^[^\p{P}]+$", '"\\]-[&'), (r"^[\P{P}]+$", '"\\]-[&'), (r"^\PP+$", '"\\]-[&'),
        (r"^[\p{C}a-z]+$", '"\\]-[&~1Aé'), (r"^(?:\p{C}|j)+$", '"\\]-[&~1Aéabsx'),
    ],
)  # fmt: skip
def test_kinds_of_characters(backend: ConstraintBackend, pattern: str, missing: str) -> None:
    """The same of what Unicode calls its characters, which `re` does not know."""
    ready = compiled_schema(backend, {"type": "string", "pattern": pattern})
    found = [text for text in TEXTS if not set(text) & set(missing)]
    assert [text for text in TEXTS if accepts(backend, ready, compact(text))] == found
    assert [text for text in TEXTS if matches(pattern, text)] == found


def test_names_that_patterns_are_written_without(backend: ConstraintBackend) -> None:
    """No name has the character that a pattern is written without, so none gets by the pattern."""
    schema = {"type": "object", "patternProperties": {r"^[^\\]+$": {"type": "string"}}}
    ready = compiled_schema(backend, schema)
    assert accepts(backend, ready, r'{"a\\b":1,"\u0001":"x"}')
    for text in (r'{"\u0000":1}', r'{"\u0000":"x"}', r'{"\u0001":1}', r'{"a":1}'):
        assert not accepts(backend, ready, text)


def test_structural_tags(backend: ConstraintBackend) -> None:
    """The same in the schema of a tag."""
    form = {"type": "json_schema", "json_schema": {"type": "string", "pattern": r"^[^\\]+$"}}
    tag = {"type": "structural_tag", "format": {"type": "tag", "begin": "<a>", "content": form, "end": "</a>"}}
    ready = backend.compile(constraint.structural_tag(tag))
    assert accepts(backend, ready, '<a>"x"</a>')
    assert not accepts(backend, ready, r'<a>"x\\"</a>')


def test_what_stays() -> None:
    """Patterns without such a class, data, and properties that are called like keywords."""
    for pattern in ("", "a", r"^[^\n\r\\]+$", r"[^a-z]", r"\[^\\", "[", r"[a-z]", r"\x00[\x00-\x09]", r"\p{L}"):
        assert exact_pattern(pattern) == pattern
    schema = {"const": {"pattern": r"[^\\]"}, "properties": {"pattern": {"type": "string"}, "const": {"pattern": "a"}}}
    assert exact_patterns(schema) is schema
    inner = {"properties": {"const": {"pattern": r"[^\\]"}}}
    assert exact_patterns(inner) == {"properties": {"const": {"pattern": r"[[^\\]--[\x00]]"}}}
