"""Proofs about the instances of a schema: the only values it allows, and schemas that exclude each other."""

from __future__ import annotations

import json
import re
from itertools import product
from typing import TYPE_CHECKING, TypeAlias

from lmtool.inference.guide.json_validation import UncheckedError, valid_values
from lmtool.inference.guide.patterns import PatternError, exclude_each_other, matches
from lmtool.inference.guide.schema.document import (
    MAX_NODES,
    Document,
    Schema,
    UnsupportedError,
    listed_values,
    named_schemas,
    names,
    schemas,
    significant,
    type_name,
    types_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lmtool.inference.guide.schema.document import Document


_REFERENCE = re.compile(r'"\$ref": "#/\$defs/([A-Za-z0-9_.-]+)"')
_CHARACTERS = 200
"""Characters of a schema counted as one subschema."""


def allowed_values(node: Mapping[str, object], document: Document) -> list[object] | None:
    """Return the only values that a node allows, in its order; None if it lists none or that is uncertain.

    It is uncertain next to unresolved references and next to `format`, which validators treat as an annotation.
    """
    listed, keywords = listed_values(node), significant(node)
    if listed is None:
        listed = _listed_by_a_part(node)
    else:
        keywords -= {"const" if "const" in node else "enum"}
    if listed is None:
        return None
    if not keywords:
        return listed
    beside = _with_definitions({name: node[name] for name in sorted(keywords)}, document)
    if beside is None or '"format"' in beside:
        return None
    document.count(len(listed))
    try:
        return valid_values(beside, listed, MAX_NODES)
    except UncheckedError:
        return None


def _with_definitions(node: dict[str, object], document: Document) -> str | None:
    """Text of a node with the definitions it refers to; None if it refers to anything else."""
    defined = document.root.get("$defs") if isinstance(document.root, dict) else None
    texts, waiting = dict[str, str](), [json.dumps(node)]
    for text in waiting:
        document.count(len(text) // _CHARACTERS)
        names = _REFERENCE.findall(text)
        if len(names) < text.count('$ref"') + text.count('Ref"') or not isinstance(defined, dict | None):
            return None
        for name in set(names) - texts.keys():
            if defined is None or name not in defined:
                return None
            texts[name] = json.dumps(defined[name])
            waiting.append(texts[name])
    parts = ",".join(f"{json.dumps(name)}:{text}" for name, text in texts.items())
    return f'{waiting[0][:-1]},"$defs":{{{parts}}}}}' if parts else waiting[0]


def _listed_by_a_part(node: Mapping[str, object]) -> list[object] | None:
    """Values that a part of an `allOf` lists."""
    parts = node.get("allOf")
    listed = (listed_values(part) for part in parts if isinstance(part, dict)) if isinstance(parts, list) else ()
    return next((values for values in listed if values is not None), None)


_MAX_DEPTH = 6
_MAX_CHOICES = 2
"""Nested levels at which the branches of `anyOf` and `oneOf` are tried."""
_MOST_NODES = 64
_MOST_VALUES = 64
_WORK = 10
"""Subschemas counted for a call of another implementation: some milliseconds."""

Nodes: TypeAlias = list[dict[str, object]]
"""Schemas that all apply to one instance, without `allOf` and `$ref`."""


def are_disjoint(one: Schema, other: Schema, document: Document, beside: Schema = True) -> bool:
    """True if certainly no instance matches both schemas; False if unknown.

    beside: schema that every considered instance matches.
    """
    return _exclude([beside, one], [other], document, 0)


def _exclude(
    ones: Iterable[Schema], others: Iterable[Schema], document: Document, depth: int, choices: int = 0
) -> bool:
    document.count()
    if depth > _MAX_DEPTH:
        return False
    try:
        mine, its = _nodes(ones, document), _nodes(others, document)
        if mine is None or its is None:
            return True
        if _different_types(mine, its) or _different_values(mine, its, document) or _different_bounds(mine, its):
            return True
        if _only({"string"}, [*mine, *its]) and _different_patterns(mine, its, document):
            return True
        if _only({"object"}, [*mine, *its]) and _different_properties(mine, its, document, depth, choices):
            return True
        return choices < _MAX_CHOICES and (
            _every_choice_excludes(mine, its, document, depth, choices)
            or _every_choice_excludes(its, mine, document, depth, choices)
        )
    except UnsupportedError:
        return False


def _nodes(parts: Iterable[Schema], document: Document) -> Nodes | None:
    """Schemas implied by these parts; None if one is false."""
    found: Nodes = []
    waiting = list(parts)
    while waiting and len(found) < _MOST_NODES:  # references may be circular
        part = document.target(waiting.pop(0))
        if part is False:
            return None
        if part is True:
            continue
        found.append({keyword: value for keyword, value in part.items() if keyword not in {"allOf", "$ref"}})
        waiting += schemas(part.get("allOf", []), "allOf")
        if "$ref" in part:
            waiting.append(document.resolve(part["$ref"]))
    return found


def _different_types(mine: Nodes, its: Nodes) -> bool:
    return any(
        not any(a == b or {a, b} == {"integer", "number"} for a, b in product(first, second))
        for first, second in product(map(types_of, mine), map(types_of, its))
        if first is not None and second is not None
    )


def _different_values(mine: Nodes, its: Nodes, document: Document) -> bool:
    """True if no value listed on one side is allowed on the other."""
    for nodes, opposite in ((mine, its), (its, mine)):
        for node in nodes:
            values = listed_values(node)
            if values is None or len(values) > _MOST_VALUES:
                continue
            listed = [own for other in opposite if (own := listed_values(other)) is not None]
            if any(not any(_same(a, b) for a, b in product(values, own)) for own in listed):
                return True
            document.count(_WORK)
            if allowed_values({"enum": values, "allOf": [*nodes, *opposite]}, document) == []:
                return True
    return False


def _same(one: object, other: object) -> bool:
    kinds = {type_name(one), type_name(other)}
    return one == other and (len(kinds) == 1 or kinds == {"integer", "number"})


_RANGES = (
    ("minimum", "maximum", {"integer", "number"}),
    ("minLength", "maxLength", {"string"}),
    ("minItems", "maxItems", {"array"}),
    ("minProperties", "maxProperties", {"object"}),
)


def _different_bounds(mine: Nodes, its: Nodes) -> bool:
    """True if both sides allow one type only and their ranges do not overlap."""
    for low, high, kinds in _RANGES:
        if not _only(kinds, [*mine, *its]):
            continue
        for first, second in ((mine, its), (its, mine)):
            least = [bound for node in first if isinstance(bound := node.get(low), int | float)]
            most = [bound for node in second if isinstance(bound := node.get(high), int | float)]
            if least and most and max(least) > min(most):
                return True
    return False


def _only(kinds: set[str], nodes: Nodes) -> bool:
    """True if the nodes allow only these types."""
    return any(types <= kinds for node in nodes if (types := types_of(node)) is not None)


def _different_patterns(mine: Nodes, its: Nodes, document: Document) -> bool:
    """True if no text matches a pattern of each side."""
    first, second = (
        [pattern for node in nodes if isinstance(pattern := node.get("pattern"), str)] for nodes in (mine, its)
    )
    document.count(_WORK * len(first) * len(second))
    return any(exclude_each_other(one, other) for one, other in product(first, second))


def _different_properties(mine: Nodes, its: Nodes, document: Document, depth: int, choices: int) -> bool:
    """True if objects of both need a property that cannot exist, or more than are allowed."""
    needed = list(dict.fromkeys(name for node in (*mine, *its) for name in names(node.get("required", []), "required")))
    most = [bound for node in (*mine, *its) if isinstance(bound := node.get("maxProperties"), int | float)]
    if most and len(needed) > min(most):
        return True
    for name in needed:
        own, others = _property(mine, name), _property(its, name)
        if own and others and _exclude(own, others, document, depth + 1, choices):
            return True
        if any(schema is False for schema in (*own, *others)):
            return True
    return False


def _property(nodes: Nodes, name: str) -> Sequence[Schema]:
    """Schemas that nodes apply to a property."""
    found: list[Schema] = []
    for node in nodes:
        own = named_schemas(node.get("properties", {}), "properties")
        said = [own[name]] if name in own else []
        try:
            patterns = named_schemas(node.get("patternProperties", {}), "patternProperties")
            said += [schema for pattern, schema in patterns.items() if matches(pattern, name)]
        except PatternError:
            found += said
            continue
        found += said or schemas([node.get("additionalProperties", True)], "additionalProperties")
    return found


def _every_choice_excludes(mine: Nodes, its: Nodes, document: Document, depth: int, choices: int) -> bool:
    """True if each branch of an `anyOf` or `oneOf` excludes the other side."""
    for at, node in enumerate(mine):
        for keyword in ("anyOf", "oneOf"):
            branches = schemas(node.get(keyword, []), keyword)
            rest = [*mine[:at], {name: value for name, value in node.items() if name != keyword}, *mine[at + 1 :]]
            if branches and all(
                _exclude([*rest, branch], its, document, depth + 1, choices + 1) for branch in branches
            ):
                return True
    return False
