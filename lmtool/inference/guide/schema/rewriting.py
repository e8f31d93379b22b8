"""Rewrites a JSON Schema: each keyword that the library lacks in terms of those that it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from lmtool.inference.guide.schema.arrays import write_contains, write_unique_items
from lmtool.inference.guide.schema.combinators import write_dependencies, write_if, write_not, write_one_of
from lmtool.inference.guide.schema.document import ASSERTIONS, Document, Schema
from lmtool.inference.guide.schema.objects import write_property_counts, write_property_names
from lmtool.inference.guide.schema.pattern_properties import write_pattern_properties
from lmtool.inference.guide.schema.repeated_strings import check_repeats
from lmtool.inference.guide.schema.strings import SUPPORTED_FORMATS, write_format
from lmtool.inference.guide.schema.unevaluated import write_unevaluated
from lmtool.inference.guide.schema.values import allowed_values

if TYPE_CHECKING:
    from collections.abc import Callable

_MAPS = ("properties", "patternProperties", "$defs")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "contains")

_TOGETHER = (
    {"properties", "patternProperties", "additionalProperties"},
    {"items", "prefixItems"},
)
"""Keywords whose meaning depends on one another."""

_WRITERS: tuple[tuple[frozenset[str], Callable[[dict[str, object], Document], list[Schema]]], ...] = (
    (frozenset({"unevaluatedProperties", "unevaluatedItems"}), write_unevaluated),
    (frozenset({"dependentRequired", "dependentSchemas"}), write_dependencies),
    (frozenset({"if"}), write_if),
    (frozenset({"not"}), write_not),
    (frozenset({"oneOf"}), write_one_of),
    (frozenset({"propertyNames"}), write_property_names),
    (frozenset({"minProperties", "maxProperties"}), write_property_counts),
    (frozenset({"patternProperties"}), write_pattern_properties),
    (frozenset({"uniqueItems"}), write_unique_items),
    (frozenset({"contains"}), write_contains),
)
"""Keywords, and the function that takes them out of a node and returns the schemas that must hold instead."""


_NEEDED = {"then": {"if"}, "else": {"if"}, "minContains": {"contains"}, "maxContains": {"contains"}}
"""Keywords that say nothing without another one."""
_COUNTS = frozenset(f"{end}{of}" for end in ("min", "max") for of in ("Length", "Items", "Properties", "Contains"))


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A schema without the keywords that the library lacks."""

    schema: Schema
    narrowed: tuple[str, ...]
    """In which ways it allows fewer texts than the original; never more."""
    impossible: tuple[str, ...] = ()
    """Why parts of it match nothing."""


def rewrite(schema: Schema) -> Rewritten:
    """Return a schema that allows the same, or less where it says so. schema: see `in_2020_12`.

    Raises `UnsupportedError`, which names the keyword, where that cannot be done.
    """
    document = Document(schema)
    written = _rewrite(schema, document)
    check_repeats(written, document)
    return Rewritten(written, tuple(document.narrowed), tuple(document.impossibilities))


def _rewrite(schema: Schema, document: Document) -> Schema:
    document.count()
    if isinstance(schema, bool):
        return schema
    with document.deeper():
        return _rewrite_node(schema, document)


def _rewrite_node(schema: dict[str, object], document: Document) -> Schema:
    node = {name: _count(name, value) for name, value in schema.items() if schema.keys() & _NEEDED.get(name, {name})}
    if (values := allowed_values(node, document)) is not None:
        return _listed(node, values, document)
    required = _format(node, document)
    for keywords, write in _WRITERS:
        if node.keys() & keywords:
            required += write(node, document)
    written = _inside(node, document)
    parts = [_rewrite(part, document) for part in required if part not in (True, {})]
    return _joined(written, parts)


def _count(keyword: str, value: object) -> object:
    """The value of a keyword; a count may be written with a point and a zero."""
    return int(value) if keyword in _COUNTS and isinstance(value, float) and value.is_integer() else value


def _listed(node: dict[str, object], values: list[object], document: Document) -> Schema:
    """A node of no more than these values."""
    if not values:
        document.impossible("none of the values that 'const' or 'enum' lists is valid under the keywords beside it")
        return False
    annotations = {name: part for name, part in node.items() if name not in ASSERTIONS}
    return {**_inside(annotations, document), "enum": values}


def _joined(node: dict[str, object], parts: list[Schema]) -> Schema:
    if not parts:
        return node
    if any(part is False for part in parts):
        return False
    [first, *others] = parts
    if not others and isinstance(first, dict) and not _meet(first, node):
        return {**node, **first}
    already = node.get("allOf")
    return {**node, "allOf": [*(already if isinstance(already, list) else []), *parts]}


def _meet(one: dict[str, object], other: dict[str, object]) -> bool:
    """Whether two nodes say something of the same, so that they cannot be written as one."""
    return bool(one.keys() & other.keys()) or any(one.keys() & of and other.keys() & of for of in _TOGETHER)


def _inside(node: dict[str, object], document: Document) -> dict[str, object]:
    """Rewrite the schemas within a node."""
    written = dict(node)
    for keyword in _SINGLE:
        if isinstance(value := node.get(keyword), bool | dict):
            written[keyword] = _rewrite(cast("Schema", value), document)
    for keyword in _LISTS:
        if isinstance(value := node.get(keyword), list):
            written[keyword] = [_rewrite_any(entry, document) for entry in value]
    for keyword in _MAPS:
        if isinstance(value := node.get(keyword), dict):
            written[keyword] = {name: _rewrite_any(entry, document) for name, entry in value.items()}
    return written


def _rewrite_any(value: object, document: Document) -> object:
    return _rewrite(cast("Schema", value), document) if isinstance(value, bool | dict) else value


def _format(node: dict[str, object], document: Document) -> list[Schema]:
    name = node.get("format")
    if name is None or (isinstance(name, str) and name in SUPPORTED_FORMATS):
        return []
    pattern, warning = write_format(name)
    del node["format"]
    if warning is not None:
        document.narrow(warning)
    return [] if pattern is None else [{"pattern": pattern}]
