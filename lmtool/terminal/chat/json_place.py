"""In which line of a JSON text a member stands that a JSON pointer names."""

from __future__ import annotations

import json
import re

_POINTER = re.compile(r"#(/[^\s,;:]*)")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_BLANK = re.compile(r"[\s,:]*")


def pointer_in(sentence: str) -> str | None:
    """The JSON pointer (RFC 6901) behind a # in a sentence, if there is one."""
    found = _POINTER.search(sentence)
    return None if found is None else found[1]


def line_of(text: str, pointer: str) -> int | None:
    """The line, from 1, of the member or element of a valid JSON text; None for one that it does not have."""
    keys = [key.replace("~1", "/").replace("~0", "~") for key in pointer.split("/")[1:]]
    at: int | None = _skip(text, 0)
    for key in keys:
        at = None if at is None else _child(text, at, key)
    return None if at is None else text.count("\n", 0, at) + 1


def _child(text: str, at: int, key: str) -> int | None:
    """Where the value of a member, or an element, begins; at: where the object or array does."""
    closing = {"{": "}", "[": "]"}.get(text[at])
    if closing is None:
        return None
    is_object, count, at = closing == "}", 0, _skip(text, at + 1)
    while text[at] != closing:
        name = str(count)
        if is_object:
            string = _STRING.match(text, at)
            assert string is not None
            name, at = json.loads(string[0]), _skip(text, string.end())
        if name == key:
            return at
        at, count = _skip(text, json.JSONDecoder().raw_decode(text, at)[1]), count + 1
    return None


def _skip(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    assert found is not None
    return found.end()
