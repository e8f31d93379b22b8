"""What an event carries: JSON taken apart where that loses nothing, exact text or bytes otherwise."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Style: TypeAlias = Literal["py", "compact", "msgspec"]
"""How a program writes JSON (FORMAT.md, "Styles")."""

_PY = json.JSONEncoder(allow_nan=False)
_COMPACT = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"))
_MSGSPEC = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder()
_WRITERS: Mapping[Style, Callable[[object], str]] = {
    "py": _PY.encode,
    "compact": _COMPACT.encode,
    "msgspec": lambda value: _MSGSPEC.encode(value).decode(),
}
STYLES: tuple[Style, ...] = tuple(_WRITERS)
_RESERVED_NAMES = ('"$blob"', '"$redacted"')
"""They mean something in a trace; a message that holds them is kept as exact text."""


@dataclass(frozen=True, slots=True)
class JsonText:
    """Text that ends in JSON, taken apart; writing it again gives the same bytes, unless it was redacted."""

    lead: str
    """What stands before the JSON: a frame's command, the `data: ` of a server-sent event, nothing in a body."""
    value: object
    """The JSON value; a member may be a reference `{"$blob": sha256}` or a mark `{"$redacted": ...}`."""
    style: Style

    @property
    def json(self) -> str:
        """The JSON text."""
        return write_json(self.value, self.style)


Content: TypeAlias = JsonText | str | bytes
"""Taken apart, exact text, or binary."""


def decoded(data: bytes) -> str | bytes:
    """The text of UTF-8; other bytes as they are."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def parse_frame(message: str | bytes, preferred: Style) -> Content:
    """The content of a WebSocket message: command, one space, JSON, if it can be written again so."""
    if isinstance(message, bytes):
        return message
    command, space, payload = message.partition(" ")
    return _taken_apart(command, payload, preferred) or message if space else message


def parse_body(body: bytes, preferred: Style) -> Content:
    """The content of an HTTP body: JSON, text, or bytes that are no UTF-8."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return body
    return _taken_apart("", text, preferred) or text


def parse_sse_event(block: bytes, preferred: Style) -> Content:
    r"""The content of one server-sent event, its blank line included: `data: ` and JSON on its last line."""
    try:
        text = block.decode()
    except UnicodeDecodeError:
        return block
    start = text.rfind("data: ") + 6
    if start < 6 or not text.endswith("\n\n"):
        return text
    return _taken_apart(text[:start], text[start:-2], preferred) or text


def _taken_apart(lead: str, payload: str, preferred: Style) -> JsonText | None:
    if any(name in payload for name in _RESERVED_NAMES):
        return None
    read = read_json(payload, preferred)
    return None if read is None else JsonText(lead, *read)


def write_json(value: object, style: Style) -> str:
    """The JSON text of a value that came out of `read_json` or out of a trace."""
    return _WRITERS[style](value)


def read_json(text: str, preferred: Style) -> tuple[object, Style] | None:
    """The value of a JSON text and the style that writes exactly this text again; None where no style does.

    `preferred` wins where several styles would do.
    """
    try:
        value = _DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    for style in (preferred, *STYLES):
        if _writes(value, style, text):
            return value, style
    return None


def _writes(value: object, style: Style, text: str) -> bool:
    try:
        return write_json(value, style) == text
    except (ValueError, RecursionError):
        return False


def style_named(name: object) -> Style | None:
    """The style of this name; None where there is none."""
    return next((style for style in STYLES if style == name), None)
