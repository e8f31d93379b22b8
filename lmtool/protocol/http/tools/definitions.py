"""Which tools a request offers, and which of them must be called."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from msgspec import Meta

from lmtool.core import constraint as constraints
from lmtool.core.errors import ConstraintError
from lmtool.protocol.http import errors
from lmtool.protocol.http.decoding import Part, check_size, wrong
from lmtool.protocol.http.errors import ApiError
from lmtool.protocol.http.tools.schema import calls_schema, closed, without_ids

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lmtool.core.types import Constraint

Mode: TypeAlias = Literal["none", "auto", "required", "named"]

MAX_TOOLS = 128
ToolName = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,128}(?!\n)$", description="1 to 128 of the characters A-Z a-z 0-9 _ - .")
]
_MAX_NAMED = 16
"""Tools that one warning names."""
_NO_PARAMETERS: Mapping[str, object] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class Tool:
    """One function that the model may call."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    """JSON Schema of its arguments; None: it has none."""
    strict: bool = False
    """Whether a schema that cannot be enforced in full is refused."""

    @property
    def schema(self) -> Mapping[str, Any]:
        """What the arguments must match: always an object."""
        if self.parameters is None:
            return _NO_PARAMETERS
        schema: Mapping[str, Any] = closed(without_ids(self.parameters))
        return schema if "type" in schema else {"type": "object", **schema}

    @property
    def template_entry(self) -> dict[str, object]:
        """The tool as chat templates read it."""
        described = {} if self.description is None else {"description": self.description}
        function = {"name": self.name, **described, "parameters": dict(self.parameters or _NO_PARAMETERS)}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of one request, and what is to be done with them."""

    tools: tuple[Tool, ...]
    mode: Mode
    parallel: bool = True
    """Whether one answer may have several calls."""

    @property
    def forced(self) -> bool:
        """Whether the answer must be a call."""
        return self.mode in {"required", "named"}

    def constraint(self) -> Constraint | None:
        """What a forced answer must match: the arguments of the one tool, or an array of calls. Raises `ApiError`."""
        if not self.forced:
            return None
        strict = all(tool.strict for tool in self.tools)
        schema: Mapping[str, Any] = self.tools[0].schema
        if self.mode == "required":
            schema = calls_schema([(tool.name, tool.schema) for tool in self.tools], parallel=self.parallel)
        try:
            return constraints.json_schema(schema, where="tools", strict=strict)
        except ConstraintError as error:
            raise errors.from_error(error, "tools") from error


def tool_use(tools: Sequence[Tool], mode: Mode, name: str | None, *, parallel: bool) -> ToolUse | None:
    """The tools and their use; None where there are none to use. name: of the tool that must be called.

    Raises `ApiError` for a choice that cannot be: a name that no tool has, a call without tools.
    """
    check_tools(tools)
    if mode == "named":
        chosen = tuple(tool for tool in tools if tool.name == name)
        if not chosen:
            known = ", ".join(tool.name for tool in tools) or "none"
            raise ApiError(400, f"tool_choice names {name!r}; the tools are: {known}", param="tool_choice")
        return ToolUse(chosen, "named", parallel)
    if not tools:
        if mode == "required":
            raise ApiError(400, "tool_choice asks for a call, and there are no tools", param="tool_choice")
        return None
    return None if mode == "none" else ToolUse(tuple(tools), mode, parallel)


def without_foreign_tools(body: Mapping[str, Any], own: str = "function") -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """The request with null in place of each tool that no model here can call, and warnings that name these tools.

    own: the type of tools that models can call. Other types, such as web_search or namespace, run at the API's owner
    or have no schema; coding agents offer them to every server, beside tools that models can do without them.
    """
    given = body.get("tools")
    if not isinstance(given, list):
        return body, ()
    foreign = [tool for tool in given if _is_foreign(tool, own)]
    if not foreign:
        return body, ()
    words = [" ".join(str(tool[name]) for name in ("type", "name") if name in tool) for tool in foreign]
    names = ", ".join(re.sub(r"[^\w. -]", "?", word[:80]) for word in words[:_MAX_NAMED])
    more = f" and {len(words) - _MAX_NAMED} more" * (len(words) > _MAX_NAMED)
    warning = f"tools left out: {names}{more}; models here can call tools of type {own} only"
    return {**body, "tools": [None if _is_foreign(tool, own) else tool for tool in given]}, (warning,)


def _is_foreign(tool: object, own: str) -> bool:
    """Whether this is a tool of another type, or an entry of `allowed_tools` for one."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    return isinstance(kind, str) and kind != own


def check_tools(tools: Sequence[Tool]) -> None:
    """Raise `ApiError` for too many tools, or two of one name."""
    if len(tools) > MAX_TOOLS:
        raise ApiError(400, f"there are {len(tools)} tools; expected at most {MAX_TOOLS}", param="tools")
    names = [tool.name for tool in tools]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ApiError(400, f"two tools are called {twice!r}; expected names of their own", param="tools")


class Function(Part):
    """What a tool is called, and with what."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def tool(self) -> Tool:
        """The tool."""
        return Tool(self.name, self.description, self.parameters, self.strict or False)


class FunctionTool(Part):
    """A tool as chat completions have it."""

    function: Function
    type: Literal["function"] | None = None

    def tool(self) -> Tool:
        """The tool."""
        return self.function.tool()


def choose_tools(tools: Sequence[Tool], choice: object, *, parallel: bool | None) -> ToolUse | None:
    """What `tools`, `tool_choice` and `parallel_tool_calls` of OpenAI's APIs come to. Raises `ApiError`."""
    parallel = parallel is not False
    check_size("tool_choice", choice)
    if choice is None or choice in ("auto", "none", "required", "any"):
        mode: Mode = "required" if choice == "any" else choice or "auto"  # type: ignore[assignment] # as just seen
        return tool_use(tools, mode, None, parallel=parallel)
    if isinstance(choice, dict) and choice.get("type") == "function":
        function = choice.get("function", choice)  # chat completions nest the name, responses do not
        if isinstance(function, dict) and isinstance(name := function.get("name"), str):
            return tool_use(tools, "named", name, parallel=parallel)
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        return _allowed(choice, tools, parallel=parallel)
    raise wrong("tool_choice", choice, "none, auto, required, or an object that names a function")


def _allowed(given: Mapping[str, Any], tools: Sequence[Tool], *, parallel: bool) -> ToolUse | None:
    """Only some of the tools, one of which may or must be called."""
    inner = given.get("allowed_tools", given)
    listed = inner.get("tools") if isinstance(inner, dict) else None
    if not isinstance(listed, list) or inner.get("mode") not in {"auto", "required"}:
        raise wrong("tool_choice", given, "allowed_tools with mode (auto, required) and tools")
    own = [entry for entry in listed if not _is_foreign(entry, "function")]
    entries = [entry.get("function", entry) for entry in own if isinstance(entry, dict)]
    names = {entry.get("name") for entry in entries if isinstance(entry, dict)}
    allowed = [tool for tool in tools if tool.name in names]
    if len(allowed) != len(own):
        raise ApiError(400, "tool_choice allows tools that are not among tools", param="tool_choice")
    return tool_use(allowed, inner["mode"], None, parallel=parallel)
