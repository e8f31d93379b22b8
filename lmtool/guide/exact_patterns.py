"""Patterns written so that the library takes what ECMA-262 says, and nothing else.

Two things differ. In a class, `[`, `&&`, `~~` and `--` are characters to ECMA-262, and operators to the library. And a
set with all control characters, or all but the line feed, lets the library take every escape, also those of a quote and
of a backslash that the set does not have (derivre 0.3, `json_quote`); without one control character it looks at each.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from llguidance import LLMatcher, LLParserLimits

from lmtool.guide.byte_tokenizer import byte_tokenizer
from lmtool.guide.regex_parts import PARTS
from lmtool.guide.schema_walk import changed

_QUOTED = frozenset('"\\')
_CONTROLS = frozenset(map(chr, range(32))) - {"\n"}
_MAYBE_CONTROLS = re.compile(r"\[\^|\[.*\\[DPSWpsux0]|\[.*[\0-\x1f]|\\[PSpsux]|[\0-\x1f]", re.DOTALL)
"""Parts that may have a control character."""
_DOUBLED = re.compile(r"\\.|(?<=.)--|--|[\[&~]", re.DOTALL)


@lru_cache(maxsize=1024)
def exact_pattern(pattern: str) -> str:
    """The pattern, without the character U+0000 where it would let a quote or a backslash through."""
    parts = [_as_ecma(part) for part in PARTS.findall(pattern)]
    sets = [_members(part) if _MAYBE_CONTROLS.match(part) else frozenset() for part in parts]
    # All together, because the library makes one set of alternatives.
    if frozenset().union(*sets) >= _CONTROLS:
        inexact = ["\0" in members and not members >= _QUOTED for members in sets]
        parts = [f"[{part}--[\\x00]]" if wrong else part for part, wrong in zip(parts, inexact, strict=True)]
    return "".join(parts)


def _as_ecma(part: str) -> str:
    """A class whose characters are none of the library's operators; other parts as they are."""
    if not part.startswith("[") or part == "[":
        return part
    start = 1 + part.startswith("[^")
    return part[:start] + _DOUBLED.sub(lambda found: _as_character(found[0], first=not found.start()), part[start:])


def _as_character(operator: str, *, first: bool) -> str:
    """An operator of the library with a backslash; of two hyphens the one that is no sign of a range."""
    if operator == "--":
        return r"\--" if first else r"-\-"
    return operator if operator.startswith("\\") else "\\" + operator


@lru_cache(maxsize=4096)
def _members(part: str) -> frozenset[str]:
    """Which of the characters in question a part matches, by the library's own reading; none if it cannot read it."""
    limits = LLParserLimits(verbose_errors=False)
    matcher = LLMatcher(byte_tokenizer(), LLMatcher.grammar_from_regex(part), log_level=0, limits=limits)
    if matcher.is_error():
        return frozenset()
    first_bytes = matcher.compute_bitmask()
    return frozenset(one for one in _CONTROLS | _QUOTED if first_bytes[ord(one) // 8] >> ord(one) % 8 & 1)


def exact_patterns(schema: Any) -> Any:  # noqa: ANN401  # any JSON
    """A document with such patterns; the same object where there is nothing to change."""
    return changed(schema, _exact_node)


def _exact_node(node: dict[str, Any]) -> dict[str, Any]:
    pattern, patterns = node.get("pattern"), node.get("patternProperties")
    if isinstance(pattern, str) and (exact := exact_pattern(pattern)) != pattern:
        node = {**node, "pattern": exact}
    if isinstance(patterns, dict) and any(exact_pattern(name) != name for name in patterns):
        node = {**node, "patternProperties": {exact_pattern(name): part for name, part in patterns.items()}}
    return node
