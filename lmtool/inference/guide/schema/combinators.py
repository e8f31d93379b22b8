"""`not`, `oneOf`, `if` and the dependencies, written with `anyOf` and `allOf`."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from lmtool.inference.guide.schema.disjointness import are_disjoint
from lmtool.inference.guide.schema.document import (
    ALL_TYPES,
    Document,
    Schema,
    UnsupportedError,
    all_of,
    any_of,
    named_schemas,
    names,
    schemas,
)
from lmtool.inference.guide.schema.negation import negation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Node: TypeAlias = dict[str, object]


def write_not(node: Node, document: Document) -> list[Schema]:
    """Take `not` out of a node; return what must hold beside it."""
    [inner] = schemas([node.pop("not")], "not")
    return [any_of(negation(inner, node, document))]


def write_one_of(node: Node, document: Document) -> list[Schema]:
    """Take `oneOf` out of a node: any of its branches, each without the others that it may meet."""
    branches = schemas(node.pop("oneOf"), "oneOf")
    contexts = [_context(node, document.target(branch)) for branch in branches]
    beside: Schema = {name: value for name, value in node.items() if name in _BESIDE} or True
    meeting: dict[int, list[int]] = {at: [] for at in range(len(branches))}
    for at, branch in enumerate(branches):
        for other in range(at + 1, len(branches)):
            if not are_disjoint(branch, branches[other], document, beside):
                meeting[at].append(other)
                meeting[other].append(at)
    if any(meeting.values()) and "type" not in node and _objects_differ(branches, meeting, beside, document):
        needed = {"required": node["required"]} if "required" in node else {}
        no_object: Schema = {"type": sorted(ALL_TYPES - {"object"}), "oneOf": branches}
        return [any_of([{"type": "object", **needed, "oneOf": branches}, no_object])]
    branches_alone: list[Schema] = []
    for at, branch in enumerate(branches):
        others = [any_of(negation(branches[other], contexts[at], document)) for other in meeting[at]]
        branches_alone.append(all_of([branch, *others]))
    return [any_of(branches_alone)]


def _objects_differ(
    branches: Sequence[Schema], meeting: Mapping[int, Sequence[int]], beside: Schema, document: Document
) -> bool:
    """Whether branches that may meet exclude each other as far as objects are concerned."""
    objects: Schema = {**(beside if isinstance(beside, dict) else {}), "type": "object"}
    pairs = ((at, other) for at, others in meeting.items() for other in others if other > at)
    return any(are_disjoint(branches[at], branches[other], document, objects) for at, other in pairs)


def _context(node: Node, branch: Schema) -> Schema:
    """Return what is known of an instance that matches a node and one of its branches: its type, names, closedness."""
    if isinstance(branch, bool):
        return {name: value for name, value in node.items() if name in _TELLING} or True
    known = {name: value for name, value in {**node, **branch}.items() if name in _TELLING}
    if "additionalProperties" in node and "additionalProperties" not in branch:
        known["properties"] = node.get("properties", {})
    return known


_TELLING = frozenset({"type", "const", "enum", "properties", "patternProperties", "additionalProperties"})
_BESIDE = _TELLING | {"required", "maxProperties", "$ref", "allOf"}


def write_if(node: Node, document: Document) -> list[Schema]:
    """Take `if`, `then` and `else` out of a node: either the one and the second, or not the one and the third."""
    condition, then, other = (node.pop(keyword, True) for keyword in ("if", "then", "else"))
    [condition, then, other] = schemas([condition, then, other], "if")
    if then in (True, {}) and other in (True, {}):
        return []
    without = [all_of([way, other]) for way in negation(condition, node, document)]
    return [any_of([all_of([condition, then]), *without])]


def write_dependencies(node: Node, document: Document) -> list[Schema]:
    """Take the dependencies out of a node: either the property is absent, or what depends on it holds."""
    document.count()
    required: list[Schema] = []
    present = set(names(node.get("required", []), "required"))
    for keyword in ("dependentRequired", "dependentSchemas"):
        dependencies = node.pop(keyword, {})
        if not isinstance(dependencies, dict):
            raise UnsupportedError(keyword, "is no object")
        for name, value in dependencies.items():
            dependent = _dependent(value, keyword)
            ways: list[Schema] = [{"properties": {name: False}}, dependent]
            required.append(dependent if name in present and node.get("type") == "object" else any_of(ways))
    return required


def _dependent(value: object, keyword: str) -> Schema:
    if isinstance(value, list):
        return {"required": names(value, keyword)} if value else True
    return named_schemas({keyword: value}, keyword)[keyword]
