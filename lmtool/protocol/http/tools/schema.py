"""The schema of an array of calls, out of the schemas of the tools' arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lmtool.inference.guide.dialects import DATA, MAPS, MARKS, Reading, map_schemas

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_CALLS = 64
"""In one answer that must call something."""
_SEVERAL_SIDES = frozenset({"allOf", "if", "not", "dependentSchemas", "dependencies", "unevaluatedProperties"})
_BESIDE = frozenset({"$ref", "anyOf", "oneOf"})
"""The same, where they stand beside an object's properties."""
_IDS = MARKS | {"$dynamicRef", "$recursiveRef"}
"""Keywords by which references mean something else in another document."""


def calls_schema(tools: Sequence[tuple[str, Mapping[str, Any]]], *, parallel: bool) -> dict[str, Any]:
    """The schema of `[{"name": ..., "parameters": {...}}, ...]` for (name, schema of the arguments) each.

    The schemas are as `without_ids` returns them; their references go on to mean their own parts.
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
    """The schema of what `form`, a schema, allows, or of one call, an object as in `calls_schema`."""
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
    """The schema with `additionalProperties` false where an object lists its properties and does not mention others.

    What it allows, the given one allows, too; a model is not led to make up arguments. A schema with keywords that look
    at an object from several sides stays as it is: closed, its parts might exclude each other.
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
    """The schema with a pointer for each reference by an id, an anchor or a scope, so that it can be part of another.

    The same object where it has none of them.
    """
    return Reading(schema, exact=False).schema if _has_ids(schema) else schema


def _has_ids(value: Any) -> bool:  # noqa: ANN401  # any JSON
    if isinstance(value, dict):
        return any(not isinstance(value[name], dict) for name in _IDS & value.keys()) or any(
            map(_has_ids, value.values())
        )
    return isinstance(value, list) and any(map(_has_ids, value))


def alone(schema: Any, root: Mapping[str, Any]) -> Any:  # noqa: ANN401  # any JSON
    """A part of a schema as a document of its own, whose references go on to mean parts of `root`."""
    if not isinstance(schema, dict):
        return schema
    schema = {name: root[name] for name in ("$schema",) if name in root} | schema
    if not _has(schema, frozenset({"$ref"})):
        return schema
    return {**moved(schema, "#/$defs/root"), "$defs": {"root": moved(dict(root), "#/$defs/root")}}


def moved(schema: Any, to: str) -> Any:  # noqa: ANN401  # any JSON
    """A schema, as `without_ids` returns it, whose root stands at the JSON pointer `to` of another document."""
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
