"""The JSON in a structural tag: its schemas, and the constant texts behind which it begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, cast

from lmtool.errors import ConstraintError
from lmtool.guide.schema.open_names import OpenNames, open_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lmtool.guide.schema.document import Schema

Node: TypeAlias = "Mapping[str, object]"


@dataclass(frozen=True, slots=True)
class JsonPart:
    """One place in a tag where JSON stands."""

    markers: tuple[str, ...]
    """What stands right before it: one of these, "" for the answer's beginning. None of them: no constant text."""
    schema: Schema
    strict: bool


def as_format(tag: Mapping[str, object]) -> object:
    """The format of a structural tag, also of one in the older form. Raises `ConstraintError`."""
    if "format" in tag:
        return tag["format"]
    structures, triggers = tag.get("structures"), tag.get("triggers")
    if not isinstance(structures, list) or not structures or not isinstance(triggers, list) or not triggers:
        raise ConstraintError('the structural tag needs "structures" and "triggers", arrays of at least one entry')
    tags = [_tag(entry, f"structures[{at}]", triggers) for at, entry in enumerate(structures)]
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags}


def _tag(entry: object, where: str, triggers: list[object]) -> Node:
    if not isinstance(entry, dict) or not isinstance(entry.get("begin"), str) or "schema" not in entry:
        raise ConstraintError(f'{where} needs "begin" and "end", strings, and "schema", a JSON Schema')
    begin, end, schema = entry["begin"], entry.get("end", ""), entry["schema"]
    if not any(isinstance(text, str) and text and begin.startswith(text) for text in triggers):
        raise ConstraintError(f"{where}.begin is {begin!r}; expected a text that begins with one of triggers")
    if not isinstance(schema, dict | bool) or not isinstance(end, str):
        raise ConstraintError(f'{where} needs "schema", an object or a boolean, and "end", a string')
    held = {"not": {}} if schema is False else schema
    return {"begin": begin, "content": {"type": "json_schema", "json_schema": held}, "end": end}


def open_names_in(form: object) -> tuple[OpenNames, tuple[bytes, ...]]:
    """Whether names could come twice in the JSON of a format, and the texts behind which this JSON begins.

    Raises `ConstraintError` where they could, and no text says that JSON begins.
    """
    parts = json_parts(form)
    found = [open_names(part.schema) for part in parts]
    if any(names.any and not part.markers for names, part in zip(found, parts, strict=True)):
        raise ConstraintError(
            "the structural tag has a JSON Schema with names that it does not list, and no constant text before it",
            "put a const_string before it, or list the names and set additionalProperties to false",
        )
    names = OpenNames(any(names.any for names in found), any(names.may_run_out for names in found))
    return names, tuple({marker.encode(): None for part in parts for marker in part.markers})


def json_parts(form: object) -> list[JsonPart]:
    """The places of JSON in a format that `tag_format` takes."""
    found: list[JsonPart] = []
    _walk(cast("Node", form), ("",), found)
    return found


def _walk(node: Node, before: tuple[str, ...], found: list[JsonPart]) -> tuple[str, ...]:
    """Collect the parts of a node. before, and what is returned: constant texts that may stand at its start and end."""
    match node.get("type"):
        case "const_string":
            return (str(node["value"]),) if node["value"] else before
        case "json_schema":
            schema = {} if node["json_schema"] is True else node["json_schema"]
            found.append(JsonPart(before, cast("Schema", schema), node.get("strict") is not False))
        case "sequence":
            for part in _nodes(node, "elements"):
                before = _walk(part, before, found)
            return before
        case "or":
            return _either(_walk(part, before, found) for part in _nodes(node, "elements"))
        case "tag":
            return _in_tag(node, before, found)
        case "triggered_tags":
            _either(_in_tag(tag, before, found) for tag in _nodes(node, "tags"))
        case "tags_with_separator":
            return _separated(node, before, found)
        case "optional" | "plus" | "star":  # how often it stands there, and so what stands before it, is left open
            _walk(cast("Node", node["content"]), (), found)
    return ()


def _in_tag(tag: Node, before: tuple[str, ...], found: list[JsonPart]) -> tuple[str, ...]:
    begin, end = str(tag["begin"]), str(tag["end"])
    after = _walk(cast("Node", tag["content"]), (begin,) if begin else before, found)
    return (end,) if end else after


def _separated(node: Node, before: tuple[str, ...], found: list[JsonPart]) -> tuple[str, ...]:
    separator = str(node.get("separator") or "")
    starts = (*before, separator) if separator and before else ()
    ends = [_walk(tag, starts, found) for tag in _nodes(node, "tags")]
    return _either(iter(ends if node.get("at_least_one") else [before, *ends]))


def _nodes(node: Node, name: str) -> list[Node]:
    return cast("list[Node]", node[name])


def _either(ends: Iterator[tuple[str, ...]]) -> tuple[str, ...]:
    """The texts of all alternatives; nothing where one has none."""
    every = list(ends)
    return tuple(dict.fromkeys(text for texts in every for text in texts)) if all(every) else ()
