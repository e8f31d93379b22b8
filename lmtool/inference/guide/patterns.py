r"""Regular expressions: ECMA-262 patterns as llguidance needs them, and what a pattern matches.

In ECMA-262 (22.2, with the flag `u`), `\d` and `\w` are ASCII, `\s` is its own set of white space, `.` excludes line
terminators, and `[`, `&&`, `~~` and `--` in a class are plain characters; the library reads all of these differently.
In a JSON string, a set with all control characters, or all but the line feed, makes the library accept every escape,
including those of a quote and of a backslash that are not in the set (derivre 0.3, `json_quote`); without one of the
control characters it tests each escape.
"""

from __future__ import annotations

import json
import re
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from lmtool.inference.guide.dialects import map_schemas

if TYPE_CHECKING:
    from collections.abc import Iterator


@cache
def byte_tokenizer() -> LLTokenizer:
    """Shared tokenizer whose token ids are bytes; creating it takes longer than compiling a small pattern."""
    return LLTokenizer("byte")


PARTS = re.compile(
    r"\\(?:[pPxu]\{[^{}]*\}|[pP].|x[0-9A-Fa-f]{2}|u[dD][89abAB][0-9A-Fa-f]{2}\\u[dD][c-fC-F][0-9A-Fa-f]{2}|"
    r"u[0-9A-Fa-f]{4}|c[A-Za-z]|.)|\[\^?\]?(?:\\.|[^\]\\])*\]|.",
    re.DOTALL,
)
"""One escape, class or character. A class ends where ECMA-262 (section 22.2.1) ends it: classes do not nest."""


_QUOTED = frozenset('"\\')
_CONTROLS = frozenset(map(chr, range(32))) - {"\n"}
_MAYBE_CONTROLS = re.compile(r"\[\^|\[.*\\[DPSWpsux0]|\[.*[\0-\x1f]|\\[PSpsux]|[\0-\x1f]", re.DOTALL)
"""Parts that may match a control character."""
_SETS = {
    "d": "0-9",
    "w": "0-9A-Za-z_",
    "s": r"\t-\r\x20\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}",
}
"""Characters of the escapes with these letters (ECMA-262, 22.2.2.9, 12.2 and 12.3)."""
_NO_LINE_END = r"[^\n\r\x{2028}\x{2029}]"
_ANYTHING = frozenset({r"[\s\S]", r"[\S\s]", r"[\d\D]", r"[\D\d]", r"[\w\W]", r"[\W\w]"})
"""Classes of all characters under either reading of the escapes."""
_IN_CLASS = re.compile(rf"-+(?=\\[dDwWsS])|(?=\\)(?:{PARTS.pattern})|(?<=.)--|--|[\[&~]", re.DOTALL)
_PIECE = re.compile(rf"\(\?(?P<on>[a-zA-Z]*)(?:-(?P<off>[a-zA-Z]+))?(?P<end>[:)])|{PARTS.pattern}", re.DOTALL)
"""A part, or the start of a group with flags."""


@lru_cache(maxsize=1024)
def exact_pattern(pattern: str) -> str:
    """Pattern for a JSON string, without U+0000 where that character would let a quote or a backslash through."""
    parts = list(_ecma_parts(pattern))
    sets = [_members(part) if _MAYBE_CONTROLS.match(part) else frozenset() for part in parts]
    # All together, because the library makes one set of alternatives.
    if frozenset().union(*sets) >= _CONTROLS:
        inexact = ["\0" in members and not members >= _QUOTED for members in sets]
        parts = [f"[{part}--[\\x00]]" if wrong else part for part, wrong in zip(parts, inexact, strict=True)]
    return "".join(parts)


def ecma_pattern(pattern: str, *, dot_all: bool = False) -> str:
    """Regular expression for the library with the meaning of ECMA-262. dot_all: the flag `s` is set."""
    return "".join(_ecma_parts(pattern, dot_all=dot_all))


def _ecma_parts(pattern: str, *, dot_all: bool = False) -> Iterator[str]:
    dots = [dot_all]  # per open group: a dot matches any character
    for found in _PIECE.finditer(pattern):
        part = found[0]
        if found["end"] is not None:
            free = (dots[-1] or "s" in found["on"]) and "s" not in (found["off"] or "")
            dots = [*dots, free] if found["end"] == ":" else [*dots[:-1], free]
        elif part == "(":
            dots.append(dots[-1])
        elif part == ")":
            dots = dots[:-1] or dots
        yield _NO_LINE_END if part == "." and not dots[-1] else _as_ecma(part)


