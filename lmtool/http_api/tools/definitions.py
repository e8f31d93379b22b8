"""Which tools a request offers, and which of them must be called."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from lmtool import constraint as constraints
from lmtool.errors import ConstraintError
from lmtool.http_api import errors
from lmtool.http_api.errors import ApiError
from lmtool.http_api.members import MOST_MEMBER_BYTES
from lmtool.http_api.tools.schema import calls_schema, closed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lmtool.http_api.members import Members
    from lmtool.types import Constraint

Mode: TypeAlias = Literal["none", "auto", "required", "named"]

MOST_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_NO_PARAMETERS: Mapping[str, object] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class Tool:
    """One function that the model may call."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    """JSON Schema of its arguments; None: it has none."""
    strict: bool = False
    """Whether a schema with something that cannot be held is refused."""

    @property
    def schema(self) -> Mapping[str, Any]:
        """What the arguments must match: always an object."""
        if self.parameters is None:
            return _NO_PARAMETERS
        schema: Mapping[str, Any] = closed(self.parameters)
        return schema if "type" in schema else {"type": "object", **schema}

    @property
    def shown(self) -> dict[str, object]:
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
            raise errors.of(error, "tools") from error

    def held(self, opening: str, closing: str) -> Constraint | None:
        """What an answer must match that may be free text: calls between marks as their tools' schemas say.

        None where no tool is strict. Raises `ApiError`.
        """
        if self.mode != "auto" or not any(tool.strict for tool in self.tools):
            return None
        structures = [
            {
                "begin": f'{opening}\n{{"name": "{tool.name}", "arguments": ',
                "schema": tool.schema if tool.strict else {"type": "object"},
                "end": f"}}\n{closing}",
            }
            for tool in self.tools
        ]
        try:
            return constraints.structural_tag({"structures": structures, "triggers": [opening]}, where="tools")
        except ConstraintError as error:
            raise errors.of(error, "tools") from error


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


def check_tools(tools: Sequence[Tool]) -> None:
    """Raise `ApiError` for too many tools, or two of one name."""
    if len(tools) > MOST_TOOLS:
        raise ApiError(400, f"there are {len(tools)} tools; expected at most {MOST_TOOLS}", param="tools")
    names = [tool.name for tool in tools]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ApiError(400, f"two tools are called {twice!r}; expected names of their own", param="tools")


def chat_tools(members: Members) -> ToolUse | None:
    """Read `tools`, `tool_choice` and `parallel_tool_calls` as chat completions have them. Raises `ApiError`."""
    tools = []
    for given in members.objects("tools", MOST_TOOLS, most_bytes=MOST_MEMBER_BYTES):
        kind = given.text("type") or "function"
        if kind != "function":
            raise given.wrong("type", kind, "function; others run at OpenAI only")
        function = given.inner("function")
        if function is None:
            raise given.wrong("function", None, "an object with name and parameters")
        tools.append(read_tool(function))
        given.end()
    return read_choice(members, tools)


def read_tool(members: Members, parameters: str = "parameters") -> Tool:
    """Read one function, all of its members. parameters: what the schema of its arguments is called."""
    name = members.text("name")
    if name is None or not _NAME.fullmatch(name):
        raise members.wrong("name", name, "1 to 64 of the characters A-Z a-z 0-9 _ - .")
    schema = members.take(parameters)
    if schema is not None and not isinstance(schema, dict):
        raise members.wrong(parameters, schema, "a JSON Schema: an object")
    tool = Tool(name, members.text("description"), schema, members.flag("strict"))
    members.end()
    return tool


def read_choice(members: Members, tools: Sequence[Tool]) -> ToolUse | None:
    """Read `tool_choice` and `parallel_tool_calls`. Raises `ApiError`."""
    parallel = members.flag("parallel_tool_calls", default=True)
    given = members.take("tool_choice")
    if given is None or given == "auto":
        return tool_use(tools, "auto", None, parallel=parallel)
    if given == "none":
        return tool_use(tools, "none", None, parallel=parallel)
    if given in ("required", "any"):
        return tool_use(tools, "required", None, parallel=parallel)
    if isinstance(given, dict) and given.get("type") == "function":
        function = given.get("function", given)  # chat completions nest the name, responses do not
        if isinstance(function, dict) and isinstance(name := function.get("name"), str):
            return tool_use(tools, "named", name, parallel=parallel)
    if isinstance(given, dict) and given.get("type") == "allowed_tools":
        return _allowed(members, given, tools, parallel=parallel)
    raise members.wrong("tool_choice", given, "none, auto, required, or an object that names a function")


def _allowed(members: Members, given: Mapping[str, Any], tools: Sequence[Tool], *, parallel: bool) -> ToolUse | None:
    """Only some of the tools, one of which may or must be called."""
    inner = given.get("allowed_tools", given)
    listed = inner.get("tools") if isinstance(inner, dict) else None
    if not isinstance(listed, list) or inner.get("mode") not in {"auto", "required"}:
        raise members.wrong("tool_choice", given, "allowed_tools with mode (auto, required) and tools")
    entries = [entry.get("function", entry) for entry in listed if isinstance(entry, dict)]
    names = {entry.get("name") for entry in entries if isinstance(entry, dict)}
    kept = [tool for tool in tools if tool.name in names]
    if len(kept) != len(listed):
        raise ApiError(400, "tool_choice allows tools that are not among tools", param="tool_choice")
    return tool_use(kept, inner["mode"], None, parallel=parallel)
