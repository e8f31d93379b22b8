"""What two JSON Schemas allow both, as one schema without `allOf`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

from lmtool.guide.schema.document import ASSERTIONS, Document, Schema, UnsupportedError, schemas, types_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Node = dict[str, object]

_MAX_BRANCHES = 256
_MAX_REFERENCES = 32


def branches(schema: Schema, document: Document) -> list[Node]:
    """Return nodes that allow together what a schema allows, each without `allOf`, `anyOf` and beside-standing `$ref`.

    A reference that stands alone stays, so that a schema may hold itself. Raises `UnsupportedError`.
    """
    return _branches(schema, document, 0)


def _branches(schema: Schema, document: Document, followed: int) -> list[Node]:
    document.count()
    if isinstance(schema, bool):
        return [{}] if schema else []
    node = {name: value for name, value in schema.items() if name in ASSERTIONS}
    if node.keys() == {"$ref"}:
        return [node]
    parts = schemas(node.pop("allOf", []), "allOf")
    any_of = node.pop("anyOf", None)
    reference = node.pop("$ref", None)
    if reference is not None:
        parts = [document.resolve(reference), *parts]
    made = [node]
    for part in parts:
        made = _both(made, _resolved(part, document, followed, alone=not node and len(parts) == 1), document)
    if any_of is not None:
        options = schemas(any_of, "anyOf")
        ways = [way for option in options for way in _resolved(option, document, followed, alone=made == [{}])]
        made = _both(made, ways, document)
    return made


def _resolved(schema: Schema, document: Document, followed: int, *, alone: bool) -> list[Node]:
    """The branches of a part; references are followed where the part is not all there is."""
    if followed > _MAX_REFERENCES:
        raise UnsupportedError("$ref", "refers to itself beside other keywords")
    made = []
    for node in _branches(schema, document, followed + 1):
        if alone or "$ref" not in node:
            made.append(node)
        else:
            made += _resolved(document.resolve(node["$ref"]), document, followed + 1, alone=False)
    return made


def _both(left: list[Node], right: list[Node], document: Document) -> list[Node]:
    document.count(len(left) * len(right))
    if len(left) * len(right) > max(_MAX_BRANCHES, len(left), len(right)):
        raise UnsupportedError("anyOf", f"beside others leaves more than {_MAX_BRANCHES} combinations")
    pairs = ((one, other) for one in left for other in right)
    return [joined for one, other in pairs if (joined := conjunction(one, other)) is not None]


def conjunction(one: Node, other: Node) -> Node | None:
    """Return the node of what both allow; None where there is nothing. Raises `UnsupportedError`."""
    if not one or not other:
        return {**one, **other}
    joined = {**one, **other}
    for keyword in one.keys() & other.keys() - _OBJECTS - _ARRAYS - {"type", "enum", "const"}:
        if one[keyword] == other[keyword]:
            continue
        if keyword not in _JOINED:
            raise UnsupportedError(keyword, "is named twice, by parts that must both hold")
        joined[keyword] = _JOINED[keyword](one[keyword], other[keyword])
    if not _join_types(joined, one, other) or not _join_values(joined, one, other):
        return None
    _join_objects(joined, one, other)
    _join_arrays(joined, one, other)
    return joined


_OBJECTS = frozenset({"properties", "patternProperties", "additionalProperties"})
_ARRAYS = frozenset({"items", "prefixItems", "additionalItems"})


def _most(left: object, right: object) -> object:
    return max(cast("float", left), cast("float", right))


def _least(left: object, right: object) -> object:
    return min(cast("float", left), cast("float", right))


_JOINED: Mapping[str, Callable[[object, object], object]] = {
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"), _most),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), _least),
    "required": lambda left, right: [*cast("list[str]", left), *cast("list[str]", right)],
}


def _join_types(joined: Node, one: Node, other: Node) -> bool:
    """Whether a type is left."""
    if "type" not in one or "type" not in other:
        return True
    left, right = ({"type": node["type"]} for node in (one, other))
    mine, its = types_of(left) or frozenset(), types_of(right) or frozenset()
    kinds = mine & its
    if "integer" in mine | its and {"integer", "number"} & mine and {"integer", "number"} & its:
        kinds |= {"number"} if "number" in kinds else {"integer"}
    joined["type"] = sorted(kinds)
    return bool(kinds)


def _join_values(joined: Node, one: Node, other: Node) -> bool:
    """Whether a value is left."""
    left, right = _values(one), _values(other)
    if left is None or right is None:
        return True
    known = {_key(value) for value in right}
    joined.pop("const", None)
    joined["enum"] = [value for value in left if _key(value) in known]
    return bool(joined["enum"])


def _values(node: Node) -> list[object] | None:
    if "const" in node:
        return [node["const"]]
    values = node.get("enum")
    return values if isinstance(values, list) else None


def _key(value: object) -> str:
    whole = isinstance(value, float) and value.is_integer()
    return json.dumps(int(value) if whole and isinstance(value, float) else value, sort_keys=True)


def _join_objects(joined: Node, one: Node, other: Node) -> None:
    if not one.keys() & _OBJECTS or not other.keys() & _OBJECTS:
        return
    if "patternProperties" in one or "patternProperties" in other:
        raise UnsupportedError("patternProperties", "beside properties of another part is not supported")
    mine, its = (cast("dict[str, Schema]", node.get("properties", {})) for node in (one, other))
    open_mine, open_its = (cast("Schema", node.get("additionalProperties", True)) for node in (one, other))
    joined["properties"] = {
        name: _all_of(mine.get(name, open_mine), its.get(name, open_its)) for name in dict.fromkeys([*mine, *its])
    }
    joined["additionalProperties"] = _all_of(open_mine, open_its)


def _join_arrays(joined: Node, one: Node, other: Node) -> None:
    if not one.keys() & _ARRAYS or not other.keys() & _ARRAYS:
        return
    if any(
        node.keys() & {"prefixItems", "additionalItems"} or isinstance(node["items"], list) for node in (one, other)
    ):
        raise UnsupportedError("items", "of two parts at fixed places is not supported")
    joined["items"] = _all_of(cast("Schema", one["items"]), cast("Schema", other["items"]))


def _all_of(one: Schema, other: Schema) -> Schema:
    if one is False or other is False:
        return False
    if one in (True, {}) or one == other:
        return other
    return one if other in (True, {}) else {"allOf": [one, other]}
