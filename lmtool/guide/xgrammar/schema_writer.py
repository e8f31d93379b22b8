"""JSON Schemas in xgrammar's notation: what is written is held exactly, or less is allowed; nothing is left out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from lmtool.guide.check import violations
from lmtool.guide.schema.document import ALL_TYPES, Document, Schema, UnsupportedError, schemas, significant, types_of
from lmtool.guide.xgrammar import notation, objects, scalars
from lmtool.guide.xgrammar.arrays import array
from lmtool.guide.xgrammar.conjunction import branches
from lmtool.guide.xgrammar.json_rules import JsonRules, literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lmtool.guide.xgrammar.notation import Rules

_BY_TYPE: Mapping[str, frozenset[str]] = {
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "number": frozenset({"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf"}),
    "object": frozenset({
        "properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties",
    }),
    "array": frozenset({"items", "prefixItems", "additionalItems", "minItems", "maxItems"}),
}  # fmt: skip
"""Keywords that say something of one type, and are held."""
_TYPED: frozenset[str] = frozenset().union(*_BY_TYPE.values())
_HELD = _TYPED | {"$ref", "type", "enum", "const", "allOf", "anyOf"}
_NEUTRAL: Mapping[str, object] = {"uniqueItems": False, "minContains": 1, "maxContains": None}
_SIMPLE = {"boolean": notation.choice([literal(True), literal(False)]), "null": literal(None)}  # noqa: FBT003


class SchemaWriter:
    """Writes the schemas of one document."""

    def __init__(self, root: Schema, rules: Rules, *, strict: bool, any_whitespace: bool) -> None:
        """strict: refuse what cannot be held, else leave it out with a warning."""
        self._document = Document(root)
        self._json = JsonRules(rules, any_whitespace=any_whitespace)
        self._rules = rules
        self._strict = strict
        self._known: dict[str, str | None] = {}
        self._lost: dict[str, None] = {}

    @property
    def warnings(self) -> tuple[str, ...]:
        """What of the schemas written is not held, or more narrowly than they say."""
        return tuple(dict.fromkeys([*self._lost, *self._document.narrowed]))

    def value(self, schema: Schema) -> str | None:
        """Return the expression of what a schema allows; None where that is nothing.

        Raises `UnsupportedError`, which names the keyword, for what cannot be held.
        """
        if isinstance(schema, bool) or not significant(schema):
            return None if schema is False else self._json.anything
        key = json.dumps(schema, sort_keys=True)
        if key not in self._known:
            self._known[key] = None if (body := self._body(schema)) is None else self._rules.new(body, "schema")
        return self._known[key]

    def _body(self, schema: dict[str, object]) -> str | None:
        held = self._without_unknown(schema)
        try:
            nodes = branches(held, self._document)
        except UnsupportedError as problem:
            self._lose(problem)
            return self.value({name: part for name, part in held.items() if name in _TYPED | {"type"}})
        return notation.choice([self._node(node) for node in nodes])

    def _without_unknown(self, schema: dict[str, object]) -> dict[str, object]:
        """A schema with the keywords that are held; `oneOf` becomes `anyOf` where it need not be exact."""
        held = dict(schema)
        for keyword in sorted(significant(schema) - _HELD):
            given = held.pop(keyword)
            if keyword in _NEUTRAL and given == _NEUTRAL[keyword]:
                continue
            self._lose(UnsupportedError(keyword, "is not held by xgrammar"))
            if keyword == "oneOf":
                held = {"allOf": [held, {"anyOf": schemas(given, keyword)}]}
        return held

    def _lose(self, problem: UnsupportedError) -> None:
        """Raise in strict mode, else remember what is not held."""
        if self._strict:
            raise problem
        self._lost[f"{problem}, and is ignored"] = None

    def _node(self, node: dict[str, object]) -> str | None:
        if "$ref" in node:
            return self._reference(node["$ref"])
        node = self._without_unknown(node)
        if "allOf" in node:
            return self.value(node)
        if "enum" in node or "const" in node:
            return self._values(node)
        kinds = types_of(node) or ALL_TYPES
        if not kinds <= ALL_TYPES | {"integer"}:
            raise UnsupportedError("type", f"is {node['type']!r:.60}; expected names of JSON's types")
        if kinds == ALL_TYPES and not node.keys() & _TYPED:
            return self._json.anything
        apart = kinds - {"integer"} if "number" in kinds else kinds
        return notation.choice([self._typed(kind, node) for kind in sorted(apart)])

    def _typed(self, kind: str, node: dict[str, object]) -> str | None:
        writers: Mapping[str, Callable[[dict[str, object]], str | None]] = {
            "string": lambda part: scalars.string(part, self._json),
            "integer": scalars.integer,
            "number": scalars.number,
            "array": lambda part: array(part, self._json, self.value),
            "object": lambda part: objects.object_(part, self._json, self.value),
        }
        if kind in _SIMPLE:
            return _SIMPLE[kind]
        own = {name: node[name] for name in node.keys() & _BY_TYPE["number" if kind == "integer" else kind]}
        try:
            written = writers[kind](own)
        except UnsupportedError as problem:
            self._lose(problem)
            return self._typed(kind, _less(own, problem))
        narrowed = {"number": scalars.narrowed, "object": objects.narrowed}.get(kind)
        if narrowed is not None and (told := narrowed(own)) is not None:
            self._document.narrow(told)
        return written

    def _values(self, node: dict[str, object]) -> str | None:
        """The values that a node names, without those that its other keywords exclude."""
        listed = node.get("enum", [node.get("const")])
        values = listed if isinstance(listed, list) else []
        rest = {name: part for name, part in node.items() if name != "enum"}
        if rest and not (rest.keys() == {"const"} and "enum" not in node):
            text = json.dumps(rest)
            values = [value for value in values if not violations(text, json.dumps(value))]
        return notation.choice([literal(value) for value in values])

    def _reference(self, reference: object) -> str | None:
        key = f"reference {reference}"
        if key not in self._known:
            target = self._document.resolve(reference)
            self._known[key] = name = self._rules.reserve("reference")
            self._rules.fill(name, self.value(target))
        return self._known[key]


def _less(node: dict[str, object], problem: UnsupportedError) -> dict[str, object]:
    """A node without the keyword that cannot be held; without any where the problem names none of them."""
    return {name: value for name, value in node.items() if name != problem.keyword} if problem.keyword in node else {}
