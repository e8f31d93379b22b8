"""Whether a JSON Schema allows objects whose names it does not list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmtool.inference.guide.name_patterns import has_too_few_names, is_endless
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
    from collections.abc import Iterator

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
