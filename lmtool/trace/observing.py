"""What was seen on a wire, as the content of an event: taken apart if that loses nothing, exact otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.trace import styles
from lmtool.trace.events import Content, Parsed

if TYPE_CHECKING:
    from lmtool.trace.styles import Style

_OURS = ('"$blob"', '"$redacted"')
"""Names that mean something in a trace; a message that holds them is kept as it is."""


def content_of(message: str | bytes, preferred: Style) -> Content:
    """The content of a WebSocket message: command, one space, JSON, if it can be written again so."""
    if isinstance(message, bytes):
        return message
    command, space, payload = message.partition(" ")
    return _parsed(command, payload, preferred) or message if space else message


def body_content(body: bytes, preferred: Style) -> Content:
    """The content of an HTTP body: JSON, text, or bytes that are no UTF-8."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return body
    return _parsed("", text, preferred) or text


def sse_content(block: bytes, preferred: Style) -> Content:
    r"""The content of one server-sent event, its blank line included: `data: ` and JSON on its last line."""
    try:
        text = block.decode()
    except UnicodeDecodeError:
        return block
    start = text.rfind("data: ") + 6
    if start < 6 or not text.endswith("\n\n"):
        return text
    return _parsed(text[:start], text[start:-2], preferred) or text


def _parsed(lead: str, payload: str, preferred: Style) -> Parsed | None:
    if any(name in payload for name in _OURS):
        return None
    found = styles.read(payload, preferred)
    return None if found is None else Parsed(lead, *found)
