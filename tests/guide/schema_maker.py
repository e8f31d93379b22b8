"""Random JSON Schemas of every keyword that a strict answer is held to, small enough for a model to finish."""

from __future__ import annotations

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
FORMATS = ("date", "time", "date-time", "ipv4", "uuid", "email", "hostname", "duration", "json-pointer")


class Maker:
    """Draws schemas; one seed, one schema."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._defs: dict[str, Schema] = {}

    def schema(self) -> Schema:
        """A whole document, mostly an object."""
        root = self._object(3) if self._rng.random() < 0.8 else self._node(3)
        if self._rng.random() < 0.25:
            root = self._combined(root, 2)
        if isinstance(root, dict) and self._defs:
            root = {**root, "$defs": self._defs}
        return root

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
