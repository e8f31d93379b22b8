"""Parts of a JSON Schema: types, references, and operations that join schemas."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias, cast

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

Schema: TypeAlias = "bool | dict[str, object]"

ALL_TYPES = frozenset({"null", "boolean", "object", "array", "number", "string"})
"""JSON's types; `integer` is a part of `number`."""
UNIQUE = "x-unique-items"
"""Replaces `uniqueItems` in a node where the stream itself keeps strings unique, see `UniqueNames`."""
MAX_NODES = 20_000
"""Most subschemas visited or created while one document is rewritten."""


MAX_DEPTH = 100
"""Deepest nesting of subschemas in a rewritten document."""


class UnsupportedError(Exception):
    """A keyword that cannot be expressed with those that llguidance supports."""

    def __init__(self, keyword: str, why: str) -> None:
        super().__init__(f"{keyword!r} {why}")
        self.keyword = keyword


class Document:
    """A root schema: resolves references, limits the work, collects warnings."""

    def __init__(self, root: Schema) -> None:
        self.root = root
        self.narrowed: dict[str, None] = {}
        """One sentence per restriction beyond those of the schema, in order."""
        self.impossibilities: list[str] = []
        """Reasons why parts of the schema match nothing."""
        self.unique_items = False
        """True once a node has `UNIQUE`."""
        self._nodes = 0
        self._depth = 0

    @contextmanager
    def deeper(self) -> Iterator[None]:
        """Context of one subschema. Raises `UnsupportedError` beyond `MAX_DEPTH`."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise UnsupportedError("the schema", f"needs more than {MAX_DEPTH} levels written without its keywords")
        try:
            yield
        finally:
            self._depth -= 1

    def count(self, nodes: int = 1) -> None:
        """Count visited subschemas. Raises `UnsupportedError` beyond `MAX_NODES`."""
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise UnsupportedError("the schema", f"needs more than {MAX_NODES} subschemas written without its keywords")

    def narrow(self, sentence: str) -> None:
        """Record a restriction beyond those of the schema."""
        self.narrowed[sentence] = None

    def impossible(self, sentence: str) -> None:
        """Record why a part matches nothing."""
        self.impossibilities.append(sentence)

    def target(self, schema: Schema) -> Schema:
        """Return the target of a schema that is only a reference within the document; any other schema itself."""
        for _ in range(16):
            if isinstance(schema, bool) or "$ref" not in schema:
                return schema
            if significant(schema) != {"$ref"}:
                return schema
            schema = self.resolve(schema["$ref"])
        raise UnsupportedError("$ref", "refers to itself")

    def resolve(self, reference: object) -> Schema:
        """Return the target of a reference. Raises `UnsupportedError` for one that leaves the document."""
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise UnsupportedError("$ref", f"to {reference!r} is not within the schema")
        node: object = self.root
        for part in reference.split("/")[1:]:
            name = _unquoted(part).replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict) and name in node:
                node = node[name]
            elif isinstance(node, list) and name.isdecimal() and int(name) < len(node):
                node = node[int(name)]
            else:
                raise UnsupportedError("$ref", f"to {reference!r} leads nowhere")
        if not isinstance(node, bool | dict):
            raise UnsupportedError("$ref", f"to {reference!r} is no schema")
        return node


def is_whole(number: float) -> bool:
    """True for whole numbers, with or without a decimal point; False for infinity."""
    return isinstance(number, int) or number.is_integer()


def _unquoted(part: str) -> str:
    """Decode the percent escapes of a URI fragment part."""
    quoted = re.sub("%([0-9A-Fa-f]{2})", lambda found: chr(int(found[1], 16)), part)
    try:
        return quoted.encode("latin-1").decode()
    except ValueError:
        return part


ASSERTIONS = frozenset({
    "$ref", "type", "enum", "const", "multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum",
    "maxLength", "minLength", "pattern", "format", "items", "prefixItems", "maxItems", "minItems",
    "uniqueItems", "contains", "minContains", "maxContains", "maxProperties", "minProperties", "required",
    "properties", "patternProperties", "additionalProperties", "propertyNames", "dependentRequired",
    "dependentSchemas", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "unevaluatedProperties",
    "unevaluatedItems", "$dynamicRef", "$recursiveRef",
})  # fmt: skip
"""Keywords that can make an instance invalid; all others are annotations."""


def significant(schema: Mapping[str, object]) -> set[str]:
    """Return the keywords of a schema that can make an instance invalid."""
    return set(schema.keys() & ASSERTIONS)


def types_of(schema: Schema) -> frozenset[str] | None:
    """Return the types that a schema declares (`integer` separately), or None if it declares none."""
    if isinstance(schema, bool):
        return None
    if isinstance(kind := schema.get("type"), str):
        return frozenset({kind})
    if isinstance(kind, list):
        return frozenset(str(entry) for entry in kind)
    values = listed_values(schema)
    return None if values is None else frozenset(map(type_name, values))


def may_be(schema: Schema, kind: str) -> bool:
    """True if the declared types of a schema include a JSON type."""
    types = types_of(schema)
    return types is None or kind in types or (kind == "number" and "integer" in types)


def type_name(value: object) -> str:
    """Return the JSON type of a value; whole numbers are `integer`."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def schemas(value: object, keyword: str) -> list[Schema]:
    """Check and return a list of schemas. Raises `UnsupportedError` for anything else."""
    if not isinstance(value, list) or not all(isinstance(entry, bool | dict) for entry in value):
        raise UnsupportedError(keyword, "is no array of schemas")
    return cast("list[Schema]", value)


