"""Tools and their choice."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lmtool.protocol.http.errors import ApiError
from lmtool.protocol.http.openai.requests import chat
from lmtool.protocol.http.tools.definitions import MAX_TOOLS, ToolUse


def tool(name: str = "f", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


def used(tools: list[dict[str, Any]], **more: Any) -> ToolUse | None:
    return chat({"messages": [{"role": "user", "content": "Hi"}], "tools": tools, **more}).tools


def test_the_choice() -> None:
    """Auto where nothing is said; none is as if there were no tools; a name leaves one."""
    both = [tool("f"), tool("g")]
    assert used(both).mode == "auto"  # type: ignore[union-attr]
    assert used(both, tool_choice="none") is None
    assert used([]) is None
    assert used(both, tool_choice="required", parallel_tool_calls=False).parallel is False  # type: ignore[union-attr]
    named = used(both, tool_choice={"type": "function", "function": {"name": "g"}})
    assert named is not None
    assert ([one.name for one in named.tools], named.forced) == (["g"], True)
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [tool("g")]}}
    only = used(both, tool_choice=allowed)
    assert only is not None
    assert ([one.name for one in only.tools], only.mode) == (["g"], "required")


def test_the_constraint() -> None:
    """A named tool's arguments, or an array of calls; strict only if all tools are; none under auto."""
    schema = {"properties": {"a": {"type": "integer"}}}
    named = used([tool(parameters=schema, strict=True)], tool_choice={"type": "function", "function": {"name": "f"}})
    assert named is not None
    constraint = named.constraint()
    assert constraint is not None
    assert json.loads(constraint.text) == {"type": "object", **schema, "additionalProperties": False}
    assert constraint.strict
    required = used([tool(parameters=schema, strict=True), tool("g")], tool_choice="required")
    assert required is not None
    constraint = required.constraint()
    assert constraint is not None
    assert (json.loads(constraint.text)["type"], constraint.strict) == ("array", False)
    assert used([tool()]).constraint() is None  # type: ignore[union-attr]


def test_what_the_template_is_shown() -> None:
    """The tool as it was given; one without parameters has none."""
    use = used([tool(description="d"), tool("g", parameters={"type": "object"})])
    assert use is not None
    shown = [one.template_entry["function"] for one in use.tools]
    assert shown[0] == {
        "name": "f",
        "description": "d",
        "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
    }
    assert shown[1] == {"name": "g", "parameters": {"type": "object"}}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": [1]}, "tools[0]"),
        ({"tools": [{}]}, "tools[0].function"),
        ({"tools": [{"type": 1}]}, "tools[0].type"),
        ({"tools": [tool("a b")]}, "tools[0].function.name"),
        ({"tools": [tool("f", parameters=1)]}, "tools[0].function.parameters"),
        ({"tools": [tool("f", strict="yes")]}, "tools[0].function.strict"),
        ({"tools": [tool("f"), tool("f")]}, "tools"),
        ({"tools": [tool(str(number)) for number in range(MAX_TOOLS + 1)]}, "tools"),
        ({"tools": [tool("f")], "tool_choice": "maybe"}, "tool_choice"),
        ({"tools": [tool("f")], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tools": [tool("f")], "tool_choice": {"type": "allowed_tools", "tools": []}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [tool("f", parameters={"a": "\ud800"})], "tool_choice": "required"}, "tools"),
    ],
)
def test_what_is_wrong_is_named(body: dict[str, Any], param: str) -> None:
    """400, and the member to blame."""
    with pytest.raises(ApiError) as raised:
        used(**{"tools": [], **body})
    assert (raised.value.status, raised.value.param) == (400, param)
