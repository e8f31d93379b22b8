"""Negation of a schema as a list of alternatives; each is exact."""

from __future__ import annotations

import re
from functools import partial
from itertools import combinations, islice, pairwise, product
from typing import TYPE_CHECKING, TypeAlias

from lmtool.inference.guide.schema.document import (
    ALL_TYPES,
    Document,
    Schema,
    UnsupportedError,
    all_of,
    any_of,
    is_whole,
    listed_values,
    may_be,
    named_schemas,
    names,
    schemas,
    significant,
    type_name,
    types_of,
)
from lmtool.inference.guide.schema.objects import names_pattern
from lmtool.inference.guide.schema.strings import literals, no_prefix_of, none_of, unlike

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_MAX_WAYS = 64
_SOME_WAYS = f"where something must not match, only {_MAX_WAYS} reasons count"
_MAX_DEPTH = 12
_MAX_MEMBER_DEPTH = 3
"""For keywords about any item or property, whose alternatives multiply at each level."""
_OF_ANY_MEMBER = frozenset({"items", "prefixItems", "contains", "patternProperties", "propertyNames"})

_MAX_FRACTION = 8
_PLACES = 4
_FRACTIONS: Schema = {
    "anyOf": [
        {"type": "number", "exclusiveMinimum": whole, "exclusiveMaximum": whole + 1}
        for whole in range(-_MAX_FRACTION, _MAX_FRACTION)
    ]
}
"""Non-integer numbers: each lies between two consecutive integers."""

_ABOUT: Mapping[str, str] = {
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), "number"),
    **dict.fromkeys(("minLength", "maxLength", "pattern"), "string"),
    **dict.fromkeys(("items", "prefixItems", "contains", "minItems", "maxItems", "uniqueItems"), "array"),
    **dict.fromkeys(("properties", "patternProperties", "additionalProperties", "propertyNames"), "object"),
    **dict.fromkeys(("required", "minProperties", "maxProperties", "dependentRequired", "dependentSchemas"), "object"),
}
"""Keywords that apply to one type only, with that type."""

Ways: TypeAlias = list[Schema]


def negation(schema: Schema, context: Schema, document: Document, depth: int = 0) -> Ways:
    """Return alternatives that together reject a schema, for instances that match `context`.

    Alternatives that cannot be expressed are left out and recorded in the document, if one remains. Raises
    `UnsupportedError` if there are alternatives and none can be expressed.
    """
    document.count()
    schema = document.target(schema)
    if isinstance(schema, bool):
        return [] if schema else [True]
    if depth > _MAX_DEPTH:
        raise UnsupportedError("not", f"goes through more than {_MAX_DEPTH} levels")
    ways: Ways = []
    problems: list[UnsupportedError] = []
    for keyword in sorted(significant(schema)):
        if keyword in _ABOUT and not may_be(context, _ABOUT[keyword]):
            continue  # does not apply to such instances
        try:
            ways += _negated(keyword, schema, context, document, depth)
        except UnsupportedError as problem:
            problems.append(problem)
    if len(ways) > _MAX_WAYS:
        document.narrow(_SOME_WAYS)
        del ways[_MAX_WAYS:]
    if problems and not ways:
        raise problems[0]
    for left_out in problems:
        document.narrow(f"where something must not match, only other reasons count than that {left_out}")
    return ways


def _negated(keyword: str, schema: dict[str, object], context: Schema, document: Document, depth: int) -> Ways:
    if keyword in {"then", "else", "minContains", "maxContains"}:
        return []  # handled with `if`, `items` and `contains`
    if keyword in _BOUNDS:
        return _bound(keyword, schema[keyword])
    reader = _NEGATIONS.get(keyword)
    if reader is None or (keyword in _OF_ANY_MEMBER and depth > _MAX_MEMBER_DEPTH):
        raise UnsupportedError(keyword, "cannot be negated")
    return reader(schema, context, document, depth)


