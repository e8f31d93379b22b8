"""Split a response body into parts that can be read alone: JSON lines, server-sent events, or the whole body."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

Form: TypeAlias = Literal["events", "lines", "whole"]
"""Framing of a body: server-sent events, JSON lines, or one JSON value."""
_LINES = ("ndjson", "jsonl", "stream+json")
"""Substrings of the content types of JSON lines; the last one is Cohere's."""


class BodyParts:
    """Splitter for a body without framing: the whole body is one part.

    The parts and `take_rest` together are exactly the bytes given to `split`.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def pending(self) -> bytes:
        """Bytes of the incomplete part."""
        return bytes(self._buffer)

    @property
    def pending_bytes(self) -> int:
        """Number of bytes of the incomplete part."""
        return len(self._buffer)

    def split(self, data: bytes) -> list[bytes]:
        """Parts that these bytes complete, each with its terminator."""
        self._buffer += data
        return []

    def take_rest(self) -> bytes:
        """Return and clear the incomplete part."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest


class JsonLines(BodyParts):
    """Splitter for JSON lines, which end with a line feed only."""

    def split(self, data: bytes) -> list[bytes]:
        """Lines that these bytes complete, each with its line feed."""
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = self.take_rest() + lines[0]
        self._buffer += rest
        return [line + b"\n" for line in lines]


def form_of(content_type: str) -> Form:
    """Framing of a body with this content type."""
    lower = content_type.lower()
    if "text/event-stream" in lower:
        return "events"
    return "lines" if any(name in lower for name in _LINES) else "whole"


_BLANK_LINES = re.compile(rb"[\r\n]+")
_END = re.compile(rb"(?>\r\n|\r|\n)(?>\r\n|\r|\n)")  # atomic, so that one \r\n does not count as two line ends
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One server-sent event that has data."""

    name: str
    """Event type; empty if the stream has none."""
    data: bytes
    """Data lines joined by line feeds; UTF-8."""


class EventStream(BodyParts):
    r"""Splitter for server-sent events (HTML standard, 9.2.6). Surplus blank lines are parts of their own.

    Lines end with `\r`, `\n` or `\r\n` only; U+2028 and similar characters are text. An event without a blank line
    at its end is dropped.
    """

    def __init__(self) -> None:
        super().__init__()
        self._searched = 0
        self._first = True

    def events(self, data: bytes) -> list[ServerSentEvent]:
        """Events that these bytes complete."""
        blocks = self.split(data)
        if blocks and self._first:
            blocks[0] = blocks[0].removeprefix(_BYTE_ORDER_MARK)
            self._first = False
        return [event for block in blocks if (event := parse_event(block)) is not None]

    def split(self, data: bytes) -> list[bytes]:
        """Bytes of the events that these bytes complete."""
        buffer = self._buffer
        buffer += data
        blocks: list[bytes] = []
        start, search = 0, self._searched
        while True:
            blank = _BLANK_LINES.match(buffer, start) or _END.search(buffer, max(start, search))
            if blank is None:
                break
            blocks.append(bytes(buffer[start : blank.end()]))
            start = blank.end()
        del buffer[:start]
        self._searched = max(0, len(buffer) - 3)
        return blocks

    def take_rest(self) -> bytes:
        """Return and clear the incomplete part."""
        self._searched = 0
        return super().take_rest()


def leads_data(lead: str) -> bool:
    """True if a text is an event up to its data, so that one following line is the complete data."""
    if lead == "data: ":
        return True
    event = parse_event(lead.encode())
    return event is not None and not event.data and lead.endswith("data: ")


def parse_event(block: bytes) -> ServerSentEvent | None:
    """The event in a block of lines; None for comments and blocks without data."""
    name, data = b"", []
    for line in block.splitlines():  # of bytes: at \r, \n and \r\n only
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ")
    return ServerSentEvent(name.decode("utf-8", "replace"), b"\n".join(data)) if data else None
