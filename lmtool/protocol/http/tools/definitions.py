"""Tools of a request: their schemas, which of them may or must be called, and the constraint on the answer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from msgspec import Meta

from lmtool.core import constraint as constraints
from lmtool.core.errors import ConstraintError
from lmtool.inference.guide.dialects import DATA, MAPS, MARKS, Reading, map_schemas
from lmtool.protocol.http import errors
from lmtool.protocol.http.decoding import Part, check_size, wrong
from lmtool.protocol.http.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lmtool.core.types import Constraint


MAX_CALLS = 64
"""Most calls in one answer with forced calls."""
_SEVERAL_SIDES = frozenset({"allOf", "if", "not", "dependentSchemas", "dependencies", "unevaluatedProperties"})
_BESIDE = frozenset({"$ref", "anyOf", "oneOf"})
"""Like `_SEVERAL_SIDES`, but only together with `properties`."""
_IDS = MARKS | {"$dynamicRef", "$recursiveRef"}
"""Keywords that change the meaning of references when a schema is moved to another document."""


def calls_schema(tools: Sequence[tuple[str, Mapping[str, Any]]], *, parallel: bool) -> dict[str, Any]:
    """Schema of `[{"name": ..., "parameters": {...}}, ...]` for tools given as (name, schema of the arguments).

    The schemas must come from `without_ids`; their references keep pointing to their own parts.
    """
    calls = _calls(tools)
    return {
        "type": "array",
        "minItems": 1,
        "maxItems": MAX_CALLS if parallel else 1,
        "items": calls[0] if len(calls) == 1 else {"anyOf": calls},
        "$defs": _arguments(tools),
    }


def form_or_call(form: object, tools: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Schema that allows either values of the schema `form`, or one call, written as in `calls_schema`."""
    return {
        "anyOf": [{"$ref": "#/$defs/form"}, *_calls(tools)],
        "$defs": {"form": moved(without_ids(form), "#/$defs/form"), **_arguments(tools)},
    }


