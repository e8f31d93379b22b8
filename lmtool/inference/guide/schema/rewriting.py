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
    return _with_parts(written, parts)


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


_WITH_PROPERTIES = ("allOf", "anyOf", "oneOf", "if")
_MAX_NAMES = 200


def in_order(schema: Schema) -> Schema:
    """The schema, which allows the same, with a first part where the library would put other properties first.

    It takes properties in the order in which it meets them, and looks at `allOf` before all else. The same object where
    there is nothing to change.
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
    """The schema, which means the same, with each target in the place of a reference that others must hold beside.

    The library can join a reference with other schemas only once it has read all that this leads to, which never comes
    about where it leads back. Raises `UnsupportedError` where that is in the same place.
    """
    return schema if isinstance(schema, bool) else _Joiner(schema).run()


class _Joiner:
    """Names the nodes in which a reference is joined with others, so that they can refer to one another."""

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
        """A node about a value of its own: a reference to one with a name where a reference is joined with others."""
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
        """Whether a node has references in its own place."""
        if not isinstance(node, dict):
            return False
        lists = (node.get(keyword) for keyword in _IN_PLACE)
        return "$ref" in node or any(self._refers(part) for parts in lists if isinstance(parts, list) for part in parts)

    def _in_place(self, node: Any, depth: int) -> Any:  # noqa: ANN401  # any JSON
        """A node without references in its own place."""
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
