"""Where the fault of a badly written constraint is: the place that the library's message is about."""

from __future__ import annotations

import difflib
import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")
_TYPE = re.compile(r"Invalid type: (.*)")
_KEYWORD = re.compile(r"(?:Expected .*? for '(\w+)'|(\w+) must be )")
_POINTER = re.compile(r"Pointer '(.*)' does not exist")
_CARET = re.compile(r"^ {4}(.*)\n {4}( *)\^", re.MULTILINE)
_ERROR = re.compile(r"^error: (.*)$", re.MULTILINE)
_SHOWN = 60


def regex_fault(pattern: str, message: str) -> str | None:
    """What is wrong with a regular expression, and at which character; None where the message does not tell."""
    error, caret = _ERROR.search(message), _CARET.search(message)
    if error is None:
        return None
    shown = json.dumps(pattern if len(pattern) <= _SHOWN else f"{pattern[:_SHOWN]}…", ensure_ascii=False)
    place = "" if caret is None or caret[1] != pattern else f", at character {len(caret[2]) + 1}"
    return f"{shown} is no regular expression: {error[1]}{place}"


def schema_fault(schema: object, message: str) -> str | None:
    """What is wrong with a JSON Schema, and where (a JSON pointer, RFC 6901); None where that is not known."""
    if (unknown := _TYPE.match(message)) is not None:
        return _unknown_type(schema, unknown[1])
    if (pointer := _POINTER.match(message)) is not None:
        target = f"#{pointer[1]}"
        places = (place for place, key, value in _members(schema) if key == "$ref" and value == target)
        return next((f"what #{place} refers to does not exist: {target}" for place in places), None)
    if (keyword := _KEYWORD.match(message)) is None:
        return None
    name = keyword[1] or keyword[2]
    found = (place for place, key, value in _members(schema) if key == name and _is_wrong(value, message))
    return next((f"at #{place}: {message}" for place in found), None)


def _unknown_type(schema: object, name: str) -> str | None:
    near = difflib.get_close_matches(name, _TYPES, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(_TYPES)}"
    for place, key, value in _members(schema):
        if key == "type" and name in (value if isinstance(value, list) else [value]):
            return f"the type {json.dumps(name)} at #{place} is none; {hint}"
    return None


def _is_wrong(value: object, message: str) -> bool:
    """Whether a keyword's value is the one that a message complains of."""
    if message.endswith("must be an object"):
        return not isinstance(value, dict)
    if message.endswith("must be an array"):
        return not isinstance(value, list)
    return message.endswith(f"got {json.dumps(value)}")


def _members(schema: object, place: str = "") -> Iterator[tuple[str, str, object]]:
    """Every member of every object in a value: its pointer, name and value."""
    if isinstance(schema, dict):
        for key, value in schema.items():
            here = f"{place}/{str(key).replace('~', '~0').replace('/', '~1')}"
            yield here, key, value
            yield from _members(value, here)
    elif isinstance(schema, list):
        for at, value in enumerate(schema):
            yield from _members(value, f"{place}/{at}")
