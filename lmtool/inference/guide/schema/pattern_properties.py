"""`patternProperties` that match any name, or only certain ones, written without a pattern."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, cast

from lmtool.inference.guide.schema.document import ASSERTIONS, Document, Schema, all_of, named_schemas, significant
from lmtool.inference.guide.schema.strings import literals
from lmtool.inference.guide.schema_walk import changed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_ASSERTIONS = re.compile(r"[$^]|\\[bBAZz]|\(\?(?!:)")
_ANY_TEXT = re.compile(r"\^?(?:\[\\s\\S\]|\[\\S\\s\])(?:\*|\{0,\})\$?")
_ANY_LINE = frozenset({"^.*$", ".*$", "^(.*)$", "^.*?$"})
_MOST_NAMES = 200


def write_pattern_properties(node: dict[str, object], document: Document) -> list[Schema]:
    """Take such patterns out of a node, and join those that ask for the same; nothing else must hold instead.

    The library wants patterns of which no two match the same name.
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
    """Whether it is certain that a pattern is found in every name; names with line breaks do not count."""
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
    """What all parts allow; each part once, and arrays as one, so that few schemas must be joined."""
    different: dict[str, Schema] = {}
    for part in parts:
        said = changed(part, lambda node: {name: node[name] for name in node if name in ASSERTIONS})
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
    """Whether a node says nothing but what an array's items are, and how many."""
    plain = node.get("type") == "array" and isinstance(node.get("items"), dict)
    return plain and significant(node) <= {"type", "items", "minItems", "maxItems"}


def _bounds(keyword: str, nodes: Iterable[dict[str, object]]) -> list[float]:
    return [bound for node in nodes if isinstance(bound := node.get(keyword), int | float)]


def _merged(patterns: Mapping[str, Schema]) -> dict[str, Schema]:
    """One pattern for those without a beginning or end that ask for the same."""
    merged: dict[str, Schema] = {}
    for pattern, schema in patterns.items():
        same = next((other for other, its in merged.items() if its == schema and not _ASSERTIONS.search(other)), None)
        if same is None or _ASSERTIONS.search(pattern):
            merged[pattern] = schema
        else:
            merged = {(f"(?:{same})|(?:{pattern})" if other == same else other): its for other, its in merged.items()}
    return merged
