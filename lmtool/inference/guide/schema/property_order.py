"""The order of properties: that of the schema, a node's own before those of the schemas that it is joined with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lmtool.inference.guide.schema_walk import changed

if TYPE_CHECKING:
    from lmtool.inference.guide.schema.document import Schema

_JOINED = ("allOf", "anyOf", "oneOf", "if")
_MAX_NAMES = 200


def in_order(schema: Schema) -> Schema:
    """The schema, which allows the same, with a first part where the library would put other properties first.

    It takes properties in the order in which it meets them, and looks at `allOf` before all else. The same object where
    there is nothing to change.
    """
    ordered: Schema = changed(schema, _ordered)
    return ordered


def _ordered(node: dict[str, Any]) -> dict[str, Any]:
    properties, every = node.get("properties"), node.get("allOf", [])
    if not isinstance(properties, dict) or not 0 < len(properties) <= _MAX_NAMES or not isinstance(every, list):
        return node
    first = {"properties": dict.fromkeys(properties, True)}
    return {**node, "allOf": [first, *every]} if any(key in node for key in _JOINED) else node
