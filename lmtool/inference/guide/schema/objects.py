"""Object keywords that llguidance lacks: `propertyNames`, property counts and overlapping `patternProperties`."""

from __future__ import annotations

import json
import re
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING, cast

from lmtool.inference.guide.dialects import map_schemas
from lmtool.inference.guide.patterns import PatternError, matches
from lmtool.inference.guide.schema.document import (
    ASSERTIONS,
    Document,
    Schema,
    UnsupportedError,
    all_of,
    any_of,
    listed_values,
    named_schemas,
    names,
    schemas,
    significant,
)
from lmtool.inference.guide.schema.open_names import has_too_few_names
from lmtool.inference.guide.schema.strings import literals

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


_MAX_CHOICES = 60
_MOST_OPTIONAL = 4
"""Most optional properties that are counted together with unlisted ones: all subsets are enumerated."""


def write_property_names(node: dict[str, object], document: Document) -> list[Schema]:
    """Replace `propertyNames`: allow only properties whose names match."""
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
    """Schema of a property if its name matches, else false."""
    try:
        return schema if matches(pattern, name) else False
    except PatternError as problem:
        raise UnsupportedError("propertyNames", f"has a pattern that is not supported: {problem}") from None


def names_pattern(allowed: dict[str, object]) -> str | list[str]:
    """Return the pattern, or the list, of names that a schema allows. Raises `UnsupportedError`."""
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
    """Replace `minProperties` and `maxProperties` if only some properties are required."""
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
    """One alternative per subset of the optional properties: the library counts others only next to required ones."""
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


_ASSERTIONS = re.compile(r"[$^]|\\[bBAZz]|\(\?(?!:)")
_ANY_TEXT = re.compile(r"\^?(?:\[\\s\\S\]|\[\\S\\s\])(?:\*|\{0,\})\$?")
_ANY_LINE = frozenset({"^.*$", ".*$", "^(.*)$", "^.*?$"})
_MOST_NAMES = 200


def write_pattern_properties(node: dict[str, object], document: Document) -> list[Schema]:
    """Replace patterns that match every name or only certain names, and join those with equal schemas.

    The library requires that no two patterns match the same name.
    """
    patterns = named_schemas(node["patternProperties"], "patternProperties")
    properties = named_schemas(node.get("properties", {}), "properties")
    if any(pattern in _ANY_LINE for pattern in patterns):
        document.narrow("what is asked of names without a line break is asked of all names")
    every = [schema for pattern, schema in patterns.items() if matches_all(pattern)]
    listed = {pattern: found[0] for pattern in patterns if (found := literals(pattern)) is not None and found[1]}
    named = list(dict.fromkeys([*properties, *(name for names in listed.values() for name in names)]))
    if len(named) > max(_MOST_NAMES, len(properties)):
        listed, named = {}, list(properties)
    left = {name: schema for name, schema in patterns.items() if name not in listed and not matches_all(name)}
    if every or listed:
        node["properties"] = {
            name: _all(
                [
                    *([properties[name]] if name in properties else []),
                    *(patterns[pattern] for pattern, names in listed.items() if name in names),
                    *every,
                ]
            )
            for name in named
        }
    if every:
        node["additionalProperties"] = _all(every)
        left = {pattern: _all([schema, *every]) for pattern, schema in left.items()}
    node.pop("patternProperties")
    if left:
        node["patternProperties"] = _merged(left)
    return []


def matches_all(pattern: str) -> bool:
    """True if a pattern is certainly found in every name without line breaks."""
    if pattern in _ANY_LINE or _ANY_TEXT.fullmatch(pattern):
        return True
    body = pattern.removeprefix("^")
    if _ASSERTIONS.search(body):
        return False
    try:
        return re.fullmatch(body, "") is not None
    except (re.error, RecursionError, OverflowError):
        return False


def _all(parts: Iterable[Schema]) -> Schema:
    """Conjunction of parts without duplicates, with arrays merged, so that few schemas are joined."""
    different: dict[str, Schema] = {}
    for part in parts:
        said = map_schemas(part, lambda node: {name: node[name] for name in node if name in ASSERTIONS})
        different.setdefault(json.dumps(said, sort_keys=True), part)
    arrays = [part for part in different.values() if isinstance(part, dict) and _only_items(part)]
    if len(arrays) < 2 or len(arrays) < len(different):
        return all_of(different.values())
    return {
        "type": "array",
        "items": _all(cast("Schema", array["items"]) for array in arrays),
        **{name: max(bounds) for name in ("minItems",) if (bounds := _bounds(name, arrays))},
        **{name: min(bounds) for name in ("maxItems",) if (bounds := _bounds(name, arrays))},
    }


def _only_items(node: dict[str, object]) -> bool:
    """True if a node only describes the items of an array and their number."""
    plain = node.get("type") == "array" and isinstance(node.get("items"), dict)
    return plain and significant(node) <= {"type", "items", "minItems", "maxItems"}


def _bounds(keyword: str, nodes: Iterable[dict[str, object]]) -> list[float]:
    return [bound for node in nodes if isinstance(bound := node.get(keyword), int | float)]


def _merged(patterns: Mapping[str, Schema]) -> dict[str, Schema]:
    """Merge unanchored patterns with equal schemas."""
    merged: dict[str, Schema] = {}
    for pattern, schema in patterns.items():
        same = next((other for other, its in merged.items() if its == schema and not _ASSERTIONS.search(other)), None)
        if same is None or _ASSERTIONS.search(pattern):
            merged[pattern] = schema
        else:
            merged = {(f"(?:{same})|(?:{pattern})" if other == same else other): its for other, its in merged.items()}
    return merged
