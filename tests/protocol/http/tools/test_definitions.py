"""Tools, tool choice, and the schema of calls."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from lmtool.inference.guide.dialects import in_2020_12
from lmtool.protocol.http.errors import ApiError
from lmtool.protocol.http.openai.requests import chat
from lmtool.protocol.http.tools.definitions import (
    MAX_CALLS,
    MAX_TOOLS,
    Tool,
    ToolUse,
    alone,
    calls_schema,
    closed,
    form_or_call,
    without_ids,
)

TREE = {
    "type": "object",
    "properties": {"value": {"$ref": "#/$defs/color"}, "next": {"$ref": "#"}, "$ref": {"const": {"$ref": "#"}}},
    "required": ["value"],
    "$defs": {"color": {"enum": ["red"]}},
}


def test_references_go_on_to_mean_the_same() -> None:
    """A tool's schema refers to its own parts and to itself, wherever it stands; data are no references."""
    schema = calls_schema([("a", TREE), ("b", {"type": "object"})], parallel=True)
    good = [{"name": "a", "parameters": {"value": "red", "next": {"value": "red"}, "$ref": {"$ref": "#"}}}]
    jsonschema.validate(good, schema)
    for bad in ({"value": "blue"}, {"value": "red", "next": {}}, {"value": "red", "$ref": 1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate([{"name": "a", "parameters": bad}], schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate([], schema)


def test_how_many() -> None:
    """One call where they may not be parallel, else within a bound."""
    assert calls_schema([("a", {})], parallel=False)["maxItems"] == 1
    assert calls_schema([("a", {})], parallel=True)["maxItems"] == MAX_CALLS


FOURTH, SEVENTH = "http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-07/schema#"
COLOR, BY_POINTER = {"enum": ["red"]}, {"allOf": [{"$ref": "#/definitions/d"}]}
OTHER = {"$id": "http://x/t", "properties": {"v": {"$ref": "#c"}}, "$defs": {"c": {"$anchor": "c", "enum": ["blue"]}}}


@pytest.mark.parametrize(
    ("reference", "members"),
    [
        ("#/definitions/c", {"$schema": FOURTH, "id": "http://x/t", "definitions": {"c": COLOR}}),
        ("http://x/t#/definitions/c", {"$schema": FOURTH, "id": "http://x/t", "definitions": {"c": COLOR}}),
        ("t#/definitions/c", {"$schema": FOURTH, "id": "http://x/t", "definitions": {"c": COLOR}}),
        ("#c", {"$schema": FOURTH, "id": "http://x/t", "definitions": {"c": {"id": "#c", **COLOR}}}),
        ("#c", {"$schema": FOURTH, "definitions": {"c": {"id": "#c", **BY_POINTER}, "d": COLOR}}),
        ("u", {"$schema": FOURTH, "id": "http://x/t", "definitions": {"c": {"id": "u", **COLOR}}}),
        ("#c", {"$schema": SEVENTH, "definitions": {"c": {"$id": "#c", **BY_POINTER}, "d": COLOR}}),
        ("#/definitions/c", {"$schema": SEVENTH, "$id": "#t", "definitions": {"c": COLOR}}),
        ("#/$defs/c", {"$id": "http://x/t", "$defs": {"c": COLOR}}),
        ("#c", {"$defs": {"c": {"$anchor": "c", **COLOR}}}),
    ],
)
def test_ids_of_a_tool_are_its_own(reference: str, members: dict[str, Any]) -> None:
    """What a schema names by ids and anchors of any draft stays what it means, beside tools with the same names."""
    tool = Tool("a", parameters={**members, "properties": {"v": {"$ref": reference}}, "required": ["v"]})
    tools = [("other", Tool("other", parameters=OTHER).schema), ("a", tool.schema)]
    part = alone(tool.schema["properties"]["v"], tool.schema)
    for value, allowed in (("red", True), ("blue", False)):
        call = {"name": "a", "parameters": {"v": value}}
        assert is_valid(calls_schema(tools, parallel=True), [call]) is allowed
        for one in (call, call["parameters"]):
            assert is_valid(form_or_call(tool.parameters, tools), one) is allowed
        assert is_valid(part, value) is allowed


def is_valid(schema: Any, value: object) -> bool:
    """Whether a value is valid, as answers are checked."""
    return jsonschema.Draft202012Validator(in_2020_12(schema)).is_valid(value)


def test_a_schema_without_ids_stays() -> None:
    """A property or a word of that name is no id."""
    given = {"$schema": FOURTH, "properties": {"id": {"type": "string"}, "$anchor": {}}, "$defs": {"id": {}}}
    assert without_ids(given) is given


def test_objects_are_closed() -> None:
    """Where nothing is said of further properties, there are none, at any depth; what is said stays."""
    given = {"properties": {"a": {"items": {"properties": {}}}, "b": {"properties": {}, "additionalProperties": True}}}
    assert closed(given) == {
        "properties": {
            "a": {"items": {"properties": {}, "additionalProperties": False}},
            "b": {"properties": {}, "additionalProperties": True},
        },
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]},
        {"properties": {"x": {"properties": {}, "$ref": "#/$defs/a"}}},
        {"patternProperties": {"a": {}}, "properties": {}},
        {"enum": [{"properties": {}}]},
    ],
)
def test_what_is_not_closed(schema: dict[str, object]) -> None:
    """Objects that are looked at from several sides, and data."""
    assert closed(schema) == schema


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


def test_a_gateway_needs_no_packages_of_serving() -> None:
    """What a gateway imports of tools needs none of the packages that only models need."""
    import subprocess
    import sys

    code = (
        "import sys, lmtool.gateway.pools.server, lmtool.protocol.http.tools.definitions\n"
        "sys.exit(' '.join({'referencing', 'jsonschema', 'llguidance', 'torch', 'numpy'} & set(sys.modules)) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
