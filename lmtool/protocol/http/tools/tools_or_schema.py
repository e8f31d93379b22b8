"""A form for the answer beside tools that may be called: the answer is in that form, or it is calls."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from lmtool.core import constraint as constraints
from lmtool.core.errors import ConstraintError
from lmtool.protocol.http import errors
from lmtool.protocol.http.errors import ApiError
from lmtool.protocol.http.tools.schema import form_or_call

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.core.types import Constraint
    from lmtool.protocol.http.tools.definitions import ToolUse
    from lmtool.protocol.http.tools.parsers import ToolCallParser


def tools_or_schema(form: Constraint, tools: ToolUse, calls: ToolCallParser, special: Mapping[str, int]) -> Constraint:
    """What an answer must match that is in `form`, or calls of the tools as the model writes them.

    special: those of the calls' marks that are special tokens, with their ids. A model that was never told how to write
    calls makes none. Raises `ApiError` for what cannot be said as one.
    """
    try:
        if calls.name == "llama3_json" and form.kind == "json_schema":
            return _as_schema(form, tools)
        written = calls.calls(tools, special)
        if written is None:
            return form
        return constraints.structural_tag({"format": {"type": "or", "elements": [_part(form), written]}}, where="tools")
    except ConstraintError as error:
        raise errors.from_error(error, "tools") from error


def forced_calls(tools: ToolUse, calls: ToolCallParser, special: Mapping[str, int]) -> Constraint | None:
    """What an answer must match that must be calls, in the model's own form; None where that is said otherwise.

    See `tools_or_schema`. Raises `ApiError`.
    """
    if not calls.holds_forced:
        return None
    try:
        written = calls.calls(tools, special)
        return None if written is None else constraints.structural_tag({"format": written}, where="tools")
    except ConstraintError as error:
        raise errors.from_error(error, "tools") from error


def strict_calls(tools: ToolUse, calls: ToolCallParser, special: Mapping[str, int]) -> Constraint | None:
    """What free text matches in which calls of strict tools follow their schemas; None where no tool is strict.

    Also None in a form whose calls no mark tells from text. See `tools_or_schema`. Raises `ApiError`.
    """
    if not any(tool.strict for tool in tools.tools):
        return None
    try:
        written = calls.calls_beside_text(tools, special)
        return None if written is None else constraints.structural_tag({"format": written}, where="tools")
    except ConstraintError as error:
        raise errors.from_error(error, "tools") from error


def _as_schema(form: Constraint, tools: ToolUse) -> Constraint:
    """Both begin with a brace: what may follow it is for one grammar to tell, that of a schema. Allows one call."""
    # Arguments of a tool that is not strict may be anything, as where nothing forces a call.
    arguments = [(tool.name, tool.schema if tool.strict else {"type": "object"}) for tool in tools.tools]
    schema = form_or_call(json.loads(form.text), arguments)
    return constraints.json_schema(schema, where="tools", strict=form.strict, any_whitespace=form.any_whitespace)


def _part(form: Constraint) -> object:
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