def named_schemas(value: object, keyword: str) -> dict[str, Schema]:
    """Check and return a map of schemas. Raises `UnsupportedError` for anything else."""
    if not isinstance(value, dict) or not all(isinstance(entry, bool | dict) for entry in value.values()):
        raise UnsupportedError(keyword, "is no object of schemas")
    return value


def subschemas(node: Mapping[str, object], *keywords: str) -> list[Schema]:
    """Return the subschemas under some keywords of a node: single, in lists, or in maps."""
    found: list[object] = []
    for keyword in keywords:
        if keyword in node:
            value = node[keyword]
            if keyword in _MAPS:
                value = list(value.values()) if isinstance(value, dict) else None
            found += value if isinstance(value, list) else [value]
    return [schema for schema in found if isinstance(schema, bool | dict)]


_MAPS = frozenset({"properties", "patternProperties", "dependentSchemas"})


def listed_values(schema: Mapping[str, object]) -> list[object] | None:
    """Return the values that `const` or `enum` lists, or None without either."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return values if isinstance(values, list) else None


def names(value: object, keyword: str) -> list[str]:
    """Check and return a list of property names. Raises `UnsupportedError` for anything else."""
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise UnsupportedError(keyword, "is no array of names")
    return cast("list[str]", value)


def all_of(parts: Iterable[Schema]) -> Schema:
    """Return the conjunction of schemas."""
    joined: dict[str, object] = {}
    others: list[Schema] = []
    for part in parts:
        if part is False:
            return False
        if isinstance(part, dict) and not _merge(joined, part):
            others.append(part)
    if not others:
        return joined or True
    return {"allOf": [joined, *others] if joined else others} if len(others) > 1 or joined else others[0]


def _merge(joined: dict[str, object], part: dict[str, object]) -> bool:
    """Merge a part into `joined` and return True if no keyword conflicts; `required` and `properties` are combined."""
    if not part.keys() <= {"type", "required", "properties"} or not joined.keys() <= {"type", "required", "properties"}:
        return False
    mine, its = joined.get("properties", {}), part.get("properties", {})
    if not isinstance(mine, dict) or not isinstance(its, dict) or mine.keys() & its.keys():
        return False
    if joined.get("type", part.get("type")) != part.get("type", joined.get("type")):
        return False
    required = [*cast("list[str]", joined.get("required", [])), *cast("list[str]", part.get("required", []))]
    joined.update(part)
    if required:
        joined["required"] = list(dict.fromkeys(required))
    if mine or its:
        joined["properties"] = {**mine, **its}
    return True


def any_of(parts: Sequence[Schema]) -> Schema:
    """Return the disjunction of schemas."""
    if any(part is True or part == {} for part in parts):
        return True
    real = [part for part in parts if part is not False]
    if not real:
        return False
    return real[0] if len(real) == 1 else {"anyOf": real}