_BOUNDS: Mapping[str, tuple[str, str, int]] = {
    "minimum": ("number", "exclusiveMaximum", 0),
    "maximum": ("number", "exclusiveMinimum", 0),
    "exclusiveMinimum": ("number", "maximum", 0),
    "exclusiveMaximum": ("number", "minimum", 0),
    "minLength": ("string", "maxLength", -1),
    "maxLength": ("string", "minLength", 1),
    "minItems": ("array", "maxItems", -1),
    "maxItems": ("array", "minItems", 1),
    "minProperties": ("object", "maxProperties", -1),
    "maxProperties": ("object", "minProperties", 1),
}
"""Keyword to its type, the opposite keyword, and the offset added to its number."""


def _bound(keyword: str, value: object) -> Ways:
    kind, opposite, step = _BOUNDS[keyword]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnsupportedError(keyword, f"is {value!r}, which cannot be negated")
    bound = value + step
    return [] if bound < 0 and step else [{"type": kind, opposite: bound}]


def _type(schema: dict[str, object], context: Schema, document: Document, _: int) -> Ways:
    types = types_of({"type": schema["type"]}) or frozenset()
    others = {kind for kind in ALL_TYPES - types if may_be(context, kind)}
    if "integer" in types and "number" in others:
        others.discard("number")
    ways: Ways = [{"type": sorted(others)}] if others else []
    if "integer" in types and "number" not in types and "number" in (types_of(context) or {"number"}):
        document.narrow(f"a number that must not be an integer lies between -{_MAX_FRACTION} and {_MAX_FRACTION}")
        ways.append(_FRACTIONS)
    return ways


def _values(schema: dict[str, object], context: Schema, document: Document, _: int) -> Ways:
    values = listed_values(schema)
    if values is None:
        raise UnsupportedError("enum", "is no array")
    by_type: dict[str, list[object]] = {}
    for value in values:
        kind = type_name(value)
        by_type.setdefault("number" if kind == "integer" else kind, []).append(value)
    free = sorted(kind for kind in ALL_TYPES - by_type.keys() if may_be(context, kind))
    ways: Ways = [{"type": free}] if free else []
    for kind, own in by_type.items():
        if may_be(context, kind):
            ways += _OTHER_VALUES[kind](own)
            if kind in {"array", "object"} and any(own):
                document.narrow(f"where an {kind} must not be a certain one, only {kind}s of another size are used")
    return ways


