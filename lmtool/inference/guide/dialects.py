"""JSON Schemas of any dialect as draft 2020-12, with every referenced schema under `$defs`; a walk over schemas."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from referencing import Specification

    Schema: TypeAlias = bool | dict[str, Any]
    Change: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]


_DIALECT = re.compile(r"https?://json-schema\.org/draft(?:-0([467])|/(2019)-09|/(2020)-12)/schema#?")
_ANY = 0
"""Dialect if `$schema` names none: 2020-12 plus the keywords that older drafts spell differently."""
_FIRST: Mapping[str, int] = {
    **dict.fromkeys(("const", "contains", "propertyNames"), 6),
    **dict.fromkeys(("if", "then", "else"), 7),
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "unevaluatedItems", "unevaluatedProperties"), 2019),
    **dict.fromkeys(("minContains", "maxContains", "$recursiveRef"), 2019),
    **dict.fromkeys(("prefixItems", "$dynamicRef"), 2020),
}
"""First draft of keywords that not every draft has; older drafts ignore them."""
_LAST: Mapping[str, int] = {"dependencies": 7, "additionalItems": 2019, "$recursiveRef": 2019}
_RESTRICTIONS = frozenset({
    "const", "contains", "propertyNames", "if", "then", "else", "dependentRequired", "dependentSchemas",
    "unevaluatedItems", "unevaluatedProperties", "maxContains", "dependencies",
})  # fmt: skip
"""Keywords of `_FIRST` and `_LAST` that can only exclude instances, unless a negation encloses them."""
_OF_A_RESOURCE = frozenset({
    "$schema", "$id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary", "$defs", "definitions",
})  # fmt: skip
_IDS = ("$id", "id")
MARKS = frozenset({*_IDS, "$anchor", "$dynamicAnchor", "$recursiveAnchor"})
_PLAIN = frozenset({
    "type", "enum", "required", "title", "description", "default", "format", "pattern", "minLength", "maxLength",
    "minItems", "maxItems", "minProperties", "maxProperties", "multipleOf", "uniqueItems",
})  # fmt: skip
"""Keywords without subschemas and with the same meaning in all dialects."""
NAMED = frozenset({"properties", "patternProperties", "dependentSchemas"})
LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
SINGLE = frozenset({
    "additionalProperties", "contains", "propertyNames", "if", "then", "else", "not", "unevaluatedItems",
    "unevaluatedProperties",
})  # fmt: skip
"""Keywords whose value is a map of schemas, a list of schemas, or one schema."""
_NEGATED = frozenset({"not", "if", "oneOf"})
"""Keywords under which a more restrictive subschema may allow more."""
_LIMITS = {"minimum": "exclusiveMinimum", "maximum": "exclusiveMaximum"}


def in_2020_12(schema: Schema) -> Schema:
    """Return a draft 2020-12 schema without `$schema` and ids, whose references all point to its own `$defs`.

    It allows the same instances: keywords unknown to the dialect are ignored. An embedded schema may declare its own
    dialect. A `$schema` other than drafts 4 to 2020-12 counts as 2020-12. References that cannot be resolved are kept.
    Returns the same object if nothing changes.
    """
    return Reading(schema).schema


class Reading:
    """A schema in draft 2020-12, with the foreign keywords and unresolved references that were met."""

    def __init__(self, schema: Schema, *, exact: bool = True) -> None:
        """exact: ignore every keyword unknown to the dialect; otherwise keep those that only exclude instances."""
        reader = _Reader(schema if isinstance(schema, dict) else {}, exact=exact)
        written = reader.read() if isinstance(schema, dict) else schema
        self.schema = schema if written == schema else written
        self.added = list(reader.added)
        """Keywords of other dialects that were kept, as their author probably meant them."""
        self.lost = reader.lost
        """References that cannot be resolved."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Context of a schema: dialect and base for references."""

    dialect: int
    resolver: Any
    """Resolver of `referencing` for this position."""
    exact: bool
    """Ignore every keyword unknown to the dialect."""


