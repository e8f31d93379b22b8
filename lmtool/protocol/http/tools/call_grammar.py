"""The form of a model's calls as parts of a structural tag: what an answer must match that calls tools in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from lmtool.core.errors import ConstraintError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lmtool.protocol.http.tools.definitions import Tool, ToolUse

ANNOTATIONS = frozenset({
    "$comment", "$defs", "$id", "$schema", "default", "definitions", "deprecated", "description", "examples",
    "readOnly", "title", "writeOnly",
})  # fmt: skip
"""Keywords that say nothing of a value."""
_OF_PARAMETERS = ANNOTATIONS | {"type", "properties", "required", "additionalProperties"}

Part: TypeAlias = dict[str, Any]
"""A part of a structural tag."""


@dataclass(frozen=True, slots=True)
class CallContext:
    """What a grammar of calls depends on beside the form."""

    tools: ToolUse
    special: Mapping[str, int]
    """Those of the form's marks that are special tokens, with their ids."""

    def mark(self, text: str) -> Part:
        """A mark: a special token or its text."""
        return {"type": "token", "token": self.special[text]} if text in self.special else const(text)

    def schema(self, tool: Tool) -> Mapping[str, Any]:
        """What a tool's arguments must match: where nothing forces a call, anything, unless the tool is strict."""
        return tool.schema if tool.strict or self.tools.forced else {"type": "object"}

    def parameters(self, tool: Tool) -> tuple[Mapping[str, object] | None, set[str]]:
        """The schemas of a tool's arguments by name, None where it may have any, and those that are required.

        Raises `ConstraintError` for a strict tool whose schema says more than that of its arguments.
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
        """A tool's arguments as a JSON object."""
        part: Part = {"type": "json_schema", "json_schema": self.schema(tool)}
        return {**part, "strict": False} if self.tools.forced and not tool.strict else part


@dataclass(frozen=True, slots=True)
class CallGrammar:
    """How calls are written in one form. Marks may be special tokens; the rest is plain text."""

    call: Callable[[Tool, CallContext], Part]
    """One call, between `before` and `after`."""
    before: str = ""
    """Mark before each call."""
    after: str = ""
    """Mark behind each call."""
    separator: str = ""
    """Text between two calls."""
    opening: str = ""
    """Mark before all calls."""
    lead: str = ""
    """Text behind it."""
    tail: str = ""
    """Text behind all calls."""
    closing: str = ""
    """Mark behind that."""

    @property
    def trigger(self) -> str:
        """The mark that tells that calls begin; "" where there is none."""
        return self.opening or self.before

    def section(self, context: CallContext, *, triggered: bool = False) -> Part:
        """All calls of an answer. triggered: without the mark that begins them, behind which this stands."""
        around = self.opening if not triggered else ""
        before = self.before if not triggered or self.opening else ""
        calls = [
            _sequence([*_marks(context, before), self.call(tool, context), *_marks(context, self.after)])
            for tool in context.tools.tools
        ]
        several = calls[0] if triggered and not self.opening else _several(calls, self.separator, context.tools)
        if triggered and not self.opening and len(calls) > 1:
            several = {"type": "or", "elements": calls}
        behind = [*_texts(self.tail), *_marks(context, self.closing)]
        return _sequence([*_marks(context, around), *_texts(self.lead), several, *behind])

    def beside_text(self, context: CallContext) -> Part | None:
        """Free text with calls in it; None where no mark tells the one from the other."""
        if not self.trigger:
            return None
        if self.trigger in context.special:
            calls = {"type": "optional", "content": self.section(context)}
            return {"type": "sequence", "elements": [{"type": "any_text"}, calls]}
        tag = {"begin": self.trigger, "content": self.section(context, triggered=True), "end": ""}
        return {"type": "triggered_tags", "triggers": [self.trigger], "tags": [tag]}


def const(text: str) -> Part:
    """A text."""
    return {"type": "const_string", "value": text}


def sequence(*parts: Part) -> Part:
    """Parts one after the other."""
    return _sequence(parts)


def _sequence(parts: Sequence[Part]) -> Part:
    return parts[0] if len(parts) == 1 else {"type": "sequence", "elements": list(parts)}


def _marks(context: CallContext, mark: str) -> list[Part]:
    return [context.mark(mark)] if mark else []


def _texts(text: str) -> list[Part]:
    return [const(text)] if text else []


def _several(calls: list[Part], separator: str, tools: ToolUse) -> Part:
    """At least one of the calls."""
    return {
        "type": "tags_with_separator",
        "tags": calls,
        "separator": separator,
        "at_least_one": True,
        "stop_after_first": not tools.parallel or tools.mode == "named",
    }
