"""Random JSON Schemas of every keyword that a strict answer is held to, small enough for a model to finish.

They are of every dialect, and any of their keywords may stand in what must not match.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, TypeAlias

Schema: TypeAlias = "dict[str, Any] | bool"

NAMES = ("a", "b", "c", "ab", "id", "x-1", 'q"t', "über")
PATTERNS = (
    "^a$", "^[ab]$", "^[a-c]$", "^(a|b[0-9]*)$", "^x-", "^[a-z]{1,2}$", "^(id|x-.*)$", "^[a-z]+$", "a", "^.{1,3}$",
    "^[ab]{2}$", "^ü", "b$", "^[^a]*$",
)  # fmt: skip
"""Of names: some that match few names, some that match many, with common beginnings among them."""
TEXT_PATTERNS = ("^[a-z]{2,5}$", "^(yes|no)$", "^\\d{3}-\\d{2}$", "^[A-Z][a-z]*$", "a+b?$")
DIALECTS: dict[str, str | None] = {
    "none": None,
    "04": "http://json-schema.org/draft-04/schema#",
    "06": "http://json-schema.org/draft-06/schema#",
    "07": "http://json-schema.org/draft-07/schema#",
    "2019": "https://json-schema.org/draft/2019-09/schema",
    "2020": "https://json-schema.org/draft/2020-12/schema",
}
_ABOUT = ("array", "object", "string", "number")
FORMATS = ("date", "time", "date-time", "ipv4", "uuid", "email", "hostname", "duration", "json-pointer")


def spelled(schema: Any, dialect: str, rng: random.Random) -> Any:
    """A schema of 2020-12 as another dialect writes it, with the keywords that it has."""
    if dialect in {"none", "2020"} or not isinstance(schema, dict):
        return {True: {}, False: {"not": {}}}[schema] if isinstance(schema, bool) and dialect == "04" else schema
    written = {keyword: _spelled(keyword, value, dialect, rng) for keyword, value in schema.items()}
    if "$defs" in written:
        written["definitions"] = written.pop("$defs")
    if "prefixItems" in written:
        behind = written.pop("items", None)
        written["items"] = written.pop("prefixItems")
        written |= {} if behind is None else {"additionalItems": behind}
    if dialect != "2019" and (named := {**written.pop("dependentRequired", {}), **written.pop("dependentSchemas", {})}):
        written["dependencies"] = named
    if dialect == "04":
        for limit, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            written |= {limit: written[exclusive], exclusive: True} if exclusive in written else {}
        if "const" in written and rng.random() < 0.9:
            written["enum"] = [written.pop("const")]
    return written


def _spelled(keyword: str, value: Any, dialect: str, rng: random.Random) -> Any:
    if keyword in {"const", "enum", "required", "type", "uniqueItems", "dependentRequired"}:
        return value
    if keyword in {"properties", "patternProperties", "$defs", "dependentSchemas"}:
        return {name: spelled(part, dialect, rng) for name, part in value.items()}
    if keyword == "$ref":
        return value.replace("$defs", "definitions")
    if isinstance(value, list):
        return [spelled(part, dialect, rng) for part in value]
    return value if keyword == "additionalProperties" and isinstance(value, bool) else spelled(value, dialect, rng)


class Maker:
    """Draws schemas; one seed, one schema."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._defs: dict[str, Schema] = {}

    def schema(self) -> Schema:
        """A whole document without a dialect, mostly an object."""
        root = self._object(3) if self._rng.random() < 0.8 else self._node(3)
        if self._rng.random() < 0.25:
            root = self._combined(root, 2)
        if isinstance(root, dict) and self._defs:
            root = {**root, "$defs": self._defs}
        return root

    def schema_of_a_dialect(self) -> Schema:
        """A document that names its dialect, with the keywords that other schemas have in what must not match."""
        rng, dialect = self._rng, self._rng.choice(list(DIALECTS))
        kind = rng.choice(["array", "array", "object", "object", "string", "number", "any"])
        root = self._of_kind(kind, 1) if rng.random() < 0.8 else {"type": kind} if kind != "any" else {}
        for _ in range(rng.choice([0, 1, 1, 1, 2])):
            root = self._negated(root, kind)
        if rng.random() < 0.2:
            root = {"type": "object", "properties": {"a": root}, "required": ["a"], "additionalProperties": False}
        if not isinstance(root, dict):
            return root
        root = {**root, "$defs": self._defs} if self._defs else root
        if (
            dialect == "04" or rng.random() < 0.85
        ):  # the others have keywords that their dialect does not know, or knows otherwise
            root = spelled(root, dialect, rng)
        if self._defs and rng.random() < 0.15:
            [name, *_] = self._defs
            inner = rng.choice(list(DIALECTS)[1:])
            where = "definitions" if "definitions" in root else "$defs"
            text = json.dumps(spelled(self._array(1), inner, rng)).replace("#/$defs/", f"#/{where}/")
            part = json.loads(text.replace("#/definitions/", f"#/{where}/"))
            root[where] = {**root[where], name: {"$schema": DIALECTS[inner], **part}}
        return {"$schema": DIALECTS[dialect], **root} if DIALECTS[dialect] else root

    def _negated(self, node: Schema, kind: str) -> Schema:
        """The node with something beside it that must not match, or not together with something else."""
        rng, other, beside = self._rng, self._part(kind), dict(node) if isinstance(node, dict) else {}
        match rng.randrange(7):
            case 0 | 1:
                return {**beside, "not": other}
            case 2:
                return {**beside, "oneOf": [other, self._part(kind)]}
            case 3:
                return {**beside, "if": other, "then": self._part(kind), "else": self._part(kind)}
            case 4:
                double = {"not": {"not": self._part(kind)}}
                return {"anyOf": [{**beside, "not": {"anyOf": [other, self._part(kind)]}}, double]}
            case 5:
                return {"oneOf": [node, other]}
            case _:
                return {"allOf": [node, other]}

    def _of_kind(self, kind: str, depth: int) -> Schema:
        makers = {"array": self._array, "object": self._object, "string": self._string, "number": self._number}
        return makers[kind](depth) if kind in makers else self._node(depth)

    def _part(self, kind: str) -> Schema:
        """Some keywords about one kind of instance, with or without its type."""
        rng = self._rng
        kind = kind if kind in _ABOUT and self._chance(0.85) else rng.choice(list(_ABOUT))
        found = self._of_kind(kind, rng.randrange(2)) if self._chance(0.4) else self._rare(kind)
        if isinstance(found, dict) and self._chance(0.4):
            found = {keyword: value for keyword, value in found.items() if keyword != "type"}
        if isinstance(found, dict) and len(found) > 1 and self._chance(0.3):
            keyword = rng.choice(list(found))
            found = {keyword: found[keyword]}
        return found

    def _rare(self, kind: str) -> Schema:
        """Keywords of which `schema` draws few."""
        rng, value = self._rng, self._values(0)
        counts = {"minContains": rng.randint(0, 2), "maxContains": rng.randint(1, 2)}
        ways: dict[str, list[Schema]] = {
            "array": [
                {"items": value},
                {"contains": value},
                {"contains": value, **counts},
                {"uniqueItems": True},
                {"uniqueItems": True, "items": {"enum": ["a", "b", 1]}},
                {"prefixItems": [value], "items": self._values(0)},
                {"prefixItems": [value], "items": False},
                {"prefixItems": [value], "unevaluatedItems": False},
                {"maxItems": rng.randint(0, 2)},
                {"enum": [[], ["a"], [1, 2], [["x"]]]},
            ],
            "object": [
                {"propertyNames": {"not": {"enum": rng.sample(NAMES, 2)}}},
                {"propertyNames": rng.choice([{"enum": rng.sample(NAMES, 3)}, {"const": "a"}, {"maxLength": 1}])},
                {"propertyNames": {"not": {"pattern": rng.choice(PATTERNS)}}},
                {"patternProperties": {rng.choice(PATTERNS): value}},
                {"additionalProperties": value},
                {"dependentRequired": {rng.choice("ab"): [rng.choice("bc")]}},
                {"dependentSchemas": {rng.choice("ab"): {"required": [rng.choice("bc")]}}},
                {"properties": {"a": value}, "unevaluatedProperties": False},
                {"properties": {"a": value}},
                {"required": ["a"]},
                {"minProperties": rng.randint(1, 2)},
                {"enum": [{}, {"a": 1}, {"a": {"b": 2}}]},
            ],
            "string": [
                {"pattern": rng.choice([*PATTERNS, *TEXT_PATTERNS])},
                {"format": rng.choice(FORMATS)},
                {"enum": ["a", "yes", "abc", ""]},
                {"const": "a"},
                {"maxLength": 2},
            ],
            "number": [
                {"multipleOf": rng.choice([2, 3])},
                {"type": "integer"},
                {"minimum": 3},
                {"exclusiveMaximum": 20},
                {"type": ["integer", "string"], "minimum": 3, "maxLength": 2},
                {"enum": [1, 2.5, 30]},
            ],
        }
        others: list[Schema] = [
            {"allOf": [value, self._string(0)]},
            {**self._reference(1), **rng.choice([self._values(0), self._number(0), {"minItems": 1}])},
        ]
        return rng.choice([*ways[kind], rng.choice(others)])

    def _chance(self, share: float) -> bool:
        return self._rng.random() < share

    def _node(self, depth: int) -> Schema:
        """A schema of any kind, scalars where the depth is used up."""
        kinds: list[Callable[[int], Schema]] = [self._string, self._number, self._values, self._word]
        if depth > 0:
            kinds += [self._object, self._object, self._object, self._array, self._reference]
        node = self._rng.choice(kinds)(depth - 1)
        return self._combined(node, depth - 1) if depth > 0 and self._chance(0.12) else node

    def _object(self, depth: int) -> Schema:
        rng, node = self._rng, dict[str, Any]()
        if self._chance(0.9):
            node["type"] = "object"
        if self._chance(0.6):
            chosen = rng.sample(NAMES, rng.randint(0, 4))
            node["properties"] = {name: self._node(depth) if self._chance(0.95) else False for name in chosen}
            required = [name for name in chosen if self._chance(0.5)]
            if required or self._chance(0.1):
                node["required"] = required
        if self._chance(0.1):
            node["required"] = [*node.get("required", []), rng.choice(["a", "b", "zz"])]
            node["required"] = list(dict.fromkeys(node["required"]))
        if self._chance(0.45):
            patterns = rng.sample(PATTERNS, 1 if self._chance(0.8) else 2)
            node["patternProperties"] = {pattern: self._node(depth) for pattern in patterns}
        if self._chance(0.75):
            node["additionalProperties"] = False if self._chance(0.7) else self._node(depth)
        self._counts(node)
        self._rare_of_objects(node, depth)
        return node

    def _counts(self, node: dict[str, Any]) -> None:
        if self._chance(0.3):
            node["minProperties"] = self._rng.randint(0, 3)
        if self._chance(0.3):
            node["maxProperties"] = max(node.get("minProperties", 0), self._rng.randint(0, 4))

    def _rare_of_objects(self, node: dict[str, Any], depth: int) -> None:
        rng = self._rng
        if self._chance(0.1):
            ways: list[Schema] = [
                {"pattern": rng.choice(PATTERNS)},
                {"enum": rng.sample(NAMES, 3)},
                {"maxLength": rng.randint(1, 3)},
                {"minLength": 1, "maxLength": 2},
            ]
            node["propertyNames"] = rng.choice(ways)
        if self._chance(0.06):
            node["dependentRequired"] = {rng.choice(NAMES): [rng.choice(NAMES)]}
        if self._chance(0.04):
            node["dependentSchemas"] = {rng.choice(NAMES): self._object(max(depth - 1, 0))}

    def _array(self, depth: int) -> Schema:
        rng, node = self._rng, dict[str, Any]({"type": "array"})
        node["items"] = self._node(depth)
        if self._chance(0.7):
            node["maxItems"] = rng.randint(0, 3)
            node["minItems"] = rng.randint(0, node["maxItems"])
        if self._chance(0.2):
            node["prefixItems"] = [self._node(depth) for _ in range(rng.randint(1, 2))]
        if self._chance(0.15):
            node |= {"uniqueItems": True, "items": {"enum": rng.sample([1, 2, "a", "b", None, True], 3)}}
        if self._chance(0.08):
            node["contains"] = self._node(0)
        return node

    def _string(self, _: int) -> Schema:
        rng, node = self._rng, dict[str, Any]({"type": "string"})
        way = rng.randrange(4)
        if way == 0:
            node |= {"maxLength": rng.randint(0, 6)}
        elif way == 1:
            node["minLength"] = rng.randint(0, 4)
            node["maxLength"] = node["minLength"] + rng.randint(0, 4)
        elif way == 2:
            node["pattern"] = rng.choice(TEXT_PATTERNS)
        else:
            node["format"] = rng.choice(FORMATS)
        return node

    def _number(self, _: int) -> Schema:
        rng, node = self._rng, dict[str, Any]({"type": self._rng.choice(["integer", "number"])})
        low = rng.randint(-20, 100)
        if self._chance(0.7):
            node[rng.choice(["minimum", "exclusiveMinimum"])] = low
            node[rng.choice(["maximum", "exclusiveMaximum"])] = low + rng.randint(1, 50) + (0.5 if low % 2 else 0)
        if self._chance(0.15):
            node["multipleOf"] = rng.choice([2, 3, 5, 0.5])
        return node

    def _values(self, _: int) -> Schema:
        rng = self._rng
        values: list[Any] = [1, "a", "b", None, True, False, 2.5, "", {"a": 1}, ["x"], "ü"]
        return {"enum": rng.sample(values, rng.randint(1, 4))} if self._chance(0.6) else {"const": rng.choice(values)}

    def _word(self, _: int) -> Schema:
        ways: list[Schema] = [{"type": "boolean"}, {"type": "null"}, {"type": ["integer", "null"]}]
        return self._rng.choice(ways)

    def _reference(self, depth: int) -> Schema:
        name = self._rng.choice("de")
        if name not in self._defs:
            self._defs[name] = True  # what is within may refer to it
            self._defs[name] = self._rng.choice([self._object, self._array])(min(depth, 1))
        return {"$ref": f"#/$defs/{name}"}

    def _combined(self, node: Schema, depth: int) -> Schema:
        """The node beside, or within, a combination."""
        rng, deep = self._rng, max(depth, 0)
        match rng.randrange(8):
            case 0:
                return {"anyOf": [node, self._node(deep)]}
            case 1:
                return {"oneOf": [node, self._node(deep)]}
            case 2:
                return {"allOf": [node, self._object(deep)]}
            case 3 if isinstance(node, dict):
                return {**node, "anyOf": [self._object(deep), self._object(deep)]}
            case 4 if isinstance(node, dict):
                return {
                    **node,
                    "not": rng.choice([{"required": ["a"]}, {"const": {}}, {"properties": {"b": {"const": 1}}}]),
                }
            case 5 if isinstance(node, dict):
                condition = {"properties": {"a": {"const": 1}}, "required": ["a"]}
                return {**node, "if": condition, "then": {"required": ["b"]}}
            case 6:
                return {"oneOf": [node, self._node(0), {"type": "null"}]}
            case _:
                return {"allOf": [node, {"minProperties": rng.randint(0, 2), "maxProperties": rng.randint(2, 3)}]}