class _Reader:
    """Rewrites one document, with a definition for each referenced schema."""

    def __init__(self, root: dict[str, Any], *, exact: bool) -> None:
        self._root = root
        self._exact = exact
        self.added: dict[str, None] = {}
        """Keywords unknown to the dialect that were kept; a dict for its order."""
        self.lost: set[str] = set()
        """Unresolved references of a document without ids and anchors."""
        self._marks = list(_marks(root))
        self._names: dict[tuple[int, int, bool], str] = {}
        self._taken: set[str] = set()
        self._waiting: list[tuple[str, Schema, _Place]] = []

    def read(self) -> Schema:
        dialect = _dialect(self._root, _ANY)
        from referencing import Registry  # an extra: a gateway without models reads no schema

        resource = _specification(dialect).create_resource(self._root)
        place = _Place(dialect, None, self._exact)
        try:
            registry = Registry().with_resource(uri := resource.id() or "", resource)
            place = replace(place, resolver=(registry.crawl() if self._marks else registry).resolver(uri))
        except (AttributeError, TypeError, ValueError):  # malformed schemas are reported elsewhere
            pass
        written = self._node(self._root, place)
        if (name := self._names.get((id(self._root), dialect, self._exact))) is not None:
            written = {"$ref": f"#/$defs/{name}"}
        defined: dict[str, Schema] = {}
        while self._waiting:
            name, target, place = self._waiting.pop()
            defined[name] = self._node(target, place)
        return {**written, "$defs": defined} if defined else written

    def _schema(self, value: Any, place: _Place) -> Any:  # noqa: ANN401  # any JSON
        """Rewrite a subschema."""
        if not isinstance(value, dict):
            return value
        if (dialect := _dialect(value, place.dialect)) != place.dialect:
            place = replace(place, dialect=dialect)
        if self._marks and place.resolver is not None and any(isinstance(value.get(name), str) for name in _IDS):
            resource = _specification(dialect).create_resource(value)
            place = replace(place, resolver=place.resolver.in_subresource(resource))
        return self._node(value, place)

    def _node(self, schema: Any, place: _Place) -> Any:  # noqa: ANN401  # any JSON
        if not isinstance(schema, dict):
            return schema
        if 0 < place.dialect <= 7 and isinstance(schema.get("$ref"), str):  # draft-07, Core, 8.3
            schema = {"$ref": schema["$ref"]}
        written: dict[str, Any] = {}
        for keyword, value in schema.items():
            if keyword in _PLAIN:
                written[keyword] = value
            elif keyword not in _OF_A_RESOURCE and self._counts(keyword, value, place):
                self._keyword(keyword, schema, place, written)
        every = written.get("allOf")
        return False if isinstance(every, list) and any(part is False for part in every) else written

    def _counts(self, keyword: str, value: object, place: _Place) -> bool:
        """True if a keyword has a meaning in this dialect."""
        if place.dialect == _ANY:
            return True
        if keyword == "id":
            return place.dialect != 4 or not isinstance(value, str)
        if _FIRST.get(keyword, 0) <= place.dialect <= _LAST.get(keyword, 2020):
            return True
        if place.exact or keyword not in _RESTRICTIONS:
            return False
        self.added[keyword] = None
        return True

    def _keyword(self, keyword: str, schema: dict[str, Any], place: _Place, written: dict[str, Any]) -> None:
        """Add one keyword to the rewritten node."""
        value = schema[keyword]
        if keyword in _LIMITS and isinstance(schema.get(_LIMITS[keyword]), bool):  # draft-04, Validation, 5.1
            written[_LIMITS[keyword] if schema[_LIMITS[keyword]] else keyword] = value
        elif keyword in _LIMITS.values() and isinstance(value, bool):
            pass  # written with the limit
        elif keyword in {"items", "additionalItems"}:
            self._items(keyword, schema, place, written)
        elif keyword == "dependencies" and isinstance(value, dict):
            self._dependencies(value, place, written)
        elif keyword in {"$ref", "$dynamicRef", "$recursiveRef"} and isinstance(value, str):
            self._refer(keyword, value, place, written)
        else:
            turned = keyword in _NEGATED or (keyword == "contains" and "maxContains" in schema)
            inner = replace(place, exact=True) if turned else place
            new = self._value(keyword, value, inner)
            both = keyword == "allOf" and isinstance(new, list) and keyword in written  # one is of a reference
            written[keyword] = [*written[keyword], *new] if both else new

    def _value(self, keyword: str, value: Any, place: _Place) -> Any:  # noqa: ANN401  # any JSON
        if keyword in NAMED and isinstance(value, dict):
            return {name: self._schema(part, place) for name, part in value.items()}
        if keyword in LISTS and isinstance(value, list):
            return [self._schema(part, place) for part in value]
        return self._schema(value, place) if keyword in SINGLE else value

    def _items(self, keyword: str, schema: dict[str, Any], place: _Place, written: dict[str, Any]) -> None:
        """Rewrite `items`: one schema or, up to 2019-09, one per position with `additionalItems` for the rest."""
        value, listed = schema[keyword], isinstance(schema.get("items"), list)
        if listed and keyword == "items":
            written["prefixItems"] = [self._schema(part, place) for part in value]
        elif listed or keyword == "items":
            written["items"] = self._schema(value, place)

    def _dependencies(self, value: dict[str, Any], place: _Place, written: dict[str, Any]) -> None:
        named = {name: [part] if isinstance(part, str) else part for name, part in value.items()}
        required = {name: part for name, part in named.items() if isinstance(part, list)}
        others = {name: self._schema(part, place) for name, part in named.items() if name not in required}
        if required:
            written["dependentRequired"] = written.get("dependentRequired", {}) | required
        if others and place.dialect <= 7:  # later, what it evaluates would count
            written["dependentSchemas"] = written.get("dependentSchemas", {}) | others

    def _refer(self, keyword: str, value: str, place: _Place, written: dict[str, Any]) -> None:
        anchor = "$recursiveAnchor" if keyword == "$recursiveRef" else value.partition("#")[2]
        if keyword != "$ref" and self._marks.count(anchor) > 1:
            written[keyword] = value  # its target depends on the dynamic scope
            return
        target = self._reference(value, place)
        if target is None:
            written[keyword] = value
            self.lost |= set() if self._marks else {value}
        elif isinstance(target, str) and "$ref" not in written:
            written["$ref"] = target
        else:
            written["allOf"] = [*written.get("allOf", []), {"$ref": target} if isinstance(target, str) else target]

    def _reference(self, reference: str, place: _Place) -> str | bool | None:
        """Rewritten reference to a definition, or the boolean schema it refers to; None if it cannot be resolved."""
        if not self._marks and reference != "#" and not reference.startswith("#/"):
            return None
        from referencing.exceptions import Unresolvable

        try:
            found = place.resolver.lookup(reference)
        except (Unresolvable, AttributeError, TypeError, ValueError):  # of malformed schemas
            return None
        target = found.contents
        if not isinstance(target, dict):
            return target if isinstance(target, bool) else None
        dialect = _dialect(target, place.dialect)
        key = (id(target), dialect, place.exact)
        if (name := self._names.get(key)) is None:
            name = self._names[key] = self._new_name(reference)
            self._waiting.append((name, target, _Place(dialect, found.resolver, place.exact)))
        return f"#/$defs/{name}"

    def _new_name(self, reference: str) -> str:
        name = re.sub("[^A-Za-z0-9_.-]", "_", re.split("[/#]", reference)[-1]) or "root"
        while name in self._taken:
            name += f"-{len(self._taken)}"
        self._taken.add(name)
        return name


