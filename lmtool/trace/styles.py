"""How a program spells JSON: a text that can be written again from its value, byte for byte, or cannot."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Style: TypeAlias = Literal["py", "compact", "msgspec"]
"""Names a JSON writer (FORMAT.md, "Styles")."""

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


def write(value: object, style: Style) -> str:
    """The JSON text of a value that came out of `read` or out of a trace."""
    return _WRITERS[style](value)


def read(text: str, preferred: Style) -> tuple[object, Style] | None:
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
        return write(value, style) == text
    except (ValueError, RecursionError):
        return False


def named(name: object) -> Style | None:
    """The style of this name; None where there is none."""
    return next((style for style in STYLES if style == name), None)
