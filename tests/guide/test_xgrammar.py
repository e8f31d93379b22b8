"""Another library's judgement of the same texts (the environment of LMTOOL_XGRAMMAR_PYTHON)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from lmtool import constraint
from tests.guide.following import accepts, compact

PYTHON = Path(os.environ.get("LMTOOL_XGRAMMAR_PYTHON", ""))
VALUES = [None, True, 0, 3, -1, 1.5, "", "abc", "a@b.c", [], [1], [1, 2, 3, 4], ["x"], {}, {"a": 1}, {"a": "x"}]
VALUES += [
    {"a": 1, "b": "x"},
    {"a": 1, "b": None},
    {"kind": "n", "v": 1},
    {"kind": "s", "v": 1},
    {"kind": "s", "v": "1"},
]
SCHEMAS = [
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False},
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": ["string", "null"]}}, "required": ["a"]},
    {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
    {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}, {"type": "boolean"}]},
    {"enum": ["abc", 3, None]},
    {
        "anyOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": "n"}, "v": {"type": "integer"}},
                "required": ["kind", "v"],
            },
            {
                "type": "object",
                "properties": {"kind": {"const": "s"}, "v": {"type": "string"}},
                "required": ["kind", "v"],
            },
        ]
    },
]
REGEXES = [r"\d{3}-\d{4}", "(a|b)*c", "[a-z]+@[a-z]+\\.[a-z]{2,3}", "x{2,4}y?", "[^a-c]*"]
TEXTS = ["", "555-1234", "abac", "c", "me@example.org", "a@b.c", "xxy", "xxxxx", "xyz", "é", "a"]


@pytest.mark.peer
@pytest.mark.skipif(not PYTHON.is_file(), reason="needs an environment with xgrammar")
def test_same_judgement(templates):
    """What we allow and refuse, xgrammar allows and refuses."""
    cases = [{"json": schema, "texts": [compact(value) for value in VALUES]} for schema in SCHEMAS]
    cases += [{"regex": pattern, "texts": TEXTS} for pattern in REGEXES]
    script = str(Path(__file__).with_name("xgrammar_peer.py"))
    sent = "".join(json.dumps(case) + "\n" for case in cases)
    ran = subprocess.run([str(PYTHON), script], input=sent, capture_output=True, text=True, timeout=120, check=True)
    judged = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(judged) == len(cases)
    for case, theirs in zip(cases, judged, strict=True):
        wanted = constraint.regex(case["regex"]) if "regex" in case else constraint.json_schema(case["json"])
        template = templates.make(wanted)
        ours = [accepts(templates, template, text) for text in case["texts"]]
        assert ours == theirs, case