def _other_numbers(values: list[object]) -> Ways:
    numbers = sorted({value for value in values if isinstance(value, int | float)})
    ways: Ways = [{"type": "number", "exclusiveMaximum": numbers[0]}]
    ways += [{"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high} for low, high in pairwise(numbers)]
    return [*ways, {"type": "number", "exclusiveMinimum": numbers[-1]}]


def _other_sizes(kind: str, what: str, values: list[object]) -> Ways:
    """Arrays or objects that differ in size from all values."""
    sizes = [len(value) for value in values if isinstance(value, list | dict)]
    ways: Ways = [{"type": kind, f"min{what}": max(sizes) + 1}]
    return ways if min(sizes) == 0 else [*ways, {"type": kind, f"max{what}": min(sizes) - 1}]


_OTHER_VALUES: Mapping[str, Callable[[list[object]], Ways]] = {
    "null": lambda _: [],
    "boolean": lambda values: [{"const": value} for value in (True, False) if value not in values],
    "string": lambda values: [{"type": "string", "pattern": none_of(map(str, values))}],
    "number": _other_numbers,
    "array": partial(_other_sizes, "array", "Items"),
    "object": partial(_other_sizes, "object", "Properties"),
}


def _pattern(schema: dict[str, object], _: Schema, document: Document, __: int) -> Ways:
    pattern = str(schema["pattern"])
    if (found := literals(pattern)) is not None:
        texts, whole = found
        return [{"type": "string", "pattern": none_of(texts) if whole else no_prefix_of(texts)}]
    others, exact = unlike(pattern)
    if not others:
        raise UnsupportedError("pattern", f"{pattern!r} cannot be negated")
    if not exact:
        document.narrow(
            f"where a text must not match {pattern!r}, only texts of another length or first letter are used"
        )
    return [{"type": "string", **other} for other in others]


def _items(schema: dict[str, object], context: Schema, document: Document, depth: int) -> Ways:
    [items] = schemas([schema["items"]], "items")
    prefix = schema.get("prefixItems", [])
    known = len(prefix) if isinstance(prefix, list) else 0
    other = any_of(negation(items, _items_of(context), document, depth + 1))
    if other is False:
        return []
    document.narrow(f"an item that must not match is one of the first {_PLACES}")
    return [_with_item(at, other) for at in range(known, known + _PLACES)]


def _prefix_items(schema: dict[str, object], _: Schema, document: Document, depth: int) -> Ways:
    ways: Ways = []
    for at, item in enumerate(schemas(schema["prefixItems"], "prefixItems")):
        other = any_of(negation(item, {}, document, depth + 1))
        ways += [] if other is False else [_with_item(at, other)]
    return ways


def _with_item(at: int, item: Schema) -> Schema:
    return {"type": "array", "prefixItems": [*[True] * at, item], "minItems": at + 1}


def _contains(schema: dict[str, object], context: Schema, document: Document, depth: int) -> Ways:
    """Too few matching items, or too many."""
    [contained] = schemas([schema["contains"]], "contains")
    least, most = schema.get("minContains", 1), schema.get("maxContains")
    ways: Ways = []
    if least == 1:
        ways.append({"type": "array", "items": any_of(negation(contained, _items_of(context), document, depth + 1))})
    elif isinstance(least, int) and least > 1:
        ways.append({"type": "array", "contains": contained, "minContains": 0, "maxContains": least - 1})
    if isinstance(most, int):
        ways.append({"type": "array", "contains": contained, "minContains": most + 1})
    return ways


def _items_of(context: Schema) -> Schema:
    items = True if isinstance(context, bool) or "prefixItems" in context else context.get("items", True)
    return items if isinstance(items, bool | dict) else True


def _pattern_properties(schema: dict[str, object], _: Schema, document: Document, depth: int) -> Ways:
    ways: Ways = []
    for pattern, value in named_schemas(schema["patternProperties"], "patternProperties").items():
        other = any_of(negation(value, {}, document, depth + 1))
        if other is not False:
            ways.append(_only_names(pattern, other))
    if ways:
        document.narrow("an object that must not match has only properties of which that is so")
    return ways


def _property_names(schema: dict[str, object], _: Schema, document: Document, depth: int) -> Ways:
    [names_schema] = schemas([schema["propertyNames"]], "propertyNames")
    ways: Ways = []
    for way in negation(names_schema, {"type": "string"}, document, depth + 1):
        if way is True:
            return [{"type": "object", "minProperties": 1}]
        if isinstance(way, dict) and may_be(way, "string") and (pattern := names_pattern(way)):  # or a list of names
            texts = pattern if isinstance(pattern, str) else f"^(?:{'|'.join(map(re.escape, pattern))})$"
            ways.append(_only_names(texts, {}))
    if ways:
        document.narrow("an object whose names must not all match has none that do")
    return ways


def _only_names(pattern: str, value: Schema) -> Schema:
    """Object with at least one property whose names all match."""
    closed = {"patternProperties": {pattern: value}, "additionalProperties": False}
    return {"type": "object", **closed, "minProperties": 1}


def _multiple_of(schema: dict[str, object], context: Schema, document: Document, _: int) -> Ways:
    unit = schema["multipleOf"]
    if isinstance(unit, bool) or not isinstance(unit, int | float) or unit < 1 or not is_whole(unit):
        raise UnsupportedError("multipleOf", f"of {unit!r} cannot be negated")
    document.narrow(f"a number that is no multiple of {unit!r} lies between two of the first {_MAX_FRACTION} multiples")
    low, step = -_MAX_FRACTION * int(unit), int(unit)
    multiples = range(low, -low, step)
    if "number" not in (types_of(context) or {"number"}):
        if step == 1:
            return []
        return [{"type": "integer", "minimum": one + 1, "maximum": one + step - 1} for one in multiples]
    return [{"type": "number", "exclusiveMinimum": one, "exclusiveMaximum": one + step} for one in multiples]


def _required(schema: dict[str, object], *_: object) -> Ways:
    return [{"type": "object", "properties": {name: False}} for name in names(schema["required"], "required")]


def _properties(schema: dict[str, object], context: Schema, document: Document, depth: int) -> Ways:
    ways: Ways = []
    for name, value in named_schemas(schema["properties"], "properties").items():
        inner = _property(context, name)
        negated = any_of(negation(value, inner, document, depth + 1))
        if negated is not False:
            ways.append({"type": "object", "required": [name], "properties": {name: negated}})
    return ways


def _property(context: Schema, name: str) -> Schema:
    properties = {} if isinstance(context, bool) else context.get("properties", {})
    inner = properties.get(name, True) if isinstance(properties, dict) else True
    return inner if isinstance(inner, bool | dict) else True


def _additional(schema: dict[str, object], context: Schema, *_: object) -> Ways:
    if schema["additionalProperties"] is not False:
        if schema["additionalProperties"] in (True, {}):
            return []
        raise UnsupportedError("additionalProperties", "with a schema cannot be negated")
    known: dict[str, object] = {} if isinstance(context, bool) else context
    patterned = "patternProperties" in schema or "patternProperties" in known
    if patterned or known.get("additionalProperties") is not False:
        raise UnsupportedError("additionalProperties", "can be negated only where all properties have names")
    own = named_schemas(schema.get("properties", {}), "properties")
    others = named_schemas(known.get("properties", {}), "properties")
    return [{"type": "object", "required": [name]} for name in others if name not in own]


def _all_of(schema: dict[str, object], context: Schema, document: Document, depth: int) -> Ways:
    parts = schemas(schema["allOf"], "allOf")
    return [way for part in parts for way in negation(part, context, document, depth + 1)]


def _any_of(schema: dict[str, object], context: Schema, document: Document, depth: int) -> Ways:
    parts = schemas(schema["anyOf"], "anyOf")
    return conjunction([negation(part, context, document, depth + 1) for part in parts], document)


def _one_of(schema: dict[str, object], context: Schema, document: Document, depth: int) -> Ways:
    parts = schemas(schema["oneOf"], "oneOf")
    none = conjunction([negation(part, context, document, depth + 1) for part in parts], document)
    return [*none, *(all_of(pair) for pair in combinations(parts, 2))]


def _not(schema: dict[str, object], *_: object) -> Ways:
    inner = schema["not"]
    return [inner] if isinstance(inner, bool | dict) else []


def _if(schema: dict[str, object], context: Schema, document: Document, depth: int) -> Ways:
    [condition] = schemas([schema["if"]], "if")
    ways: Ways = []
    if "then" in schema:
        [then] = schemas([schema["then"]], "then")
        ways += [all_of([condition, way]) for way in negation(then, context, document, depth + 1)]
    if "else" in schema:
        [other] = schemas([schema["else"]], "else")
        otherwise = negation(other, context, document, depth + 1)
        against = negation(condition, context, document, depth + 1)
        ways += conjunction([against, otherwise], document) if otherwise else []
    return ways


def _ref(schema: dict[str, object], context: Schema, document: Document, depth: int) -> Ways:
    return negation(document.resolve(schema["$ref"]), context, document, depth + 1)


def conjunction(ways: list[Ways], document: Document) -> Ways:
    """Return alternatives for matching one of each list, truncated to the limit."""
    joined = (all_of(chosen) for chosen in product(*ways))
    found: Ways = list(islice((way for way in joined if way is not False), _MAX_WAYS + 1))
    if len(found) > _MAX_WAYS:
        document.narrow(_SOME_WAYS)
    document.count(len(found))
    return found[:_MAX_WAYS]


_NEGATIONS: Mapping[str, Callable[[dict[str, object], Schema, Document, int], Ways]] = {
    "type": _type,
    "const": _values,
    "enum": _values,
    "pattern": _pattern,
    "multipleOf": _multiple_of,
    "items": _items,
    "prefixItems": _prefix_items,
    "contains": _contains,
    "patternProperties": _pattern_properties,
    "propertyNames": _property_names,
    "required": _required,
    "properties": _properties,
    "additionalProperties": _additional,
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _not,
    "if": _if,
    "$ref": _ref,
}
