"""Parser for the tool calls of one model family, and the constraints that make an answer follow its format."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmtool.core import constraint as constraints
from lmtool.core.errors import ConstraintError
from lmtool.protocol.http import errors
from lmtool.protocol.http.errors import ApiError
from lmtool.protocol.http.tools.argument_types import ArgumentTypes
from lmtool.protocol.http.tools.call_grammar import CallContext, CallGrammar
from lmtool.protocol.http.tools.definitions import form_or_call
from lmtool.protocol.http.tools.feed import Feed, Plain, Reader, Reading, ScriptedReader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lmtool.core.types import Constraint
    from lmtool.protocol.http.tools.call_grammar import Part
    from lmtool.protocol.http.tools.definitions import Tool, ToolUse


@dataclass(frozen=True, slots=True)
class ToolCallParser:
    """One format of tool calls: how to read it, and the grammar of calls written in it."""

    name: str
    script: Callable[[Feed], Reading] | None = None
    """Reads an answer; None: every answer is text."""
    typed_script: Callable[[Feed, ArgumentTypes], Reading] | None = None
    """Reads an answer in a format where only the tools' schemas give the types of arguments."""
    marks: tuple[str, ...] = ()
    """Texts that may be special tokens, which otherwise do not appear in the text."""
    grammar: CallGrammar | None = None
    """Grammar of calls; None: calls in this format cannot be constrained."""
    holds_forced: bool = True
    """True if forced calls use this format; otherwise they are an array of JSON objects."""
    id_length: int | None = None
    """Length of call ids that the chat templates require; None: any length."""

    def reader(self, tools: Sequence[Tool] = ()) -> Reader:
        """A reader for one answer that may call these tools."""
        if self.typed_script is not None:
            script, types = self.typed_script, ArgumentTypes(tools)
            return ScriptedReader(lambda feed: script(feed, types))
        return Plain() if self.script is None else ScriptedReader(self.script)


def tools_or_schema(form: Constraint, tools: ToolUse, calls: ToolCallParser, special: Mapping[str, int]) -> Constraint:
    """A constraint that allows either text that matches `form`, or calls of the tools in the model's format.

    special: ids of the format's marks that are special tokens. Returns `form` if the format has no grammar, because
    such a model makes no calls. Raises `ApiError` if the two cannot be combined.
    """
    try:
        if calls.name == "llama3_json" and form.kind == "json_schema":
            # Text and call both begin with a brace, so one schema must decide between them. Allows one call.
            # Arguments of a tool that is not strict may be anything, as where nothing forces a call.
            arguments = [(tool.name, tool.schema if tool.strict else {"type": "object"}) for tool in tools.tools]
            schema = form_or_call(json.loads(form.text), arguments)
            return constraints.json_schema(
                schema, where="tools", strict=form.strict, any_whitespace=form.any_whitespace
            )
        if calls.grammar is None:
            return form
        written = calls.grammar.section(CallContext(tools, special))
        return _structural_tag({"type": "or", "elements": [_part(form), written]})
    except ConstraintError as error:
        raise errors.from_error(error, "tools") from error


def forced_calls(tools: ToolUse, calls: ToolCallParser, special: Mapping[str, int]) -> Constraint | None:
    """A constraint that allows only calls in the model's format; None if forced calls are written as a JSON array.

    special: see `tools_or_schema`. Raises `ApiError`.
    """
    if not calls.holds_forced or calls.grammar is None:
        return None
    try:
        return _structural_tag(calls.grammar.section(CallContext(tools, special)))
    except ConstraintError as error:
        raise errors.from_error(error, "tools") from error


def strict_calls(tools: ToolUse, calls: ToolCallParser, special: Mapping[str, int]) -> Constraint | None:
    """A constraint on free text whose calls of strict tools follow their schemas; None if no tool is strict.

    Also None for a format without a mark that separates calls from text. special: see `tools_or_schema`. Raises
    `ApiError`.
    """
    if calls.grammar is None or not any(tool.strict for tool in tools.tools):
        return None
    try:
        written = calls.grammar.beside_text(CallContext(tools, special))
        return None if written is None else _structural_tag(written)
    except ConstraintError as error:
        raise errors.from_error(error, "tools") from error


def _structural_tag(part: Part) -> Constraint:
    return constraints.structural_tag({"format": part}, where="tools")


def _part(form: Constraint) -> object:
    """The constraint as a part of a structural tag. Raises `ApiError` if there is no such part."""
    if form.kind == "json_schema":
        return {"type": "json_schema", "json_schema": json.loads(form.text), "strict": form.strict}
    if form.kind == "regex":
        return {"type": "regex", "pattern": form.text}
    if form.kind == "choice":
        return {"type": "regex", "pattern": "|".join(re.escape(text) for text in json.loads(form.text))}
    if form.kind == "structural_tag" and "format" in (tag := json.loads(form.text)):
        return tag["format"]
    raise ApiError(
        400,
        f"a {form.kind.replace('_', ' ')} of this form cannot be enforced beside tools that may be called; "
        'send tool_choice "none" or "required"',
        param="tools",
    )
