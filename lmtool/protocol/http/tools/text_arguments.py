"""Arguments that a model writes as plain text between tags, as parts of a structural tag that hold their schemas."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lmtool.core.errors import ConstraintError
from lmtool.protocol.http.tools.argument_types import resolved, types_of
from lmtool.protocol.http.tools.call_grammar import ANNOTATIONS, const, sequence
from lmtool.protocol.http.tools.schema import alone

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lmtool.protocol.http.tools.call_grammar import CallContext, Part
    from lmtool.protocol.http.tools.definitions import Tool

_ANY_NAME = "[A-Za-z0-9_.$-]{1,64}"
_OF_STRINGS = frozenset({"const", "enum", "format", "maxLength", "minLength", "not", "pattern"})
_MAX_DEPTH = 8
_DATE = "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "ipv4": rf"({_BYTE}\.){{3}}{_BYTE}",
    "email": r"[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z]{2,})+",
}
"""Formats of strings that are enforced here; others say nothing of a text."""


@dataclass(frozen=True, slots=True)
class ArgumentTags:
    """What stands around an argument's name and value: marks, which may be special tokens, and texts between them."""

    before: tuple[str, ...]
    between: tuple[str, ...]
    after: tuple[str, ...]
    """The last one ends a value wherever it stands."""
    separator: str
    """Behind each argument."""


def text_call(begin: str, tags: ArgumentTags, end: str = "") -> Callable[[Tool, CallContext], Part]:
    """How a tool is called. begin: with `{name}` for its name."""

    def call(tool: Tool, context: CallContext) -> Part:
        parts = [const(begin.format(name=tool.name)), *_Arguments(tool, context, tags).parts()]
        return sequence(*parts, *([const(end)] if end else []))

    return call


class _Arguments:
    """The arguments of one tool."""

    def __init__(self, tool: Tool, context: CallContext, tags: ArgumentTags) -> None:
        self._tool, self._context, self._tags = tool, context, tags
        self._root = context.schema(tool)

    def parts(self) -> list[Part]:
        """One part for each property, in the schema's order."""
        properties, required = self._context.parameters(self._tool)
        if properties is None:
            return [self._free()]
        return [
            self._one(name, schema, required=name in required)
            for name, schema in properties.items()
            if schema is not False or name in required
        ]

    def _free(self) -> Part:
        """Any arguments."""
        schema = self._root.get("additionalProperties", True)
        one = self._tagged({"type": "regex", "pattern": _ANY_NAME}, self._value(schema))
        return {"type": "tags_with_separator", "tags": [one], "separator": "", "at_least_one": False}

    def _one(self, name: str, schema: object, *, required: bool) -> Part:
        if any(mark[:1] in name for mark in (*self._tags.before, *self._tags.between) if mark.strip()):
            raise ConstraintError(
                f"the parameter {name!r} of the tool {self._tool.name!r} cannot be written in the form of this model's "
                "calls",
                "name it in plain letters",
            )
        tagged = self._tagged(const(name), self._value(schema))
        return tagged if required else {"type": "optional", "content": tagged}

    def _tagged(self, name: Part, value: Part) -> Part:
        before, between = map(self._marks, (self._tags.before, self._tags.between))
        return sequence(
            *before, name, *between, value, *([const(self._tags.separator)] if self._tags.separator else [])
        )

    def _marks(self, marks: Sequence[str]) -> list[Part]:
        return [self._context.mark(mark) for mark in marks]

    def _value(self, schema: object) -> Part:
        """A value and what ends it."""
        ways = _ways(schema, self._root)
        if any(_OF_STRINGS.isdisjoint(way) and "string" in types_of(way, self._root) for way in ways):
            end = self._tags.after[-1]
            if end in self._context.special:
                return sequence({"type": "any_text"}, self._context.mark(end))
            return {"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": end}
        written = [self._way(way) for way in ways]
        return written[0] if len(written) == 1 else {"type": "or", "elements": written}

    def _way(self, schema: Mapping[str, Any]) -> Part:
        """A value of a schema that allows strings only, or none, and what ends it."""
        types = types_of(schema, self._root)
        if (values := _listed(schema)) is not None:
            texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
            return self._matching(["|".join(map(re.escape, texts))])
        if types == {"string"}:
            return self._string(schema)
        if types == {"boolean"}:
            return self._matching(["true|false|True|False"])
        if types == {"null"}:
            return self._matching(["null|None"])
        part: Part = {"type": "json_schema", "json_schema": alone(schema, self._root)}
        return sequence(part if self._tool.strict else {**part, "strict": False}, *self._marks(self._tags.after))

    def _matching(self, patterns: Sequence[str]) -> Part:
        """A text that matches some patterns, and what ends it."""
        first, *others = patterns
        *before, mark = self._tags.after
        part: Part = {"type": "regex", "pattern": first, "also": others}
        if mark in self._context.special:
            return sequence({**part, "end": "".join(before)}, self._context.mark(mark))
        return {**part, "end": "".join(self._tags.after), "excludes": [mark]}

    def _string(self, schema: Mapping[str, Any]) -> Part:
        low, high = schema.get("minLength", 0), schema.get("maxLength", "")
        patterns = [rf"(?s:.{{{low},{high}}})"]
        if isinstance(pattern := schema.get("pattern"), str):
            patterns.append(_whole(pattern))
        if (known := _FORMATS.get(str(schema.get("format")))) is not None:
            patterns.append(known)
        return self._matching(patterns)


