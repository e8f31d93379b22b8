"""`propertyNames`, `minProperties` and `maxProperties`, written with properties that are named."""

from __future__ import annotations

from itertools import combinations
from math import comb

from lmtool.inference.guide.name_patterns import PatternError, has_too_few_names, matches
from lmtool.inference.guide.schema.document import (
    Document,
    Schema,
    UnsupportedError,
    any_of,
    listed_values,
    named_schemas,
    names,
    schemas,
    significant,
)

_MAX_CHOICES = 60
_MOST_OPTIONAL = 4
"""Optional properties beside others that are counted with them: each may be there or not."""


def write_property_names(node: dict[str, object], document: Document) -> list[Schema]:
    """Take `propertyNames` out of a node: only properties of such names, whatever they hold."""
    [allowed] = schemas([node.pop("propertyNames")], "propertyNames")
    allowed = document.target(allowed)
    if allowed is False:
        return [{"maxProperties": 0}]
    if allowed is True or not significant(allowed) - {"type"}:
        return []
    patterned = names_pattern(allowed)
    if isinstance(patterned, list):
        return _allow_only(node, patterned)
    if "patternProperties" in node:
        raise UnsupportedError("propertyNames", "beside patternProperties is not supported")
    properties = named_schemas(node.get("properties", {}), "properties")
    if properties:
        node["properties"] = {name: _if_matched(patterned, name, properties[name]) for name in properties}
    others = node.pop("additionalProperties", True)
    further: dict[str, object] = {} if others is False else {"patternProperties": {patterned: others}}
    node |= {**further, "additionalProperties": False}
    return []


def _if_matched(pattern: str, name: str, schema: Schema) -> Schema:
    """The schema of a property whose name must match, which is none where it does not."""
    try:
        return schema if matches(pattern, name) else False
    except PatternError as problem:
        raise UnsupportedError("propertyNames", f"has a pattern that is not supported: {problem}") from None


def names_pattern(allowed: dict[str, object]) -> str | list[str]:
    """Return the pattern of the names that a schema allows, or all of them. Raises `UnsupportedError`."""
    keywords = significant(allowed) - {"type"}
    if keywords in ({"enum"}, {"const"}):
        return [value for value in listed_values(allowed) or () if isinstance(value, str)]
    if keywords == {"pattern"}:
        return str(allowed["pattern"])
    if keywords <= {"minLength", "maxLength"}:
        return f"^[\\s\\S]{{{allowed.get('minLength', 0)},{allowed.get('maxLength', '')}}}$"
    raise UnsupportedError("propertyNames", f"with {', '.join(sorted(keywords))} is not supported")


def _allow_only(node: dict[str, object], allowed: list[str]) -> list[Schema]:
    if "patternProperties" in node:
        raise UnsupportedError("propertyNames", "beside patternProperties is not supported")
    properties = named_schemas(node.get("properties", {}), "properties")
    others = node.pop("additionalProperties", True)
    node["properties"] = {name: properties.get(name, others) for name in allowed}
    node["additionalProperties"] = False
    return []


def write_property_counts(node: dict[str, object], document: Document) -> list[Schema]:
    """Take `minProperties` and `maxProperties` out of a node where only some properties are required."""
    if has_too_few_names(node):
        document.impossible(f"'minProperties' is {node['minProperties']}, and there are not as many names")
        return [False]
    properties = named_schemas(node.get("properties", {}), "properties")
    required = names(node.get("required", []), "required")
    optional = [name for name in properties if name not in required and properties[name] is not False]
    if not optional:
        return []
    least, most = node.get("minProperties", 0), node.get("maxProperties")
    if not isinstance(least, int) or not isinstance(most, int | None):
        raise UnsupportedError("minProperties", "is no integer")
    if node.get("additionalProperties", True) is not False or "patternProperties" in node:
        if most is None and least <= len(required):
            node.pop("minProperties", None)
            return []
        if "patternProperties" in node or least > len(optional) + len(required):
            return [_beside_others(optional)]
        document.narrow("where properties are counted, only those that the schema names are used")
        node["additionalProperties"] = False
    node.pop("minProperties", None)
    node.pop("maxProperties", None)
    return [*_at_least(optional, least - len(required)), *_at_most(optional, required, most)]


def _beside_others(optional: list[str]) -> Schema:
    """Each of the optional properties is there or not: the library counts others beside properties that must be."""
    if len(optional) > _MOST_OPTIONAL:
        why = f"where others are counted with more than {_MOST_OPTIONAL} optional properties is not supported"
        raise UnsupportedError("minProperties", why)
    chosen = [some for count in range(len(optional) + 1) for some in combinations(optional, count)]
    return any_of(
        [
            {"required": list(some), "properties": {name: False for name in optional if name not in some}}
            for some in chosen
        ]
    )


def _at_least(optional: list[str], count: int) -> list[Schema]:
    if count <= 0:
        return []
    if count > len(optional):
        return [False]
    _check("minProperties", len(optional), count)
    return [any_of([{"required": list(chosen)} for chosen in combinations(optional, count)])]


def _at_most(optional: list[str], required: list[str], most: int | None) -> list[Schema]:
    if most is None or most >= len(optional) + len(required):
        return []
    absent = len(optional) + len(required) - most
    if absent > len(optional):
        return [False]
    _check("maxProperties", len(optional), absent)
    chosen = combinations(optional, absent)
    return [any_of([{"properties": dict.fromkeys(some, False)} for some in chosen])]


def _check(keyword: str, count: int, chosen: int) -> None:
    if comb(count, chosen) > _MAX_CHOICES:
        raise UnsupportedError(keyword, f"leaves more than {_MAX_CHOICES} choices of properties")
