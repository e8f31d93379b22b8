"""The JSON in a structural tag: its schemas, and the constant texts behind which it begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, cast

from lmtool.errors import ConstraintError

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


def json_parts(form: object) -> list[JsonPart]:
    """The places of JSON in a format that `tag_format` takes."""
    found: list[JsonPart] = []
    _walk(cast("Node", form), ("",), found)
    return found


def _walk(node: Node, before: tuple[str, ...], found: list[JsonPart]) -> tuple[str, ...]:
    """Collect the parts of a node. before, and what is returned: constant texts that may stand at its start and end."""
    match node.get("type"):
        case "const_string":
            return (str(node["value"]),)
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
            separator = str(node.get("separator") or "")
            starts = (*before, separator) if separator and before else ()
            return _either(_walk(tag, starts, found) for tag in _nodes(node, "tags"))
    return ()


def _in_tag(tag: Node, before: tuple[str, ...], found: list[JsonPart]) -> tuple[str, ...]:
    begin, end = str(tag["begin"]), str(tag["end"])
    after = _walk(cast("Node", tag["content"]), (begin,) if begin else before, found)
    return (end,) if end else after


def _nodes(node: Node, name: str) -> list[Node]:
    return cast("list[Node]", node[name])


def _either(ends: Iterator[tuple[str, ...]]) -> tuple[str, ...]:
    """The texts of all alternatives; nothing where one has none."""
    every = list(ends)
    return tuple(dict.fromkeys(text for texts in every for text in texts)) if all(every) else ()