def _calls(tools: Sequence[tuple[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    return [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "parameters": {"$ref": f"#/$defs/{number}"}},
            "required": ["name", "parameters"],
            "additionalProperties": False,
        }
        for number, (name, _) in enumerate(tools)
    ]


def _arguments(tools: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    return {str(number): moved(schema, f"#/$defs/{number}") for number, (_, schema) in enumerate(tools)}


def closed(schema: Mapping[str, Any]) -> Any:  # noqa: ANN401  # any JSON
    """The schema with `additionalProperties` false on objects that list properties and do not mention others.

    It never allows more than the original, and stops models from inventing arguments. A schema that describes an object
    in several places (see `_SEVERAL_SIDES`) is returned unchanged, because its parts might exclude each other.
    """
    return schema if _has(schema, _SEVERAL_SIDES) else map_schemas(schema, _closed)


def _closed(node: dict[str, Any]) -> dict[str, Any]:
    lists = isinstance(node.get("properties"), dict) and "patternProperties" not in node
    return {**node, "additionalProperties": node.get("additionalProperties", False)} if lists else node


def _has(value: Any, keywords: frozenset[str]) -> bool:  # noqa: ANN401  # any JSON
    if isinstance(value, dict):
        beside = "properties" in value and not _BESIDE.isdisjoint(value)
        return beside or not keywords.isdisjoint(value) or any(_has(part, keywords) for part in value.values())
    return isinstance(value, list) and any(_has(part, keywords) for part in value)


def without_ids(schema: Any) -> Any:  # noqa: ANN401  # any JSON
    """The schema with references by id, anchor or scope replaced by JSON pointers, so that it can be embedded.

    Returns the same object if it has none of them.
    """
    return Reading(schema, exact=False).schema if _has_ids(schema) else schema


def _has_ids(value: Any) -> bool:  # noqa: ANN401  # any JSON
    if isinstance(value, dict):
        return any(not isinstance(value[name], dict) for name in _IDS & value.keys()) or any(
            map(_has_ids, value.values())
        )
    return isinstance(value, list) and any(map(_has_ids, value))


def alone(schema: Any, root: Mapping[str, Any]) -> Any:  # noqa: ANN401  # any JSON
    """A part of a schema as a separate document whose references still resolve in `root`."""
    if not isinstance(schema, dict):
        return schema
    schema = {name: root[name] for name in ("$schema",) if name in root} | schema
    if not _has(schema, frozenset({"$ref"})):
        return schema
    return {**moved(schema, "#/$defs/root"), "$defs": {"root": moved(dict(root), "#/$defs/root")}}


def moved(schema: Any, to: str) -> Any:  # noqa: ANN401  # any JSON
    """A schema from `without_ids`, with its references adjusted to its new position `to`, a JSON pointer."""
    if isinstance(schema, list):
        return [moved(part, to) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {keyword: _moved_value(keyword, value, to) for keyword, value in schema.items()}


def _moved_value(keyword: str, value: Any, to: str) -> Any:  # noqa: ANN401  # any JSON
    if keyword in DATA:
        return value
    if keyword == "$ref" and isinstance(value, str) and (value == "#" or value.startswith("#/")):
        return to + value[1:]
    if keyword in MAPS and isinstance(value, dict):
        return {name: moved(part, to) for name, part in value.items()}
    return moved(value, to)


Mode: TypeAlias = Literal["none", "auto", "required", "named"]

MAX_TOOLS = 128
ToolName = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,128}(?!\n)$", description="1 to 128 of the characters A-Z a-z 0-9 _ - .")
]
_MAX_NAMED = 16
"""Most tools named in one warning."""
_NO_PARAMETERS: Mapping[str, object] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    """JSON Schema of its arguments; None: no arguments."""
    strict: bool = False
    """True to reject a schema that cannot be enforced in full."""

    @property
    def schema(self) -> Mapping[str, Any]:
        """Schema of the arguments, which are always an object."""
        if self.parameters is None:
            return _NO_PARAMETERS
        schema: Mapping[str, Any] = closed(without_ids(self.parameters))
        return schema if "type" in schema else {"type": "object", **schema}

    @property
    def template_entry(self) -> dict[str, object]:
        """The tool in the form that chat templates expect."""
        described = {} if self.description is None else {"description": self.description}
        function = {"name": self.name, **described, "parameters": dict(self.parameters or _NO_PARAMETERS)}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools of one request, and whether they may or must be called."""

    tools: tuple[Tool, ...]
    mode: Mode
    parallel: bool = True
    """True if one answer may have several calls."""

    @property
    def forced(self) -> bool:
        """True if the answer must be a call."""
        return self.mode in {"required", "named"}

    def constraint(self) -> Constraint | None:
        """Constraint for forced calls: the arguments of one tool, or an array of calls. Raises `ApiError`."""
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
    """The tools and their mode; None if no tool can be called. name: name of the tool to call in mode `named`.

    Raises `ApiError` for an unknown name, and for a forced call without tools.
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
    """The request with null in place of tools that models here cannot call, and warnings that name those tools.

    own: type of tools that models can call. Other types, such as web_search or namespace, run at the API's owner or
    have no schema; coding agents send them to every server, in addition to tools that work without them.
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
    """True if this is a tool of another type, or an entry of `allowed_tools` for such a tool."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    return isinstance(kind, str) and kind != own


def check_tools(tools: Sequence[Tool]) -> None:
    """Raise `ApiError` for too many tools, or two with the same name."""
    if len(tools) > MAX_TOOLS:
        raise ApiError(400, f"there are {len(tools)} tools; expected at most {MAX_TOOLS}", param="tools")
    names = [tool.name for tool in tools]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ApiError(400, f"two tools are called {twice!r}; expected names of their own", param="tools")


class Function(Part):
    """Name, description and parameters of a tool."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def tool(self) -> Tool:
        """The tool."""
        return Tool(self.name, self.description, self.parameters, self.strict or False)


class FunctionTool(Part):
    """A tool in the form of chat completions."""

    function: Function
    type: Literal["function"] | None = None

    def tool(self) -> Tool:
        """The tool."""
        return self.function.tool()


def choose_tools(tools: Sequence[Tool], choice: object, *, parallel: bool | None) -> ToolUse | None:
    """Tools and mode for `tools`, `tool_choice` and `parallel_tool_calls` of OpenAI's APIs. Raises `ApiError`."""
    parallel = parallel is not False
    check_size("tool_choice", choice)
    if choice is None or choice in ("auto", "none", "required", "any"):
        mode: Mode = "required" if choice == "any" else choice or "auto"  # type: ignore[assignment] # checked above
        return tool_use(tools, mode, None, parallel=parallel)
    if isinstance(choice, dict) and choice.get("type") == "function":
        function = choice.get("function", choice)  # chat completions nest the name, responses do not
        if isinstance(function, dict) and isinstance(name := function.get("name"), str):
            return tool_use(tools, "named", name, parallel=parallel)
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        return _allowed(choice, tools, parallel=parallel)
    raise wrong("tool_choice", choice, "none, auto, required, or an object that names a function")


def _allowed(given: Mapping[str, Any], tools: Sequence[Tool], *, parallel: bool) -> ToolUse | None:
    """Tools and mode for a choice of type `allowed_tools`. Raises `ApiError`."""
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
