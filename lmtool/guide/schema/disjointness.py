"""Proofs that no instance matches two schemas at once."""

from __future__ import annotations

from itertools import product

from lmtool.guide.schema.document import (
    Document,
    Schema,
    UnsupportedError,
    listed_values,
    named_schemas,
    names,
    schemas,
    type_name,
    types_of,
)

_MAX_DEPTH = 6


def are_disjoint(one: Schema, other: Schema, document: Document, depth: int = 0) -> bool:
    """Whether it is certain that no instance matches both; False where that is not known."""
    document.count()
    if depth > _MAX_DEPTH:
        return False
    one, other = document.target(one), document.target(other)
    if one is False or other is False:
        return True
    if isinstance(one, bool) or isinstance(other, bool):
        return False
    if _different_types(one, other) or _different_values(one, other) or _different_bounds(one, other):
        return True
    if _only_objects(one) and _only_objects(other) and _different_properties(one, other, document, depth):
        return True
    return _parts_disjoint(one, other, document, depth) or _parts_disjoint(other, one, document, depth)


def _different_types(one: dict[str, object], other: dict[str, object]) -> bool:
    first, second = types_of(one), types_of(other)
    if first is None or second is None:
        return False
    return not any(a == b or {a, b} == {"integer", "number"} for a, b in product(first, second))


def _different_values(one: dict[str, object], other: dict[str, object]) -> bool:
    first, second = listed_values(one), listed_values(other)
    if first is None or second is None:
        return False
    return not any(a == b and _same_type(a, b) for a, b in product(first, second))


def _same_type(one: object, other: object) -> bool:
    return isinstance(one, bool) == isinstance(other, bool) and (
        type_name(one) == type_name(other) or {type_name(one), type_name(other)} <= {"integer", "number"}
    )


_RANGES = (("minimum", "maximum", "integer"), ("minLength", "maxLength", "string"), ("minItems", "maxItems", "array"))


def _different_bounds(one: dict[str, object], other: dict[str, object]) -> bool:
    """Whether both are about one type alone, and one begins where the other has ended."""
    for low, high, kind in _RANGES:
        about = {kind, "number"} if kind == "integer" else {kind}
        if not all((types_of(schema) or {""}) <= about for schema in (one, other)):
            continue
        for first, second in ((one, other), (other, one)):
            least, most = first.get(low), second.get(high)
            if isinstance(least, int | float) and isinstance(most, int | float) and least > most:
                return True
    return False


def _only_objects(schema: dict[str, object]) -> bool:
    return types_of(schema) == frozenset({"object"})


def _different_properties(one: dict[str, object], other: dict[str, object], document: Document, depth: int) -> bool:
    mine = named_schemas(one.get("properties", {}), "properties")
    its = named_schemas(other.get("properties", {}), "properties")
    needed, its_needed = _required(one), _required(other)
    if any(_forbids(other, name) for name in needed) or any(_forbids(one, name) for name in its_needed):
        return True
    shared = [name for name in needed + its_needed if name in mine and name in its]
    return any(are_disjoint(mine[name], its[name], document, depth + 1) for name in shared)


def _required(schema: dict[str, object]) -> list[str]:
    return names(schema.get("required", []), "required")


def _forbids(schema: dict[str, object], name: str) -> bool:
    properties = named_schemas(schema.get("properties", {}), "properties")
    if name in properties:
        return properties[name] is False
    return schema.get("additionalProperties") is False and "patternProperties" not in schema


def _parts_disjoint(one: dict[str, object], other: dict[str, object], document: Document, depth: int) -> bool:
    """Whether a part that must match excludes the other schema, or each of those of which one must match."""
    try:
        if any(are_disjoint(part, other, document, depth + 1) for part in schemas(one.get("allOf", []), "allOf")):
            return True
        if "$ref" in one and are_disjoint(document.resolve(one["$ref"]), other, document, depth + 1):
            return True
        for keyword in ("anyOf", "oneOf"):
            parts = schemas(one.get(keyword, []), keyword)
            if parts and all(are_disjoint(part, other, document, depth + 1) for part in parts):
                return True
    except UnsupportedError:
        return False
    return False
