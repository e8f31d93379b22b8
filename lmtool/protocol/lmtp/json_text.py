"""JSON as LMTP needs it: strict when written; when read, also what Python's own reader takes."""

from __future__ import annotations

import json
from typing import TypeGuard

import msgspec

_ENCODER = msgspec.json.Encoder()
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


class JsonTextError(ValueError):
    """The text is not JSON of the expected shape; the message says why."""


def dump(value: object) -> bytes:
    """UTF-8 JSON of a value whose floats are finite. Half a surrogate pair in a string becomes `?`."""
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:
        members = msgspec.structs.asdict(value) if isinstance(value, msgspec.Struct) else value
        return _ENCODER.encode(_without_lone_surrogates(members))


def load(text: str) -> object:
    """The value of a JSON text; `NaN`, `Infinity` and `-Infinity` are read as the floats they name.

    LMQL 0.7.3's server writes `-Infinity` as a log-probability. Raises `JsonTextError`.
    """
    try:
        value: object = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as strict:
        try:
            value = json.loads(text)
        except RecursionError:
            raise JsonTextError("it is nested too deeply") from None
        except ValueError:
            raise JsonTextError(str(strict).removeprefix("JSON is malformed: ")) from None
    return value


def load_members(text: str) -> dict[str, bytes]:
    """The members of a JSON object, each value as its own JSON text. Raises `JsonTextError`.

    A value that only Python's reader takes (`NaN`) keeps its spelling, so that the reader of the member can refuse it
    by its name.
    """
    try:
        members = _OBJECT.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        value = load(text)
        if not is_object(value):
            raise JsonTextError(f"it is {kind_of(value)}; expected an object") from None
        return {name: json.dumps(member, separators=(",", ":")).encode() for name, member in value.items()}
    return {name: bytes(raw) for name, raw in members.items()}


def compact(text: bytes) -> str:
    """The same JSON text without insignificant whitespace. Raises `JsonTextError` when no strict reader takes it."""
    try:
        msgspec.json.decode(text)
        return msgspec.json.format(text, indent=-1).decode()
    except (msgspec.DecodeError, RecursionError) as error:
        raise JsonTextError(str(error)) from None


def is_object(value: object) -> TypeGuard[dict[str, object]]:
    """True if a value that was read is a JSON object."""
    return isinstance(value, dict)


def kind_of(value: object) -> str:
    """The JSON name of a value's kind, with its article: `an array`."""
    kinds = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), "a number")


def _without_lone_surrogates(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        known = ((name, member) for name, member in value.items() if member is not msgspec.UNSET)
        return {_without_lone_surrogates(name): _without_lone_surrogates(member) for name, member in known}
    if isinstance(value, list | tuple):
        return [_without_lone_surrogates(member) for member in value]
    return value
