"""`uniqueItems` of few values and `contains`, written as the arrays or places that they leave."""

from __future__ import annotations

import json
from itertools import combinations, permutations
from math import perm

from lmtool.inference.guide.schema.document import (
    ALL_TYPES,
    UNIQUE,
    Document,
    Schema,
    UnsupportedError,
    all_of,
    any_of,
    may_be,
    schemas,
    types_of,
)
from lmtool.inference.guide.schema.negation import negation
from lmtool.inference.guide.schema.values import allowed_values

_MAX_ARRAYS = 2000
_PLACES = 4


def write_unique_items(node: dict[str, object], document: Document) -> list[Schema]:
    """Take `uniqueItems` out of a node: all arrays that can be, where items have few values.

    Strings that are more are kept apart while they are written.
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
    """The values that items have; None where they are any strings. Raises `UnsupportedError` for others."""
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
    """Take `contains` out of a node: the items stand at some of the first places."""
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
