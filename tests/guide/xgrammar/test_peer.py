"""What is written here, held by xgrammar itself (the environment of LMTOOL_XGRAMMAR_PYTHON)."""

from __future__ import annotations

import json
import os
import re
import subprocess
from typing import Any

import jsonschema
import pytest

from tests.conftest import ROOT
from tests.guide.following import compact
from tests.guide.strict_run import problem_of
from tests.guide.test_xgrammar import PYTHON, REGEXES, SCHEMAS, TEXTS, VALUES

pytestmark = [
    pytest.mark.peer,
    pytest.mark.skipif(not PYTHON.is_file(), reason="needs an environment with xgrammar"),
]
MORE: list[dict[str, Any]] = [
    {"type": "object", "properties": {"a": {"type": "integer", "minimum": -3, "maximum": 12}}},
    {"type": "array", "items": {"enum": [1, 2, 3]}, "uniqueItems": True},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False},
    {"type": "string", "pattern": "b", "minLength": 0},
    {"type": "string", "pattern": "[@.]"},
    {"type": "string", "format": "email"},
    {"type": "string", "minLength": 1, "maxLength": 4},
    {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 2},
    {"type": "object", "patternProperties": {"^[ab]$": {"type": "null"}}, "additionalProperties": False},
    {
        "type": "object",
        "patternProperties": {"^[ab]$": {"const": 1}},
        "additionalProperties": False,
        "minProperties": 1,
    },
    {"oneOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}]},
    {"if": {"type": "string"}, "then": {"maxLength": 3}, "else": {"type": ["integer", "null"]}},
    {"allOf": [{"type": "object", "required": ["a"]}, {"properties": {"a": {"type": "integer"}}}]},
    {"$defs": {"n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"},
]
PATTERNS = [*REGEXES, r"\S+", r"[^\d]{2}", r"\W?\w*", "(?:é|a)+", r"^(a|b)*$", ".{0,3}"]


def asked(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the library's environment answers."""
    sent = "".join(json.dumps(case) + "\n" for case in cases)
    ran = subprocess.run(
        [str(PYTHON), "-m", "tests.guide.xgrammar.peer"],
        input=sent,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_schemas() -> None:
    """No text is allowed that is not valid, by judgement or by saying it, and each that is valid is allowed."""
    texts = [compact(value) for value in VALUES]
    cases = [{"constraint": {"json": schema}, "texts": texts} for schema in (*SCHEMAS, *MORE)]
    ended = 0
    for case, answer in zip(cases, asked(cases), strict=True):
        schema = case["constraint"]["json"]
        validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
        assert answer["judged"] == [validator.is_valid(value) for value in VALUES], case
        for text in answer["said"]:
            assert problem_of(schema, text) is None, (case, text)
            assert validator.is_valid(json.loads(text)), (case, text)
            ended += 1
    assert ended > 60


def test_names_come_once() -> None:
    """Also in the JSON of a structural tag; where nothing tells that it begins there, the tag is refused."""
    open_, free = {"type": "object"}, {"type": "regex", "pattern": "[a-z]*"}
    tag = {"type": "tag", "begin": "<f>", "content": {"type": "json_schema", "json_schema": open_}, "end": "</f>"}
    form = {"type": "sequence", "elements": [free, tag["content"]]}
    plain, within, refused = asked(
        [
            {"constraint": {"json": open_}, "texts": ['{"a":1,"a":1}', '{"a":1,"b":1}', '{"a":{"a":1}}']},
            {"constraint": {"structural_tag": {"format": tag}}, "texts": ['<f>{"a":1,"a":1}</f>', '<f>{"a":1}</f>']},
            {"constraint": {"structural_tag": {"format": form}}, "texts": []},
        ]
    )
    assert plain["judged"] == [False, True, True]
    assert within["judged"] == [False, True]
    assert "names that it does not list" in refused["error"]


def test_patterns() -> None:
    """A text is allowed where Python's `re` says so; characters that dialects read differently may be left out."""
    cases = [{"constraint": {"regex": pattern}, "texts": TEXTS} for pattern in PATTERNS]
    for case, answer in zip(cases, asked(cases), strict=True):
        pattern = case["constraint"]["regex"]
        for text, allowed in zip(TEXTS, answer["judged"], strict=True):
            matched = re.fullmatch(pattern, text) is not None
            assert allowed == matched or (matched and not text.isascii()), (pattern, text)
        for text in answer["said"]:
            assert re.fullmatch(pattern, text), (pattern, text)


def test_other_kinds() -> None:
    """Choices, GBNF and structural tags; Lark and what is no grammar are refused."""
    tag = {
        "structures": [{"begin": "<n>", "schema": {"type": "integer"}, "end": "</n>"}],
        "triggers": ["<n"],
    }
    form = {"type": "tag", "begin": "<", "content": {"type": "regex", "pattern": "[ab]+"}, "end": ">"}
    cases: list[dict[str, Any]] = [
        {"constraint": {"choice": ['a "b"', "ä\n", "a"]}, "texts": ['a "b"', "ä\n", "a", "b", ""]},
        {"constraint": {"grammar": 'root ::= "(" root ")" | [0-9]+'}, "texts": ["((1))", "((1)", "23", ""]},
        {"constraint": {"structural_tag": tag}, "texts": ["so <n>12</n> then", "so", "<n>x</n>", "<n"]},
        {"constraint": {"structural_tag": {"format": form}}, "texts": ["<ab>", "<>", "ab"]},
        {"constraint": {"grammar": 'start: "a"'}, "texts": []},
        {"constraint": {"grammar": "root ::= nowhere"}, "texts": []},
    ]
    choice, gbnf, tags, formed, lark, bad = asked(cases)
    assert choice["judged"] == [True, True, True, False, False]
    assert gbnf["judged"] == [True, False, True, False]
    assert tags["judged"] == [True, True, False, False]
    assert formed["judged"] == [True, False, False]
    assert "Lark" in lark["error"]
    assert bad["error"].startswith("the grammar cannot be held by xgrammar: EBNF parser error")
