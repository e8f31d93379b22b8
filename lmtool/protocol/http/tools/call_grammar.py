"""Grammars of tool calls, written as parts of a structural tag."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from lmtool.core.errors import ConstraintError
from lmtool.protocol.http.tools.argument_types import all_of, types_of
from lmtool.protocol.http.tools.definitions import alone

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lmtool.protocol.http.tools.definitions import Tool, ToolUse


ANNOTATIONS = frozenset({
    "$comment", "$defs", "$id", "$schema", "default", "definitions", "deprecated", "description", "examples",
    "readOnly", "title", "writeOnly",
})  # fmt: skip
"""Keywords that do not constrain a value."""
_OF_PARAMETERS = ANNOTATIONS | {"type", "properties", "required", "additionalProperties"}

Part: TypeAlias = dict[str, Any]
"""A part of a structural tag."""


@dataclass(frozen=True, slots=True)
class CallContext:
    """Tools and special tokens that a grammar of calls depends on."""

    tools: ToolUse
    special: Mapping[str, int]
    """Ids of the format's marks that are special tokens."""

    def mark(self, text: str) -> Part:
        """Part for a mark: a special token, or its text."""
        return {"type": "token", "token": self.special[text]} if text in self.special else const(text)

    def schema(self, tool: Tool) -> Mapping[str, Any]:
        """Schema of a tool's arguments: any object if the tool is not strict and no call is forced."""
        return tool.schema if tool.strict or self.tools.forced else {"type": "object"}

    def parameters(self, tool: Tool) -> tuple[Mapping[str, object] | None, set[str]]:
        """Schemas of a tool's arguments by name (None: any arguments), and the names of required ones.

        Raises `ConstraintError` for a strict tool whose schema has keywords other than those of its properties.
        """
        schema = self.schema(tool)
        if tool.strict and (others := sorted(schema.keys() - _OF_PARAMETERS)):
            raise ConstraintError(
                f"the parameters of the strict tool {tool.name!r} have {others[0]!r} beside their properties, which "
                "cannot be enforced in the form in which this model writes calls",
                'say it of the properties themselves, or send "strict": false',
            )
        properties, required = schema.get("properties"), schema.get("required")
        if not isinstance(properties, dict):
            properties = {} if schema.get("additionalProperties") is False else None
        return properties, set(required) if isinstance(required, list) else set()

    def json(self, tool: Tool) -> Part:
        """Part for a tool's arguments as a JSON object."""
        part: Part = {"type": "json_schema", "json_schema": self.schema(tool)}
        return {**part, "strict": False} if self.tools.forced and not tool.strict else part


@dataclass(frozen=True, slots=True)
class CallGrammar:
    """Grammar of calls in one format. Marks may be special tokens; the rest is plain text."""

    call: Callable[[Tool, CallContext], Part]
    """Part for one call, between `before` and `after`."""
    before: str = ""
    """Mark before each call."""
    after: str = ""
    """Mark after each call."""
    separator: str = ""
    """Text between two calls."""
    opening: str = ""
    """Mark before all calls."""
    lead: str = ""
    """Text after `opening`."""
    tail: str = ""
    """Text after all calls."""
    closing: str = ""
    """Mark after `tail`."""

    @property
    def trigger(self) -> str:
        """Mark that starts the calls; "" if there is none."""
        return self.opening or self.before

    def section(self, context: CallContext, *, triggered: bool = False) -> Part:
        """Part for all calls of an answer. triggered: whether it follows `trigger`, and so must not repeat it."""
        before = self.before if not triggered or self.opening else ""
        calls = [
            sequence(*_marks(context, before), self.call(tool, context), *_marks(context, self.after))
            for tool in context.tools.tools
        ]
        if not triggered or self.opening:
            several: Part = {
                "type": "tags_with_separator",
                "tags": calls,
                "separator": self.separator,
                "at_least_one": True,
                "stop_after_first": not context.tools.parallel or context.tools.mode == "named",
            }
        else:
            several = calls[0] if len(calls) == 1 else {"type": "or", "elements": calls}
        head = [*_marks(context, "" if triggered else self.opening), *([const(self.lead)] if self.lead else [])]
        end = [*([const(self.tail)] if self.tail else []), *_marks(context, self.closing)]
        return sequence(*head, several, *end)

    def beside_text(self, context: CallContext) -> Part | None:
        """Part for free text that may contain calls; None if no mark separates calls from text."""
        if not self.trigger:
            return None
        if self.trigger in context.special:
            calls = {"type": "optional", "content": self.section(context)}
            return {"type": "sequence", "elements": [{"type": "any_text"}, calls]}
        tag = {"begin": self.trigger, "content": self.section(context, triggered=True), "end": ""}
        return {"type": "triggered_tags", "triggers": [self.trigger], "tags": [tag]}


def const(text: str) -> Part:
    """Part for a fixed text."""
    return {"type": "const_string", "value": text}


def sequence(*parts: Part) -> Part:
    """Part for several parts in a row."""
    return parts[0] if len(parts) == 1 else {"type": "sequence", "elements": list(parts)}


def _marks(context: CallContext, mark: str) -> list[Part]:
    return [context.mark(mark)] if mark else []


def json_call(arguments: str, before: str = "", after: str = "") -> Callable[[Tool, CallContext], Part]:
    """Grammar of a call `{"name": ..., "arguments": {...}}`. arguments: second name. before, after: texts around."""

    def call(tool: Tool, context: CallContext) -> Part:
        return {
            "type": "tag",
            "begin": f'{before}{{"name": {json.dumps(tool.name)}, "{arguments}": ',
            "content": context.json(tool),
            "end": f"}}{after}",
        }

    return call


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
"""String formats that are enforced; others are ignored."""


