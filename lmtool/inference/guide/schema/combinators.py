"""Combining keywords that llguidance lacks: `not`, `oneOf`, `if`, dependencies and `unevaluated...`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, combinations
from typing import TYPE_CHECKING, TypeAlias

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
from lmtool.inference.guide.schema.satisfiability import are_disjoint

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


Node: TypeAlias = dict[str, object]


def write_not(node: Node, document: Document) -> list[Schema]:
    """Remove `not` from a node; return the schemas that replace it."""
    [inner] = schemas([node.pop("not")], "not")
    return [any_of(negation(inner, node, document))]


def write_one_of(node: Node, document: Document) -> list[Schema]:
    """Replace `oneOf`: any of its branches, each excluding the branches that it may overlap."""
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
    """True if overlapping branches exclude each other for objects."""
    objects: Schema = {**(beside if isinstance(beside, dict) else {}), "type": "object"}
    pairs = ((at, other) for at, others in meeting.items() for other in others if other > at)
    return any(are_disjoint(branches[at], branches[other], document, objects) for at, other in pairs)


def _context(node: Node, branch: Schema) -> Schema:
    """Return what is known of an instance of a node and one of its branches: type, names, closedness."""
    if isinstance(branch, bool):
        return {name: value for name, value in node.items() if name in _TELLING} or True
    known = {name: value for name, value in {**node, **branch}.items() if name in _TELLING}
    if "additionalProperties" in node and "additionalProperties" not in branch:
        known["properties"] = node.get("properties", {})
    return known


_TELLING = frozenset({"type", "const", "enum", "properties", "patternProperties", "additionalProperties"})
_BESIDE = _TELLING | {"required", "maxProperties", "$ref", "allOf"}


def write_if(node: Node, document: Document) -> list[Schema]:
    """Replace `if`, `then` and `else`: either `if` and `then` hold, or `else` without `if`."""
    condition, then, other = (node.pop(keyword, True) for keyword in ("if", "then", "else"))
    [condition, then, other] = schemas([condition, then, other], "if")
    if then in (True, {}) and other in (True, {}):
        return []
    without = [all_of([way, other]) for way in negation(condition, node, document)]
    return [any_of([all_of([condition, then]), *without])]


def write_dependencies(node: Node, document: Document) -> list[Schema]:
    """Replace dependencies: either the property is absent, or its dependent schema holds."""
    document.count()
    required: list[Schema] = []
    present = set(names(node.get("required", []), "required"))
    for keyword in ("dependentRequired", "dependentSchemas"):
        dependencies = node.pop(keyword, {})
        if not isinstance(dependencies, dict):
            raise UnsupportedError(keyword, "is no object")
        for name, value in dependencies.items():
            if isinstance(value, list):
                dependent: Schema = {"required": names(value, keyword)} if value else True
            else:
                dependent = named_schemas({keyword: value}, keyword)[keyword]
            ways: list[Schema] = [{"properties": {name: False}}, dependent]
            required.append(dependent if name in present and node.get("type") == "object" else any_of(ways))
    return required


_MAX_WAYS = 32
_MAX_DEPTH = 8
_MAX_SUBSETS = 4
"""Largest `anyOf` whose branches may match in any combination; of a larger one, one branch is used."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One way to match a schema, and what it evaluates of the instance (JSON Schema 2020-12, 11)."""

    conditions: tuple[Schema, ...] = ()
    """Schemas that must hold in addition."""
    names: tuple[str, ...] = ()
    """Evaluated property names in schema order, which is the order of generated objects."""
    patterns: tuple[str, ...] = ()
    properties: bool = False
    """All properties are evaluated."""
    prefix: int = 0
    """Number of evaluated items at the start of an array."""
    items: bool = False
    """All items are evaluated."""

    def with_(self, other: Evaluated) -> Evaluated:
        """Combine with another way."""
        return Evaluated(
            (*self.conditions, *other.conditions),
            tuple(dict.fromkeys((*self.names, *other.names))),
            tuple(dict.fromkeys((*self.patterns, *other.patterns))),
            self.properties or other.properties,
            max(self.prefix, other.prefix),
            self.items or other.items,
        )


Ways: TypeAlias = "list[Evaluated]"


def write_unevaluated(node: dict[str, object], document: Document) -> list[Schema]:
    """Remove the `unevaluated...` keywords from a node; return the schemas that replace them."""
    properties, items = node.pop("unevaluatedProperties", True), node.pop("unevaluatedItems", True)
    [properties, items] = schemas([properties, items], "unevaluatedProperties")
    if properties in (True, {}) and items in (True, {}):
        return []
    ways = _ways(node, document)
    written: list[Schema] = []
    for way in ways:
        closed: list[Schema] = [*way.conditions]
        if not way.properties and properties not in (True, {}):
            evaluated: dict[str, object] = {"properties": dict.fromkeys(way.names, True)}
            if way.patterns:
                evaluated["patternProperties"] = dict.fromkeys(way.patterns, True)
            closed.append({**evaluated, "additionalProperties": properties})
        if not way.items and items not in (True, {}):
            closed.append({"prefixItems": [True] * way.prefix, "items": items} if way.prefix else {"items": items})
        written.append(all_of(closed))
    return [any_of(written)]