def _flat(schema: object, root: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    """A schema with the keywords of what it refers to, and of all parts of its `allOf`, as its own."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return {}
    own = {keyword: value for keyword, value in schema.items() if keyword not in ANNOTATIONS | {"$ref", "allOf"}}
    parts = list(schema["allOf"]) if isinstance(schema.get("allOf"), list) else []
    if isinstance(reference := schema.get("$ref"), str):
        parts.append(resolved(reference, root))
    joined: dict[str, Any] = {}
    for part in parts:
        joined |= _flat(part, root, depth + 1)
    return joined | own


def _ways(schema: object, root: Mapping[str, Any], depth: int = 0) -> list[Mapping[str, Any]]:
    """Schemas of which each allows strings only, or none, and which together allow the same."""
    flat, types = _flat(schema, root), types_of(schema, root)
    if "string" not in types and isinstance(schema, dict):
        return [schema]
    for keyword in ("anyOf", "oneOf"):
        if isinstance(branches := flat.pop(keyword, None), list) and depth < _MAX_DEPTH:
            return [way for branch in branches for way in _ways({**flat, **_flat(branch, root)}, root, depth + 1)]
    if types == {"string"} or _listed(flat) is not None:
        return [flat]
    others = sorted(types - {"string", "integer"} if "number" in types else types - {"string"})
    return [{**flat, "type": "string"}, *([{**flat, "type": others}] if others else [])]


def _listed(schema: Mapping[str, Any]) -> list[Any] | None:
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return values if isinstance(values, list) and values else None


def _whole(pattern: str) -> str:
    """A pattern, which may be found anywhere in a text, as one of the whole text."""
    return "|".join(map(_whole_alternative, _alternatives(pattern)))


def _whole_alternative(pattern: str) -> str:
    inner = pattern.removeprefix("^")
    anchored = re.search(r"(?<!\\)(?:\\\\)*\$$", inner) is not None
    start, end = "" if inner != pattern else "(?s:.*)", "" if anchored else "(?s:.*)"
    return f"{start}(?:{inner[:-1] if anchored else inner}){end}"


def _alternatives(pattern: str) -> list[str]:
    """What stands between the `|` of a pattern that are in no group."""
    found, depth = [""], 0
    for piece in re.findall(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", pattern, re.DOTALL):
        depth += {"(": 1, ")": -1}.get(piece, 0)
        if piece == "|" and depth == 0:
            found.append("")
        else:
            found[-1] += piece
    return found