def _as_ecma(part: str) -> str:
    """Translate a class or an escape; other parts are unchanged."""
    if part.startswith("\\"):
        return _escape(part)
    if not part.startswith("[") or part == "[" or part in _ANYTHING:
        return part
    start = 1 + part.startswith("[^")
    return part[:start] + _IN_CLASS.sub(lambda found: _in_class(found[0], first=not found.start()), part[start:])


def _in_class(text: str, *, first: bool) -> str:
    """Translate one escape or operator inside a class; of two hyphens, escape the one that is not a range sign."""
    if text == "\\b":
        return r"\x08"
    if text.startswith("\\"):
        return _escape(text)
    if text == "--":
        return r"\--" if first else r"-\-"
    return "".join(f"\\{character}" for character in text)


def _escape(part: str) -> str:
    r"""Translate an escape such as `\d`, `\cJ`, `\0` or a pair of surrogates."""
    letter, rest = part[1:2], part[2:]
    if letter.lower() in _SETS:
        return f"[{'^' * letter.isupper()}{_SETS[letter.lower()]}]"
    if letter == "c" and rest:
        return f"\\x{{{ord(rest) % 32:x}}}"
    if letter == "u" and len(rest) == 10:
        return f"\\x{{{ord(json.loads(chr(34) + part + chr(34))):x}}}"
    return r"\x00" if part == r"\0" else part


@lru_cache(maxsize=4096)
def _members(part: str) -> frozenset[str]:
    """Control characters and quotes that a part matches in the library's reading; empty if it cannot read the part."""
    limits = LLParserLimits(verbose_errors=False)
    matcher = LLMatcher(byte_tokenizer(), LLMatcher.grammar_from_regex(part), log_level=0, limits=limits)
    if matcher.is_error():
        return frozenset()
    first_bytes = matcher.compute_bitmask()
    return frozenset(one for one in _CONTROLS | _QUOTED if first_bytes[ord(one) // 8] >> ord(one) % 8 & 1)


def exact_patterns(schema: Any) -> Any:  # noqa: ANN401  # any JSON
    """Apply `exact_pattern` to every pattern of a schema; returns the same object if nothing changes."""
    return map_schemas(schema, _exact_node)


def _exact_node(node: dict[str, Any]) -> dict[str, Any]:
    pattern, patterns = node.get("pattern"), node.get("patternProperties")
    if isinstance(pattern, str) and (exact := exact_pattern(pattern)) != pattern:
        node = {**node, "pattern": exact}
    if isinstance(patterns, dict) and any(exact_pattern(name) != name for name in patterns):
        node = {**node, "patternProperties": {exact_pattern(name): part for name, part in patterns.items()}}
    return node


class PatternError(ValueError):
    """A pattern or a text that the library cannot handle."""


def matches(pattern: str, text: str) -> bool:
    """True if a pattern is found in a text, without backtracking. Raises `PatternError`."""
    matcher = string_matcher(pattern).deep_copy()
    try:
        written = json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")  # the only spelling it accepts
        data = written.encode()
    except UnicodeEncodeError:
        raise PatternError("a lone surrogate is not a character that a pattern could match") from None
    tokens = list(data)
    matched = matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
    if not matched and "satisfy" not in (problem := matcher.get_error()) and problem:
        raise PatternError(f"{pattern!r}: {problem.splitlines()[0]}")
    return matched


@lru_cache(maxsize=64)
def string_matcher(pattern: str) -> LLMatcher:
    """Byte matcher of the JSON strings in which a pattern is found; shared by threads, so advance only copies."""
    schema = json.dumps({"type": "string", "pattern": exact_pattern(pattern)})
    grammar = LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_flexible": False})
    matcher = LLMatcher(byte_tokenizer(), grammar, log_level=0, limits=LLParserLimits(verbose_errors=False))
    if matcher.is_error():
        raise PatternError(f"the pattern {pattern!r} is not supported")
    return matcher


@lru_cache(maxsize=1024)
def exclude_each_other(one: str, other: str) -> bool:
    """True if no text can match both patterns; False if that is unknown."""
    if one == other:
        return False
    # The library refuses an object whose patterns can match the same name.
    schema = json.dumps({"type": "object", "patternProperties": {exact_pattern(one): True, exact_pattern(other): True}})
    grammar = LLMatcher.grammar_from_json_schema(schema)
    matcher = LLMatcher(byte_tokenizer(), grammar, log_level=0, limits=LLParserLimits(verbose_errors=False))
    return not matcher.is_error()
