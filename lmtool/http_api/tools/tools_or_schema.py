"""A form for the answer beside tools that may be called: the answer is in that form, or it is calls."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, TypeAlias

from lmtool import constraint as constraints
from lmtool.errors import ConstraintError
from lmtool.http_api import errors
from lmtool.http_api.errors import ApiError
from lmtool.http_api.tools.parsers import HermesReader, MistralReader
from lmtool.http_api.tools.schema import form_or_call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lmtool.http_api.tools.definitions import Tool, ToolUse
    from lmtool.http_api.tools.parsers import ToolCallParser
    from lmtool.types import Constraint

_Part: TypeAlias = "dict[str, Any]"
"""A part of a structural tag."""


def tools_or_schema(form: Constraint, tools: ToolUse, calls: ToolCallParser, special: Mapping[str, int]) -> Constraint:
    """What an answer must match that is in `form`, or calls of the tools as the model writes them.

    special: those of the calls' marks that are special tokens, with their ids. A model that was never told how to write
    calls makes none. Raises `ApiError` for what cannot be said as one.
    """
    if calls.name not in _CALLS:
        return form
    try:
        if calls.name == "llama3_json" and form.kind == "json_schema":
            return _as_schema(form, tools)
        elements = [_part(form), _CALLS[calls.name](tools, special)]
        return constraints.structural_tag({"format": {"type": "or", "elements": elements}}, where="tools")
    except ConstraintError as error:
        raise errors.from_error(error, "tools") from error


def _as_schema(form: Constraint, tools: ToolUse) -> Constraint:
    """Both begin with a brace: what may follow it is for one grammar to tell, that of a schema. Allows one call."""
    schema = form_or_call(json.loads(form.text), [(tool.name, _arguments(tool)) for tool in tools.tools])
    return constraints.json_schema(schema, where="tools", strict=form.strict, any_whitespace=form.any_whitespace)


def _arguments(tool: Tool) -> Mapping[str, Any]:
    """What a tool's arguments must match where nothing forces a call: anything, unless it is strict."""
    return tool.schema if tool.strict else {"type": "object"}


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
        f"a {form.kind.replace('_', ' ')} of this form cannot be held beside tools that may be called; "
        'send tool_choice "none" or "required"',
        param="tools",
    )


def _hermes(tools: ToolUse, special: Mapping[str, int]) -> _Part:
    marks = [_mark(mark, special) for mark in (HermesReader.opening, HermesReader.closing)]
    own = [_call(tool, "arguments", "\n") for tool in tools.tools]
    return _several([_sequence(marks[0], call, marks[1]) for call in own], "\n", tools)


def _llama3(tools: ToolUse, _: Mapping[str, int]) -> _Part:
    return _several([_call(tool, "parameters") for tool in tools.tools], "; ", tools)


def _mistral(tools: ToolUse, special: Mapping[str, int]) -> _Part:
    listed = _several([_call(tool, "arguments") for tool in tools.tools], ", ", tools)
    return _sequence(_mark(MistralReader.mark, special), _const("["), listed, _const("]"))


_CALLS: Mapping[str, Callable[[ToolUse, Mapping[str, int]], _Part]] = {
    "hermes": _hermes,
    "llama3_json": _llama3,
    "mistral": _mistral,
}
"""By the name of the form of calls."""


def _call(tool: Tool, arguments: str, around: str = "") -> _Part:
    """A call as an object. around: what stands at both ends."""
    return {
        "type": "tag",
        "begin": f'{around}{{"name": {json.dumps(tool.name)}, "{arguments}": ',
        "content": {"type": "json_schema", "json_schema": _arguments(tool)},
        "end": f"}}{around}",
    }


def _several(calls: list[_Part], separator: str, tools: ToolUse) -> _Part:
    """At least one of the calls."""
    return {
        "type": "tags_with_separator",
        "tags": calls,
        "separator": separator,
        "at_least_one": True,
        "stop_after_first": not tools.parallel,
    }


def _sequence(*parts: _Part) -> _Part:
    return {"type": "sequence", "elements": list(parts)}


def _const(text: str) -> _Part:
    return {"type": "const_string", "value": text}


def _mark(mark: str, special: Mapping[str, int]) -> _Part:
    return {"type": "token", "token": special[mark]} if mark in special else _const(mark)
