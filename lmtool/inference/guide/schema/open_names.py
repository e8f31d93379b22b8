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
"""Keywords whose subschemas apply to the same value."""
_MEMBERS = (
    "items", "prefixItems", "contains", "properties", "patternProperties", "additionalProperties",
)  # fmt: skip
"""Keywords whose subschemas apply to members of the value."""


@dataclass(frozen=True, slots=True)
class OpenNames:
    """Unlisted names that a schema allows."""

    any: bool = False
    """An object may have names that are not listed, or only by a pattern."""
    may_run_out: bool = False
    """Patterns restrict the names, so that few remain after some prefix of a name."""
    too_few: bool = False
    """An object needs more names than its patterns match."""
    unique_items: bool = False
    """The strings of an array must be unique, as names are."""


LISTED = OpenNames()
"""No open names."""


def open_names(schema: Schema) -> OpenNames:
    """Search a schema for objects with open names; if unsure, report some."""
    walk = _Walk(Document(schema))
    try:
        walk.visit(schema)
    except UnsupportedError:
        return OpenNames(any=True, may_run_out=True, too_few=walk.too_few)
    unique = walk.unique_items
    return OpenNames(walk.open or unique, walk.may_run_out, walk.too_few, unique)


class _Walk:
    """Visits every position of a document that describes a separate value."""

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
        """True if an array restricts its strings."""
        items = [self._document.target(schema) for schema in subschemas(array, "items")]
        return any(significant(schema) - {"type", "minLength"} for schema in items if isinstance(schema, dict))

    def _shut(self, node: Schema, kind: str, depth: int = 0) -> bool:
        """True if no value of a type matches a node that leaves members undescribed."""
        self._document.count()
        if isinstance(node, bool):
            return not node
        if depth > 16:  # circular references, which are refused elsewhere
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
        """Yield a node and all subschemas that apply to the same value."""
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
"""Most names that are enumerated; a pattern that matches as many counts as unlimited."""
_LONGEST = 32
"""Bytes of the longest enumerated name."""
_TRIES = 2000


def has_too_few_names(node: Mapping[str, object]) -> bool:
    """True if a node requires more properties than it lists and its patterns match."""
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
    """Names that a pattern matches; None if there are `enough`, or the search exceeds its limits."""
    for longest in (4, _LONGEST):
        search = _Search(pattern, enough, longest)
        if search.run() and not search.cut:
            return None if len(search.found) >= enough else search.found
    return None


def is_endless(pattern: str) -> bool:
    """True if every prefix of a matching name certainly has unlimited continuations."""
    return all(
        not branch.startswith("^") or not _ENDS.search(branch) or (branch.endswith("$") and _repeats(branch[1:-1]))
        for branch in _branches(pattern)
    )


def _repeats(part: str) -> bool:
    """True if a part of a pattern ends in an unbounded repetition and nothing in it ends a name."""
    if _ENDS.search(part):
        return False
    group = _GROUP.fullmatch(part)
    if group is not None and len(_branches(part)) == 1:
        return all(map(_repeats, _branches(group[1])))
    return _REPEATED.search(part) is not None and len(_branches(part)) == 1


def _branches(pattern: str) -> list[str]:
    """Top-level alternatives of a pattern."""
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
    """Depth-first search over the bytes of names."""

    def __init__(self, pattern: str, enough: int, longest: int) -> None:
        self._pattern = pattern
        self._enough = enough
        self._longest = longest
        self._tries = _TRIES
        self.found: set[str] = set()
        self.cut = False
        """Longer names than those tried may exist."""

    def run(self) -> bool:
        """Search; return True if it was exhaustive or found enough."""
        try:
            self._try(string_matcher(self._pattern).deep_copy(), b"")
        except PatternError:
            return False
        return self._tries > 0

    def _try(self, at: LLMatcher, text: bytes) -> None:
        """Try all continuations of a text, which includes the quotes."""
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
