"""Patterns, above all of property names: what they match, and whether that may be only a few names."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from llguidance import LLMatcher, LLParserLimits

from lmtool.inference.guide.byte_tokenizer import byte_tokenizer
from lmtool.inference.guide.exact_patterns import exact_pattern
from lmtool.inference.guide.regex_parts import PARTS

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_NAMES = 64
"""Names that are enumerated at most; a pattern that matches as many is assumed to match any number."""
_LONGEST = 32
"""Bytes of the longest name that is tried."""
_TRIES = 2000


class PatternError(ValueError):
    """A pattern, or a text for it, that the library cannot take."""


def matches(pattern: str, text: str) -> bool:
    """Whether a pattern is found in a text, without backtracking. Raises `PatternError`."""
    matcher = _searcher(pattern).deep_copy()
    try:
        written = json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")  # which the library takes so only
        data = written.encode()
    except UnicodeEncodeError:
        raise PatternError("half a surrogate pair is no character that a pattern could match") from None
    tokens = list(data)
    matched = matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
    if not matched and "satisfy" not in (problem := matcher.get_error()) and problem:
        raise PatternError(f"{pattern!r}: {problem.splitlines()[0]}")
    return matched


@lru_cache(maxsize=64)
def _searcher(pattern: str) -> LLMatcher:
    """A matcher, by bytes, of the JSON strings in which a pattern is found; shared by threads, so only copies move."""
    schema = json.dumps({"type": "string", "pattern": exact_pattern(pattern)})
    grammar = LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_flexible": False})
    matcher = LLMatcher(byte_tokenizer(), grammar, log_level=0, limits=LLParserLimits(verbose_errors=False))
    if matcher.is_error():
        raise PatternError(f"the pattern {pattern!r} is not supported")
    return matcher


@lru_cache(maxsize=1024)
def exclude_each_other(one: str, other: str) -> bool:
    """Whether it is certain that no text matches both patterns."""
    if one == other:
        return False
    # The library wants this of the patterns of one object.
    schema = json.dumps({"type": "object", "patternProperties": {exact_pattern(one): True, exact_pattern(other): True}})
    grammar = LLMatcher.grammar_from_json_schema(schema)
    matcher = LLMatcher(byte_tokenizer(), grammar, log_level=0, limits=LLParserLimits(verbose_errors=False))
    return not matcher.is_error()


def has_too_few_names(node: Mapping[str, object]) -> bool:
    """Whether a node needs more properties than it names, and than its patterns match."""
    patterns, properties, least = (node.get(name) for name in ("patternProperties", "properties", "minProperties"))
    if node.get("additionalProperties") is not False or not isinstance(patterns, dict) or not isinstance(least, int):
        return False
    listed = properties.items() if isinstance(properties, dict) else ()
    names = {name for name, schema in listed if schema is not False}
    for pattern, schema in patterns.items():
        found = set() if schema is False else names_of(pattern, min(least, _MAX_NAMES))
        if found is None:
            return False
        names |= found
    return len(names) < least


def names_of(pattern: str, enough: int) -> set[str] | None:
    """All names that a pattern matches; None where there are `enough`, or that is not found out in a short time."""
    for longest in (4, _LONGEST):
        search = _Search(pattern, enough, longest)
        if search.run() and not search.cut:
            return None if len(search.found) >= enough else search.found
    return None


def is_endless(pattern: str) -> bool:
    """Whether it is certain that every beginning of a name that a pattern matches is the beginning of any number."""
    return all(
        not branch.startswith("^") or not _ENDS.search(branch) or (branch.endswith("$") and _repeats(branch[1:-1]))
        for branch in _branches(pattern)
    )


def _repeats(part: str) -> bool:
    """Whether a part of a pattern ends with what may be repeated without end, and nothing in it ends a name."""
    if _ENDS.search(part):
        return False
    group = _GROUP.fullmatch(part)
    if group is not None and len(_branches(part)) == 1:
        return all(map(_repeats, _branches(group[1])))
    return _REPEATED.search(part) is not None and len(_branches(part)) == 1


def _branches(pattern: str) -> list[str]:
    """The alternatives of a pattern, those within groups not counted."""
    found, depth = [""], 0
    for part in PARTS.findall(pattern):
        depth += {"(": 1, ")": -1}.get(part, 0)
        if part == "|" and depth == 0:
            found.append("")
        else:
            found[-1] += part
    return found


_ENDS = re.compile(r"(?<!\\)(?:\\\\)*(?:\$|\\[bBzZ])")
_REPEATED = re.compile(r"(?<!\\)(?:\\\\)*(?:[*+]|\{\d+,\})$")
_GROUP = re.compile(r"\((?:\?:)?((?:[^()\\\[]|\\.|\[(?:\\.|[^\]\\])*\])*)\)")


class _Search:
    """Tries the beginnings of names, byte by byte."""

    def __init__(self, pattern: str, enough: int, longest: int) -> None:
        self._pattern = pattern
        self._enough = enough
        self._longest = longest
        self._tries = _TRIES
        self.found: set[str] = set()
        self.cut = False
        """Whether there may be longer names than were tried."""

    def run(self) -> bool:
        """Whether all was tried, or enough found."""
        try:
            self._try(_searcher(self._pattern).deep_copy(), b"")
        except PatternError:
            return False
        return self._tries > 0

    def _try(self, at: LLMatcher, text: bytes) -> None:
        """Try all that may follow a text, quotes and all."""
        self._tries -= 1
        if at.is_accepting():
            self.found.add(json.loads(text))
            return
        if len(text) > self._longest:
            self.cut = True
            return
        allowed = at.compute_bitmask()
        for byte in range(256):
            if len(self.found) >= self._enough or self._tries <= 0:
                return
            if allowed[byte >> 3] >> (byte & 7) & 1:
                ahead = at.deep_copy()
                ahead.consume_token(byte)
                self._try(ahead, text + bytes((byte,)))