@dataclass(frozen=True, slots=True)
class ArgumentTags:
    """Marks (possibly special tokens) and texts around the name and the plain-text value of an argument."""

    before: tuple[str, ...]
    between: tuple[str, ...]
    after: tuple[str, ...]
    """The last one ends the value wherever it occurs."""
    separator: str
    """Text after each argument."""


def text_call(begin: str, tags: ArgumentTags, end: str = "") -> Callable[[Tool, CallContext], Part]:
    """Grammar of a call with plain-text arguments. begin: text before them, with `{name}` for the tool's name."""

    def call(tool: Tool, context: CallContext) -> Part:
        parts = [const(begin.format(name=tool.name)), *_Arguments(tool, context, tags).parts()]
        return sequence(*parts, *([const(end)] if end else []))

    return call


class _Arguments:
    """Grammar of the plain-text arguments of one tool."""

    def __init__(self, tool: Tool, context: CallContext, tags: ArgumentTags) -> None:
        self._tool, self._context, self._tags = tool, context, tags
        self._root = context.schema(tool)

    def parts(self) -> list[Part]:
        """One part for each property, in the schema's order; a single one if any arguments are allowed."""
        properties, required = self._context.parameters(self._tool)
        if properties is None:
            value = self._value(self._root.get("additionalProperties", True))
            tag = self._tagged({"type": "regex", "pattern": _ANY_NAME}, value)
            return [{"type": "tags_with_separator", "tags": [tag], "separator": "", "at_least_one": False}]
        return [
            self._argument(name, schema, required=name in required)
            for name, schema in properties.items()
            if schema is not False or name in required
        ]

    def _argument(self, name: str, schema: object, *, required: bool) -> Part:
        if any(mark[:1] in name for mark in (*self._tags.before, *self._tags.between) if mark.strip()):
            raise ConstraintError(
                f"the parameter {name!r} of the tool {self._tool.name!r} cannot be written in the form of this model's "
                "calls",
                "name it in plain letters",
            )
        tagged = self._tagged(const(name), self._value(schema))
        return tagged if required else {"type": "optional", "content": tagged}

    def _tagged(self, name: Part, value: Part) -> Part:
        separator = [const(self._tags.separator)] if self._tags.separator else []
        return sequence(*self._marks(self._tags.before), name, *self._marks(self._tags.between), value, *separator)

    def _marks(self, marks: Sequence[str]) -> list[Part]:
        return [self._context.mark(mark) for mark in marks]

    def _value(self, schema: object) -> Part:
        """Part for a value and its end."""
        variants = _variants(schema, self._root)
        if any(_OF_STRINGS.isdisjoint(one) and "string" in types_of(one, self._root) for one in variants):
            end = self._tags.after[-1]
            if end in self._context.special:
                return sequence({"type": "any_text"}, self._context.mark(end))
            return {"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": end}
        written = [self._variant(variant) for variant in variants]
        return written[0] if len(written) == 1 else {"type": "or", "elements": written}

    def _variant(self, schema: Mapping[str, Any]) -> Part:
        """Part for a value, and its end, of a schema that allows only strings or no strings."""
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
        """Part for a text that matches all patterns, and its end."""
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
    """A schema with the keywords of its `$ref` and `allOf` merged into it."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return {}
    own = {keyword: value for keyword, value in schema.items() if keyword not in ANNOTATIONS | {"$ref", "allOf"}}
    joined: dict[str, Any] = {}
    for part in all_of(schema, root):
        joined |= _flat(part, root, depth + 1)
    return joined | own


def _variants(schema: object, root: Mapping[str, Any], depth: int = 0) -> list[Mapping[str, Any]]:
    """Schemas that together allow the same as this one; each allows only strings or no strings."""
    flat, types = _flat(schema, root), types_of(schema, root)
    if "string" not in types and isinstance(schema, dict):
        return [schema]
    for keyword in ("anyOf", "oneOf"):
        if isinstance(branches := flat.pop(keyword, None), list) and depth < _MAX_DEPTH:
            return [one for branch in branches for one in _variants({**flat, **_flat(branch, root)}, root, depth + 1)]
    if types == {"string"} or _listed(flat) is not None:
        return [flat]
    others = sorted(types - {"string", "integer"} if "number" in types else types - {"string"})
    return [{**flat, "type": "string"}, *([{**flat, "type": others}] if others else [])]


def _listed(schema: Mapping[str, Any]) -> list[Any] | None:
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return values if isinstance(values, list) and values else None


def _whole(pattern: str) -> str:
    """A pattern for the whole text, from one that may match anywhere in it."""
    return "|".join(map(_whole_alternative, _alternatives(pattern)))


def _whole_alternative(pattern: str) -> str:
    inner = pattern.removeprefix("^")
    anchored = re.search(r"(?<!\\)(?:\\\\)*\$$", inner) is not None
    start, end = "" if inner != pattern else "(?s:.*)", "" if anchored else "(?s:.*)"
    return f"{start}(?:{inner[:-1] if anchored else inner}){end}"


def _alternatives(pattern: str) -> list[str]:
    """Alternatives of a pattern: split at each `|` outside groups and character classes."""
    alternatives, depth = [""], 0
    for piece in re.findall(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", pattern, re.DOTALL):
        depth += {"(": 1, ")": -1}.get(piece, 0)
        if piece == "|" and depth == 0:
            alternatives.append("")
        else:
            alternatives[-1] += piece
    return alternatives