def _ways(schema: Schema, document: Document, depth: int = 0) -> Ways:
    """Alternative ways to match a schema."""
    document.count()
    if isinstance(schema, bool):
        return [Evaluated()]
    if depth > _MAX_DEPTH:
        raise UnsupportedError("unevaluatedProperties", f"looks through more than {_MAX_DEPTH} levels")
    if schema.keys() & {"$dynamicRef", "$recursiveRef"}:
        raise UnsupportedError("unevaluatedProperties", "beside a dynamic reference is not supported")
    together: list[Ways] = [[_own(schema)]]
    together += [_ways(part, document, depth + 1) for part in schemas(schema.get("allOf", []), "allOf")]
    if "$ref" in schema:
        together.append(_ways(document.resolve(schema["$ref"]), document, depth + 1))
    together += [_any_of(schema, document, depth), _one_of(schema, document, depth), _if(schema, document, depth)]
    together += _dependent(schema, document, depth)
    return _product(together)


def _own(schema: dict[str, object]) -> Evaluated:
    if "contains" in schema and "items" not in schema:
        raise UnsupportedError("unevaluatedItems", "beside 'contains' is not supported")
    listed, rest = schema.get("prefixItems"), schema.get("items")
    return Evaluated(
        names=tuple(named_schemas(schema.get("properties", {}), "properties")),
        patterns=tuple(named_schemas(schema.get("patternProperties", {}), "patternProperties")),
        properties="additionalProperties" in schema or "unevaluatedProperties" in schema,
        prefix=len(listed) if isinstance(listed, list) else 0,
        items=rest is not None or "unevaluatedItems" in schema,
    )


def _any_of(schema: dict[str, object], document: Document, depth: int) -> Ways:
    branches = schemas(schema.get("anyOf", []), "anyOf")
    if not branches:
        return [Evaluated()]
    each = [_of_branch(branch, document, depth) for branch in branches]
    if _evaluate_alike(chain.from_iterable(each)):
        return [Evaluated()]
    if len(branches) > _MAX_SUBSETS:
        document.narrow("where 'anyOf' says which properties or items there may be, one branch at a time is used")
        return [way for ways in each for way in ways]
    subsets = chain.from_iterable(combinations(each, count) for count in range(1, len(each) + 1))
    return [way for subset in subsets for way in _product(subset)]


def _one_of(schema: dict[str, object], document: Document, depth: int) -> Ways:
    branches = schemas(schema.get("oneOf", []), "oneOf")
    each = [_of_branch(branch, document, depth) for branch in branches]
    if not branches or _evaluate_alike(chain.from_iterable(each)):
        return [Evaluated()]
    return [way for ways in each for way in ways]


def _of_branch(branch: Schema, document: Document, depth: int) -> Ways:
    return [] if branch is False else _product([[Evaluated((branch,))], _ways(branch, document, depth + 1)])


def _evaluate_alike(ways: Iterable[Evaluated]) -> bool:
    """True if the ways evaluate nothing, so that the choice does not matter."""
    return all(way == Evaluated(way.conditions) for way in ways)


def _if(schema: dict[str, object], document: Document, depth: int) -> Ways:
    if "if" not in schema:
        return [Evaluated()]
    [condition, then, other] = schemas([schema["if"], schema.get("then", True), schema.get("else", True)], "if")
    held = _product([_of_branch(condition, document, depth), _of_branch(then, document, depth)])
    otherwise = _of_branch(other, document, depth)
    if _evaluate_alike([*held, *otherwise]):
        return [Evaluated()]
    without: Ways = [Evaluated((way,)) for way in negation(condition, {}, document)]
    return [*held, *_product([without, otherwise])]


def _dependent(schema: dict[str, object], document: Document, depth: int) -> list[Ways]:
    found: list[Ways] = []
    for name, value in named_schemas(schema.get("dependentSchemas", {}), "dependentSchemas").items():
        present: Schema = {"type": "object", "required": [name]}
        ways = _product([[Evaluated((present,))], _of_branch(value, document, depth)])
        found.append([*ways, Evaluated(({"properties": {name: False}},))])
    return found


def _product(together: Sequence[Ways]) -> Ways:
    """Combine one way of each list. Raises `UnsupportedError` for too many."""
    ways: Ways = [Evaluated()]
    for each in together:
        ways = [way.with_(other) for way in ways for other in each]
        if len(ways) > _MAX_WAYS:
            raise UnsupportedError("unevaluatedProperties", f"has more than {_MAX_WAYS} ways to be held")
    return ways
