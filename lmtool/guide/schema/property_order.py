"""The order of properties: that of the schema, a node's own before those of the schemas that it is joined with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lmtool.guide.schema.document import Schema

_DATA = frozenset({"const", "enum", "default", "examples"})
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"})
_JOINED = ("allOf", "anyOf", "oneOf", "if")
_MAX_NAMES = 200


def in_order(schema: Schema) -> Schema:
    """The schema, which allows the same, with a first part where the library would put other properties first.

    It takes properties in the order in which it meets them, and looks at `allOf` before all else. The same object where
    there is nothing to change.
    """
    return schema if isinstance(schema, bool) or _refers_into_all_of(schema) else _node(schema)


def _node(value: Any) -> Any:  # noqa: ANN401  # any JSON
    if isinstance(value, list):
        parts = [_node(part) for part in value]
        return value if all(new is old for new, old in zip(parts, value, strict=True)) else parts
    if not isinstance(value, dict):
        return value
    written = {keyword: _value(keyword, part) for keyword, part in value.items()}
    changed = any(written[keyword] is not value[keyword] for keyword in value)
    properties = value.get("properties")
    if isinstance(properties, dict) and 0 < len(properties) <= _MAX_NAMES and any(key in value for key in _JOINED):
        every = written.get("allOf", [])
        if isinstance(every, list):
            return {**written, "allOf": [{"properties": dict.fromkeys(properties, True)}, *every]}
    return written if changed else value


def _value(keyword: str, value: Any) -> Any:  # noqa: ANN401  # any JSON
    if keyword in _DATA:
        return value
    if keyword in _NAMED and isinstance(value, dict):
        parts = {name: _node(part) for name, part in value.items()}
        return parts if any(parts[name] is not value[name] for name in value) else value
    return _node(value)


def _refers_into_all_of(value: Any) -> bool:  # noqa: ANN401  # any JSON
    """Whether a reference counts the parts of an `allOf`."""
    if isinstance(value, list):
        return any(map(_refers_into_all_of, value))
    if not isinstance(value, dict):
        return False
    reference = value.get("$ref")
    return (isinstance(reference, str) and "/allOf/" in reference) or any(map(_refers_into_all_of, value.values()))
