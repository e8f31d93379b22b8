"""Properties that a JSON Schema allows without listing their names, and how many names its patterns match."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmtool.inference.guide.patterns import PARTS, PatternError, string_matcher
from lmtool.inference.guide.schema.document import (
    UNIQUE,
    Document,
    Schema,
    UnsupportedError,
    significant,
    subschemas,
    types_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from llguidance import LLMatcher


_IN_PLACE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas")
"""Keywords whose schemas are about the same value."""
_MEMBERS = (
    "items", "prefixItems", "contains", "properties", "patternProperties", "additionalProperties",
)  # fmt: skip
"""Keywords whose schemas are about the value's members."""


@dataclass(frozen=True, slots=True)
class OpenNames:
    """Of a schema."""

    any: bool = False
    """Whether an object may have names that are not listed, or only by a pattern."""
    may_run_out: bool = False
    """Whether there are patterns that say which, and after some beginning of a name leave few."""
    too_few: bool = False
    """Whether an object needs more of them than its patterns match."""
    unique_items: bool = False
    """Whether the strings of an array must be unique, as names are."""


LISTED = OpenNames()
"""All names are listed."""


def open_names(schema: Schema) -> OpenNames:
    """Search a schema for objects with open names; where that is not certain, there are some."""
    walk = _Walk(Document(schema))
    try:
        walk.visit(schema)
    except UnsupportedError:
        return OpenNames(any=True, may_run_out=True, too_few=walk.too_few)
    unique = walk.unique_items
    return OpenNames(walk.open or unique, walk.may_run_out, walk.too_few, unique)


class _Walk:
    """A walk through all places of a document that are about a value of their own."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._visited: set[int] = set()
        self.open = False
        self.may_run_out = False
        self.too_few = False
        self.unique_items = False

    def visit(self, schema: Schema) -> None:
        waiting = [schema]
        while waiting:
            node = waiting.pop()
            if id(node) in self._visited:
                continue
            self._visited.add(id(node))
            self.open = self.open or not self._shut(node, "object") or not self._shut(node, "array")
            for part in self._parts(node):
                patterns = part.get("patternProperties")
                if isinstance(patterns, dict):
                    self.may_run_out = self.may_run_out or not all(map(is_endless, patterns))
                self.too_few = self.too_few or has_too_few_names(part)
                if UNIQUE in part:
                    self.unique_items = True
                    self.may_run_out = self.may_run_out or self._is_limited(part)
                waiting += subschemas(part, *_MEMBERS)

    def _is_limited(self, array: dict[str, object]) -> bool:
        """Whether the strings of an array may be only some."""
        items = [self._document.target(schema) for schema in subschemas(array, "items")]
        return any(significant(schema) - {"type", "minLength"} for schema in items if isinstance(schema, dict))

    def _shut(self, node: Schema, kind: str, depth: int = 0) -> bool:
        """Whether no value of a kind matches a node that could have members it says nothing of."""
        self._document.count()
        if isinstance(node, bool):
            return not node
        if depth > 16:  # references in a circle, which are refused elsewhere
            return False
        types = types_of(node)
        if (types is not None and kind not in types) or "const" in node or "enum" in node or _closed(node, kind):
            return True
        if "$ref" in node and self._shut(self._document.resolve(node["$ref"]), kind, depth + 1):
            return True
        if any(self._shut(part, kind, depth + 1) for part in subschemas(node, "allOf")):
            return True
        choices = [subschemas(node, keyword) for keyword in ("anyOf", "oneOf")]
        return any(ways and all(self._shut(way, kind, depth + 1) for way in ways) for ways in choices)

    def _parts(self, node: Schema) -> Iterator[dict[str, object]]:
        """A node and all that is about the same value."""
        waiting, visited = [node], set[int]()
        while waiting:
            part = waiting.pop()
            if isinstance(part, bool) or id(part) in visited:
                continue
            visited.add(id(part))
            yield part
            waiting += subschemas(part, *_IN_PLACE)
            if "$ref" in part:
                waiting.append(self._document.resolve(part["$ref"]))


def _closed(node: dict[str, object], kind: str) -> bool:
    if kind == "array":
        return "items" in node or node.get("maxItems") == 0
    return node.get("additionalProperties") is False and not node.get("patternProperties")


_MAX_NAMES = 64
"""Names that are enumerated at most; a pattern that matches as many is assumed to match any number."""
_LONGEST = 32
"""Bytes of the longest name that is tried."""
_TRIES = 2000


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
            self._try(string_matcher(self._pattern).deep_copy(), b"")
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
