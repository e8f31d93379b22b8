"""Rewrites a JSON Schema for llguidance: unsupported keywords, property order and references."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from lmtool.inference.guide.dialects import map_schemas
from lmtool.inference.guide.schema.arrays import check_repeats, write_contains, write_unique_items
from lmtool.inference.guide.schema.combinators import (
    write_dependencies,
    write_if,
    write_not,
    write_one_of,
    write_unevaluated,
)
from lmtool.inference.guide.schema.document import ASSERTIONS, Document, Schema, UnsupportedError, significant
from lmtool.inference.guide.schema.objects import write_pattern_properties, write_property_counts, write_property_names
from lmtool.inference.guide.schema.satisfiability import allowed_values
from lmtool.inference.guide.schema.strings import SUPPORTED_FORMATS, write_format

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmtool.inference.guide.schema.document import Schema


_MAPS = ("properties", "patternProperties", "$defs")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "contains")

_TOGETHER = (
    {"properties", "patternProperties", "additionalProperties"},
    {"items", "prefixItems"},
)
"""Keywords whose meanings depend on each other."""

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
"""Keywords, with the function that removes them from a node and returns the schemas that replace them."""


_NEEDED = {"then": {"if"}, "else": {"if"}, "minContains": {"contains"}, "maxContains": {"contains"}}
"""Keywords without effect unless another one is present."""
_COUNTS = frozenset(f"{end}{of}" for end in ("min", "max") for of in ("Length", "Items", "Properties", "Contains"))


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A schema with only the keywords that the library supports."""

    schema: Schema
    narrowed: tuple[str, ...]
    """Restrictions beyond those of the original; it never allows more."""
    impossible: tuple[str, ...] = ()
    """Reasons why parts of it match nothing."""


def rewrite(schema: Schema) -> Rewritten:
    """Rewrite a schema to an equivalent or, with a note in `narrowed`, stricter one. schema: see `in_2020_12`.

    Raises `UnsupportedError` with the keyword if that is impossible.
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
    return _with_parts(written, parts)


def _count(keyword: str, value: object) -> object:
    """Value of a keyword; a count such as 2.0 becomes an int."""
    return int(value) if keyword in _COUNTS and isinstance(value, float) and value.is_integer() else value


def _listed(node: dict[str, object], values: list[object], document: Document) -> Schema:
    """Node that allows only these values."""
    if not values:
        document.impossible("none of the values that 'const' or 'enum' lists is valid under the keywords beside it")
        return False
    annotations = {name: part for name, part in node.items() if name not in ASSERTIONS}
    return {**_inside(annotations, document), "enum": values}


def _with_parts(node: dict[str, object], parts: list[Schema]) -> Schema:
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
    """True if two nodes share or relate keywords, so that they cannot be merged."""
    return bool(one.keys() & other.keys()) or any(one.keys() & of and other.keys() & of for of in _TOGETHER)


def _inside(node: dict[str, object], document: Document) -> dict[str, object]:
    """Rewrite the subschemas of a node."""
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


_WITH_PROPERTIES = ("allOf", "anyOf", "oneOf", "if")
_MAX_NAMES = 200


def in_order(schema: Schema) -> Schema:
    """Return an equivalent schema whose properties the library generates in schema order.

    The library takes properties in the order in which it meets them, and reads `allOf` before anything else.
    Returns the same object if nothing changes.
    """
    ordered: Schema = map_schemas(schema, _ordered)
    return ordered


def _ordered(node: dict[str, Any]) -> dict[str, Any]:
    properties, every = node.get("properties"), node.get("allOf", [])
    if not isinstance(properties, dict) or not 0 < len(properties) <= _MAX_NAMES or not isinstance(every, list):
        return node
    first = {"properties": dict.fromkeys(properties, True)}
    return {**node, "allOf": [first, *every]} if any(key in node for key in _WITH_PROPERTIES) else node


_IN_PLACE = ("allOf", "anyOf", "oneOf")
_MEMBERS = ("items", "additionalProperties", "prefixItems", "properties", "patternProperties")
_MAX_JOINED_DEPTH = 32


def joined(schema: Schema) -> Schema:
    """Return an equivalent schema with targets in place of references that are combined with other keywords.

    The library can combine a reference with other schemas only after it has read everything reachable from it, which
    fails for circular references. Raises `UnsupportedError` for a reference that leads back to its own position.
    """
    return schema if isinstance(schema, bool) else _Joiner(schema).run()


class _Joiner:
    """Names the nodes that combine references with other keywords, so that they can refer to each other."""

    def __init__(self, root: dict[str, object]) -> None:
        self._root = root
        self._document = Document(root)
        self._names: dict[int, str] = {}
        self._defined: dict[str, object] = {}

    def run(self) -> Schema:
        defined = self._root.get("$defs")
        named = {name: self._member(value) for name, value in defined.items()} if isinstance(defined, dict) else {}
        content = self._member({name: value for name, value in self._root.items() if name != "$defs"})
        return {"$defs": {**named, **self._defined}, **content}

    def _member(self, node: Any) -> Any:  # noqa: ANN401  # any JSON
        """Rewrite a node that describes a separate value; a named reference if it combines references."""
        if not isinstance(node, dict):
            return node
        if not self._joins(node):
            parts = {name: self._member_list(node[name]) for name in _IN_PLACE if name in node}
            return {**self._members(node), **parts}
        if (name := self._names.get(id(node))) is None:
            name = self._names[id(node)] = f"joined{len(self._names)}"
            self._defined[name] = self._in_place(node, 0)
        return {"$ref": f"#/$defs/{name}"}

    def _member_list(self, parts: Any) -> Any:  # noqa: ANN401  # any JSON
        return [self._member(part) for part in parts] if isinstance(parts, list) else parts

    def _members(self, node: dict[str, object]) -> dict[str, object]:
        written = dict(node)
        for keyword in _MEMBERS:
            value = node.get(keyword)
            if isinstance(value, dict) and keyword in {"properties", "patternProperties"}:
                written[keyword] = {name: self._member(part) for name, part in value.items()}
            elif keyword in node:
                written[keyword] = self._member_list(value) if isinstance(value, list) else self._member(value)
        return written

    def _joins(self, node: dict[str, object]) -> bool:
        said = significant(node)
        several = len(said) > 1 or (isinstance(parts := node.get("allOf"), list) and len(parts) > 1)
        return several and self._refers(node)

    def _refers(self, node: Any) -> bool:  # noqa: ANN401  # any JSON
        """True if a node has references that apply to its own value."""
        if not isinstance(node, dict):
            return False
        lists = (node.get(keyword) for keyword in _IN_PLACE)
        return "$ref" in node or any(self._refers(part) for parts in lists if isinstance(parts, list) for part in parts)

    def _in_place(self, node: Any, depth: int) -> Any:  # noqa: ANN401  # any JSON
        """Rewrite a node without references that apply to its own value."""
        self._document.count()
        if depth > _MAX_JOINED_DEPTH:
            raise UnsupportedError("$ref", "leads back to itself in the same place")
        if not isinstance(node, dict):
            return node
        written = self._members(node)
        for keyword in _IN_PLACE:
            if isinstance(parts := node.get(keyword), list):
                written[keyword] = [self._in_place(part, depth + 1) for part in parts]
        if "$ref" in written:
            target = self._in_place(self._document.resolve(written.pop("$ref")), depth + 1)
            if not significant(written):
                return target
            every = written.get("allOf")
            written["allOf"] = [target, *(every if isinstance(every, list) else [])]
        return written