def _dialect(schema: Any, otherwise: int) -> int:  # noqa: ANN401  # any JSON
    """Draft that the `$schema` of a schema names, else `otherwise`."""
    uri = schema.get("$schema") if isinstance(schema, dict) else None
    found = _DIALECT.fullmatch(uri) if isinstance(uri, str) else None
    return otherwise if found is None else int(next(filter(None, found.groups())))


def _marks(root: object) -> Iterator[str]:
    """Yield one name per id or anchor: the name of a `$dynamicAnchor`, otherwise the keyword."""
    waiting = [root]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            for keyword in MARKS & value.keys():
                if value[keyword] is not False:
                    yield str(value[keyword]) if keyword == "$dynamicAnchor" else keyword
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


DATA = frozenset({"const", "enum", "default", "examples"})
"""Keywords whose value is data, even if it looks like a schema."""
MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"})
"""Keywords whose value maps arbitrary names to schemas."""


def map_schemas(schema: Any, change: Change) -> Any:  # noqa: ANN401  # any JSON
    """Return a document with `change` applied to each schema, inner schemas first.

    Data and names are unchanged. Returns the same object if nothing changes.
    """
    if isinstance(schema, list):
        parts = [map_schemas(part, change) for part in schema]
        return schema if all(new is old for new, old in zip(parts, schema, strict=True)) else parts
    if not isinstance(schema, dict):
        return schema
    written = {keyword: _mapped_value(keyword, value, change) for keyword, value in schema.items()}
    return change(schema if all(written[keyword] is schema[keyword] for keyword in schema) else written)


def _mapped_value(keyword: str, value: Any, change: Change) -> Any:  # noqa: ANN401  # any JSON
    if keyword in DATA:
        return value
    if keyword not in MAPS or not isinstance(value, dict):
        return map_schemas(value, change)
    named = {name: map_schemas(part, change) for name, part in value.items()}
    return value if all(named[name] is value[name] for name in value) else named


def _specification(dialect: int) -> Specification[Any]:
    """The rules of a draft for ids and references. dialect: a draft's number or year, or `_ANY`."""
    from referencing.jsonschema import DRAFT4, DRAFT6, DRAFT7, DRAFT201909, DRAFT202012

    return {4: DRAFT4, 6: DRAFT6, 7: DRAFT7, 2019: DRAFT201909}.get(dialect, DRAFT202012)
