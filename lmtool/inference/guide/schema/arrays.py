"""Array keywords that llguidance lacks: `uniqueItems` and `contains`."""

from __future__ import annotations

import json
from itertools import combinations, permutations
from math import perm
from typing import TYPE_CHECKING

from lmtool.inference.guide.schema.document import (
    ALL_TYPES,
    UNIQUE,
    Document,
    Schema,
    UnsupportedError,
    all_of,
    any_of,
    listed_values,
    may_be,
    schemas,
    significant,
    subschemas,
    types_of,
)
from lmtool.inference.guide.schema.negation import negation
from lmtool.inference.guide.schema.satisfiability import allowed_values

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


_MAX_ARRAYS = 2000
_PLACES = 4


def write_unique_items(node: dict[str, object], document: Document) -> list[Schema]:
    """Remove `uniqueItems` from a node; list all possible arrays if the items have few values.

    Arrays of other strings are kept unique while they are generated.
    """
    if node.pop("uniqueItems") is not True or not may_be(node, "array") or _count(node, "maxItems", 2) <= 1:
        return []
    items = document.target(_items(node, "uniqueItems"))
    values = _few_values(items, document)
    if values is None:
        node[UNIQUE] = document.unique_items = True
        return []
    least = max(_count(node, "minItems", 0), 0)
    most = min(_count(node, "maxItems", len(values)), len(values))
    lengths = range(least, most + 1)
    if sum(perm(len(values), length) for length in lengths) > _MAX_ARRAYS:
        if not all(isinstance(value, str) for value in values):
            raise UnsupportedError("uniqueItems", f"leaves more than {_MAX_ARRAYS} arrays of the {len(values)} values")
        document.unique_items = True
        node |= {UNIQUE: True, "maxItems": most}
        return []
    arrays = [list(array) for length in lengths for array in permutations(values, length)]
    for keyword in ("items", "minItems", "maxItems"):
        node.pop(keyword, None)
    return [any_of([*_other_types(node), {"enum": arrays} if arrays else False])]


def _few_values(items: Schema, document: Document) -> list[object] | None:
    """Values of the items; None if they are arbitrary strings. Raises `UnsupportedError` for others."""
    document.count()
    if isinstance(items, dict):
        if (values := allowed_values(items, document)) is not None:
            return list({json.dumps(value, sort_keys=True): value for value in values}.values())
        if types_of(items) == frozenset({"boolean"}):
            return [False, True]
        if types_of(items) == frozenset({"string"}):
            return None
    raise UnsupportedError("uniqueItems", "is supported for strings, and for other items of few values, only")


def write_contains(node: dict[str, object], document: Document) -> list[Schema]:
    """Remove `contains` from a node: the matching items come at some of the first positions."""
    [contained] = schemas([node.pop("contains")], "contains")
    least, most = node.pop("minContains", 1), node.pop("maxContains", None)
    if isinstance(least, bool) or not isinstance(least, int) or not isinstance(most, int | None):
        raise UnsupportedError("contains", "has minContains or maxContains that is no count")
    if (least <= 0 and most is None) or not may_be(node, "array"):
        return []
    items = _items(node, "contains")
    longest, at_least = _count(node, "maxItems", 1 << 30), _count(node, "minItems", 0)
    if longest > _PLACES:
        document.narrow(f"what an array must contain is put at some of its first {_PLACES} places")
    node.pop("items", None)
    other = items
    if most is not None:
        other = all_of([items, any_of(negation(contained, items, document))])
    places = range(min(longest, _PLACES))
    ways: list[Schema] = []
    for count in range(max(least, 0), min(least if most is None else most, len(places)) + 1):
        for chosen in combinations(places, count):
            last = chosen[-1] + 1 if chosen else 0
            prefix = [all_of([items, contained]) if at in chosen else other for at in range(last)]
            way: dict[str, object] = {"type": "array", "items": other, "minItems": max(last, at_least)}
            ways.append({**way, "prefixItems": prefix} if prefix else way)
    return [any_of([*_other_types(node), *ways])]


def _items(node: dict[str, object], keyword: str) -> Schema:
    if "prefixItems" in node:
        raise UnsupportedError(keyword, "beside items at fixed places is not supported")
    [items] = schemas([node.get("items", True)], "items")
    return items


def _other_types(node: dict[str, object]) -> list[Schema]:
    others = [kind for kind in sorted(ALL_TYPES - {"array"}) if may_be(node, kind)]
    return [{"type": others}] if others else []


def _count(node: dict[str, object], keyword: str, default: int) -> int:
    value = node.get(keyword, default)
    return int(value) if isinstance(value, int | float) else default


_WITHIN = (
    "items", "prefixItems", "properties", "patternProperties", "additionalProperties", "allOf",
    "anyOf", "oneOf",
)  # fmt: skip


def check_repeats(schema: Schema, document: Document) -> None:
    """Raise `UnsupportedError` if strings are kept unique and another array may need one twice.

    Records in the document if other arrays lose repeated strings. schema: the rewritten document.
    """
    if not document.unique_items:
        return
    nodes = list(_nodes(schema, Document(schema)))
    for node in nodes:
        if any(map(_repeats, listed_values(node) or ())) or (UNIQUE not in node and _limited(node, Document(schema))):
            raise UnsupportedError(
                "uniqueItems", "beside arrays in which certain strings may come twice is not supported"
            )
    if any(UNIQUE not in node and node.keys() & {"items", "prefixItems"} for node in nodes):
        document.narrow("where strings of one array must be unique, those of the others are, too")


def _nodes(schema: Schema, document: Document) -> Iterator[dict[str, object]]:
    waiting: list[Schema] = [schema]
    visited: set[int] = set()
    while waiting:
        node = waiting.pop()
        if isinstance(node, bool) or id(node) in visited:
            continue
        visited.add(id(node))
        yield node
        waiting += subschemas(node, *_WITHIN)
        if "$ref" in node:
            waiting.append(document.resolve(node["$ref"]))


def _repeats(value: object) -> bool:
    """True if an array in a value has a string twice."""
    if isinstance(value, dict):
        return any(map(_repeats, value.values()))
    if not isinstance(value, list):
        return False
    texts = [text for text in value if isinstance(text, str)]
    return len({*texts}) < len(texts) or any(map(_repeats, value))


def _limited(node: Mapping[str, object], document: Document) -> bool:
    """True if a node restricts its string items to certain strings."""
    items = [document.target(schema) for schema in subschemas(node, "items", "prefixItems")]
    strings = [one for one in items if isinstance(one, dict) and may_be(one, "string")]
    return any(significant(one) - {"type", "minLength"} for one in strings)
