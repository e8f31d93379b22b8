"""Constraints that try to stop the process, to stall it, or to fill its memory; each is made when it is asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from lmtool.core import constraint
from lmtool.core.types import Constraint

MILLION = 10**6


def _schema(schema: Any) -> Callable[[], Constraint]:
    return lambda: constraint.json_schema(schema() if callable(schema) else schema)


def _regex(pattern: str) -> Callable[[], Constraint]:
    return lambda: constraint.regex(pattern)


def _grammar(text: str) -> Callable[[], Constraint]:
    return lambda: constraint.grammar(text)


def _nested(depth: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def _text_nested(depth: int) -> Callable[[], Constraint]:
    return lambda: constraint.json_schema('{"items":' * depth + "{}" + "}" * depth)


def _doubling(keyword: str, depth: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(depth):
        schema = {keyword: [schema, schema]}
    return schema


CASES: dict[str, Callable[[], Constraint]] = {
    "stars under a count": _regex("(a|a)*{1000}"),
    "grouped stars under a count": _regex("((a|a)*){1000}"),
    "counts of counts": _regex("((a{0,100}){0,100}){0,100}"),
    "counts of counts of counts": _regex("(((a{1,300}){1,300}){1,300}){1,300}"),
    "exponential automaton": _regex(".*a.{20}"),
    "larger exponential automaton": _regex("(.*a.{200}|.*b.{200})"),
    "a million letters": _regex("a{1000000}"),
    "a hundred thousand letters": _regex("a{100000}"),
    "any hundred thousand": _regex(".{1,100000}"),
    "letters of all scripts": _regex(r"\p{L}{1,50}"),
    "word characters, many": _regex(r"\w{1,5000}"),
    "nested stars": _regex("((((((a*)*)*)*)*)*)*"),
    "backtracking for others": _regex("(a+)+b"),
    "many alternatives": _regex("|".join(f"w{number}" for number in range(3500))),
    "deep groups": _regex("(" * 5000 + "a" + ")" * 5000),
    "deep classes": _regex("[" * 3000),
    "look-ahead": _regex("(?=a)a"),
    "look-behind": _regex("(?<=a)a"),
    "back-reference": _regex(r"(a)\1"),
    "nothing": _regex(r"[^\s\S]a"),
    "not closed": _regex("(a"),
    "not even a pattern": _regex("*a"),
    "nul": _regex("a\0b"),
    "too long": _regex("a" * 20_001),
    "s of s": _grammar('start: s\ns: s s | "a" | ""'),
    "stars of stars": _grammar('start: (("a"*)*)*'),
    "loops without end": _grammar("start: a\na: a"),
    "left recursion": _grammar('start: e\ne: e "+" e | e "*" e | "(" e ")" | /[0-9]+/'),
    "hidden left recursion": _grammar('start: x start "b" | "a"\nx: "" | "c"'),
    "an unknown rule": _grammar("start: nowhere"),
    "no start": _grammar('other: "a"'),
    "not a grammar": _grammar("{{{{ ::= ::="),
    "many rules": _grammar(
        "start: r0\n" + "\n".join(f'r{n}: "a" r{n + 1} | "b"' for n in range(5000)) + '\nr5000: "c"'
    ),
    "a chain of references": _schema(
        lambda: {
            "$defs": {f"a{n}": {"items": {"$ref": f"#/$defs/a{n + 1}"}} for n in range(9000)},
            "$ref": "#/$defs/a0",
        }
    ),
    "a chain of known references": _schema(
        lambda: {
            "$defs": {f"a{n}": {"items": {"$ref": f"#/$defs/a{(n + 1) % 9000}"}} for n in range(9000)},
            "$ref": "#/$defs/a0",
        }
    ),
    "a chain of terminals": _grammar(
        "start: T0\n" + "\n".join(f'T{n}: "a" T{n + 1}' for n in range(5000)) + '\nT5000: "c"'
    ),
    "many alternatives of a rule": _grammar("start: " + " | ".join(f'"w{number}" "x"' for number in range(3000))),
    "gbnf loop": _grammar("root ::= root | root root"),
    "deep brackets": _grammar("start: " + "(" * 3000 + '"a"' + ")" * 3000),
    "a huge terminal": _grammar("start: T\nT: /a{1,99999}b{1,99999}c{1,99999}/"),
    "json of itself": _schema({"$ref": "#"}),
    "json of another itself": _schema(
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
    ),
    "all of itself": _schema({"allOf": [{"$ref": "#"}, {"type": "object"}]}),
    "one of itself": _schema({"oneOf": [{"$ref": "#"}, {"type": "object"}]}),
    "not itself": _schema({"not": {"$ref": "#"}}),
    "remote": _schema({"$ref": "https://example.org/schema.json"}),
    "a file": _schema({"$ref": "file:///etc/passwd"}),
    "minimum above maximum": _schema({"type": "integer", "minimum": 2, "maximum": 1}),
    "minLength above maxLength": _schema({"type": "string", "minLength": 2, "maxLength": 1}),
    "no value": _schema({"enum": []}),
    "string and integer": _schema({"allOf": [{"type": "string"}, {"type": "integer"}]}),
    "5000 optional properties": _schema(
        lambda: {"type": "object", "properties": {f"p{n}": {"type": "integer"} for n in range(5000)}}
    ),
    "3000 objects": _schema(
        lambda: {
            "anyOf": [
                {"type": "object", "properties": {f"p{n}": {"type": "integer"}}, "required": [f"p{n}"]}
                for n in range(3000)
            ]
        }
    ),
    "50,000 values": _schema(lambda: {"enum": [f"value {n:x}" for n in range(30_000)]}),
    "text without end": _schema({"type": "string", "maxLength": MILLION}),
    "text of a billion": _schema({"type": "string", "minLength": 10**9}),
    "a billion items": _schema({"type": "array", "items": {"type": "integer"}, "maxItems": 10**9}),
    "a billion items at least": _schema({"type": "array", "minItems": 10**9}),
    "a number of a thousand digits": _schema({"type": "integer", "minimum": 10**1000}),
    "nested 60 deep": _schema(lambda: _nested(30)),
    "nested 200 deep": _text_nested(200),
    "nested 20,000 deep": _text_nested(20_000),
    "doubling anyOf": _schema(lambda: _doubling("anyOf", 16)),
    "doubling allOf": _schema(lambda: _doubling("allOf", 16)),
    "doubling oneOf": _schema(lambda: _doubling("oneOf", 14)),
    "oneOf of many": _schema(lambda: {"oneOf": [{"required": [f"p{n}"]} for n in range(300)]}),
    "many dependencies": _schema(lambda: {"type": "object", "dependencies": {f"p{n}": [f"q{n}"] for n in range(200)}}),
    "a heavy pattern in a schema": _schema({"type": "string", "pattern": "((a{0,100}){0,100}){0,100}"}),
    "patterned names": _schema({"type": "object", "patternProperties": {"(a|b)*c.{30}": {"type": "integer"}}}),
    "50,000 choices": lambda: constraint.choice([f"c{number:x}" for number in range(50_000)]),
    "an empty choice": lambda: constraint.choice([""]),
    "a tag of loops": lambda: constraint.structural_tag(
        {"structures": [{"begin": "<a>", "schema": {"$ref": "#"}, "end": ""}], "triggers": ["<a"]}
    ),
    "library options in a schema": lambda: constraint.json_schema(
        json.dumps({"x-guidance": {"whitespace_pattern": "(((a*)*)*)*", "lenient": True}, "not": {}})
    ),
}
"""What the constraint is called, and what makes it; making may raise `ConstraintError`."""
