"""Regular expressions: ECMA-262 patterns as llguidance needs them, and what a pattern matches."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from lmtool.core import constraint
from lmtool.inference.guide.json_validation import examine
from lmtool.inference.guide.llguidance import ConstraintBackend
from lmtool.inference.guide.patterns import exact_pattern, exact_patterns, matches
from lmtool.inference.guide.schema.open_names import has_too_few_names, is_endless, names_of
from tests.inference.guide.following import accepts, compact, compiled_schema

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


CHARACTERS = "1\u0661\u07c6aK\u212a_\u00e9 \t\n\r\x0b\x1c\x85\xa0\u1680\u180e\u2028\u2029\ufeff\u200b\U0001f600-x\x08\0"
WHITE = " \t\n\r\x0b\x0c\xa0\u1680\u2028\u2029\ufeff"
WORDS = "1aK_x"


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (r"\d", "1"), (r"[\d]", "1"), (r"(?:\d)", "1"), (r"\w", WORDS), (r"[\w-]", WORDS + "-"), (r"\s", WHITE),
        (r"[+-\d]", "1-"), (r"\D", set(CHARACTERS) - {"1"}), (r"[^\D]", "1"), (r"\W", set(CHARACTERS) - set(WORDS)),
        (r"[^\W]", WORDS), (r"\S", set(CHARACTERS) - set(WHITE)), (r"[^\s]", set(CHARACTERS) - set(WHITE)),
        (".", set(CHARACTERS) - set("\n\r\u2028\u2029")), ("(?s:.)", CHARACTERS), (r"[\s\S]", CHARACTERS), ("[.]", ""),
        (r"(?:(?i)k)", "K\u212a"), (r"\cJ", "\n"), (r"[\cJ\b]", "\n\x08"),
        (r"\0", "\0"), (r"\ud83d\ude00", "\U0001f600"), (r"[\ud83d\ude00]", "\U0001f600"),
        (r"\p{L}", "aK\u212a\u00e9x"),
    ],
)  # fmt: skip
def test_one_meaning(backend: ConstraintBackend, pattern: str, found: str | set[str]) -> None:
    """ECMA-262's, for `regex`, in patterns, structural tags and grammars, and for whoever validates answers."""
    texts = {"type": "string", "pattern": f"^(?:{pattern})$"}
    tag = {"type": "tag", "begin": "<", "content": {"type": "regex", "pattern": pattern}, "end": ">"}
    grammar = constraint.grammar(f'start: "<" A ">" // /./\nA: /{pattern}/')
    inner = constraint.grammar(f"start: %json {json.dumps(texts)}")
    plain, held = backend.compile(constraint.regex(pattern)), compiled_schema(backend, texts)
    tagged, lark = backend.compile(constraint.structural_tag({"format": tag})), backend.compile(grammar)
    in_lark = backend.compile(inner)
    for text in CHARACTERS:
        wanted, quoted = text in found, json.dumps(text)
        assert accepts(backend, plain, text) == wanted, text
        assert accepts(backend, tagged, f"<{text}>") == accepts(backend, lark, f"<{text}>") == wanted, text
        spelled = compact(text) if text != "\0" else quoted
        assert accepts(backend, held, spelled) == accepts(backend, in_lark, spelled) == wanted, text
        assert matches(texts["pattern"], text) == wanted == (not examine(json.dumps(texts), quoted, 100)), text


def test_grammars_keep_their_strings(backend: ConstraintBackend) -> None:
    """What looks like a regular expression in a string or a comment of a grammar is none; flags count."""
    made = backend.compile(constraint.grammar('start: "/\\\\d/" A B // /\\d/\nA: /./s\nB: "." # /'))
    assert accepts(backend, made, "/\\d/\n.")
    assert not accepts(backend, made, "/1/\n.")


def test_delete() -> None:
    """The character U+007F, which the library takes as an escape only, is found like any other."""
    assert matches("a$", "\x7fa")
    assert not examine(json.dumps({"pattern": "^.a$"}), '"\\u007fa"', 100)


@pytest.mark.parametrize(
    "pattern",
    [
        "^[a-z]+$", "^x-", "a", "", "b$", "^.*$", "^[^a]*$", "^([a-z]+)$", "^(?:a+|b*)$", r"^a\$", "^a{2,}$",
        "^(a|b)*$", "^[a-zA-Z_][a-zA-Z0-9_]*$", "^(a)+$|b$", r"^\d+$", "^/", r"^\\+$",
    ],
)  # fmt: skip
def test_endless(pattern):
    """Every beginning of a name goes on in any number of ways."""
    assert is_endless(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "^a$", "^[ab]$", "^(a|b[0-9]*)$", "^(id|x-.*)$", "^.{1,3}$", "^a+$|^b$", r"^\w+\b", r"^a\+$", "^[*+]$",
        "^(a+)b$", "^(a+)(b)$", "^(x|(y+))$", "^$", r"^a*\z",
    ],
)  # fmt: skip
def test_not_certainly_endless(pattern):
    """Some beginnings leave few names, or may."""
    assert not is_endless(pattern)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("^a$", {"a"}),
        ("^[a-c]$", {"a", "b", "c"}),
        ('^(ü|"|ab?)$', {"ü", '"', "a", "ab"}),
        ("^$", {""}),
        ("a", None),
        ("^[a-z]+$", None),
        ("^.$", None),
        ("^[ab]{3}$", None),
        ("^a{20}$", {"a" * 20}),
        ("(?=a)", None),
        ("^" + "(a|b)" * 20 + "[cd]x$", None),
    ],
)
def test_names_of(pattern, names):
    """All names, where they are fewer than enough."""
    assert names_of(pattern, 6) == names


@pytest.mark.parametrize(
    ("node", "lacks"),
    [
        ({"patternProperties": {"^a$": {}}, "minProperties": 2}, True),
        ({"patternProperties": {"^a$": {}, "^[ab]$": {}}, "minProperties": 2}, False),
        ({"patternProperties": {"^a$": {}}, "properties": {"a": {}, "b": {}}, "minProperties": 2}, False),
        ({"patternProperties": {"^a$": {}}, "properties": {"a": {}, "b": False}, "minProperties": 2}, True),
        ({"patternProperties": {"^a$": {}, "^b": False}, "minProperties": 2}, True),
        ({"patternProperties": {"^a$": {}, "^b": {}}, "minProperties": 2}, False),
        ({"patternProperties": {"^a$": {}}}, False),
        ({"patternProperties": {"^[a-z]$": {}}, "minProperties": 1000}, True),
        ({"patternProperties": {"^[a-z]{2}$": {}}, "minProperties": 1000}, False),
        ({"minProperties": 2, "properties": {"a": {}}}, False),
    ],
)
def test_lacks_names(node, lacks):
    """An object may need more properties than there are names for it, where no others are allowed."""
    assert has_too_few_names({**node, "additionalProperties": False}) == lacks
    assert not has_too_few_names(node)


def test_from_several_threads():
    """Answers are validated in threads while other schemas are compiled: what is kept of a pattern is never moved."""
    with ThreadPoolExecutor(4) as threads:
        found = [threads.submit(names_of, "^[a-z]{1,3}$", 2000) for _ in range(4)]
        judged = [threads.submit(matches, "^[a-z]{1,3}$", "abc") for _ in range(4000)]
        assert all(one.result() for one in judged)
        assert all(one.result() is None for one in found)
