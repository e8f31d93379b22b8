"""Split a response body into parts that can be read alone: JSON lines, server-sent events, or the whole body."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

Form: TypeAlias = Literal["events", "lines", "whole"]
"""How a body carries an answer: server-sent events, JSON lines, or one JSON value."""
_LINES = ("ndjson", "jsonl", "stream+json")
"""Parts of the content types of JSON lines; the last one is Cohere's."""


class BodyParts:
    """Takes bytes as they arrive. A body of no particular form has no parts but itself.

    The parts and `take_rest` together are the bytes that were fed.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def pending(self) -> bytes:
        """What has come of a part that is not complete."""
        return bytes(self._buffer)

    @property
    def pending_bytes(self) -> int:
        """How much that is."""
        return len(self._buffer)

    def split(self, data: bytes) -> list[bytes]:
        """The parts that these bytes complete, each with what ends it."""
        self._buffer += data
        return []

    def take_rest(self) -> bytes:
        """What is pending, which then is forgotten."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest


class JsonLines(BodyParts):
    """Lines end with a line feed and with nothing else."""

    def split(self, data: bytes) -> list[bytes]:
        """The lines that these bytes complete, each with its line feed."""
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = self.take_rest() + lines[0]
        self._buffer += rest
        return [line + b"\n" for line in lines]


def form_of(content_type: str) -> Form:
    """The form of a body with this header."""
    lower = content_type.lower()
    if "text/event-stream" in lower:
        return "events"
    return "lines" if any(name in lower for name in _LINES) else "whole"


_BLANK_LINES = re.compile(rb"[\r\n]+")
_END = re.compile(rb"(?>\r\n|\r|\n)(?>\r\n|\r|\n)")  # atomic: the two bytes of one \r\n are not two line ends
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event that has data."""

    name: str
    """Empty where the stream names none."""
    data: bytes
    """Its data lines with a line feed between them; UTF-8."""


class EventStream(BodyParts):
    r"""Parts are events, each with the blank line that ends it; superfluous blank lines are parts on their own.

    Lines end with `\r`, `\n` or `\r\n`, and with nothing else: U+2028 and its like are text. What no blank line
    ends is no event.
    """

    def __init__(self) -> None:
        super().__init__()
        self._searched = 0
        self._first = True

    def events(self, data: bytes) -> list[ServerSentEvent]:
        """The events that these bytes complete."""
        blocks = self.split(data)
        if blocks and self._first:
            blocks[0] = blocks[0].removeprefix(_BYTE_ORDER_MARK)
            self._first = False
        return [event for block in blocks if (event := parse_event(block)) is not None]

    def split(self, data: bytes) -> list[bytes]:
        """The bytes of these events."""
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
        """What is pending, which then is forgotten."""
        self._searched = 0
        return super().take_rest()


def leads_data(lead: str) -> bool:
    """Whether a text is an event up to its data: whatever one line stands behind it is the data, and all of it."""
    if lead == "data: ":
        return True
    event = parse_event(lead.encode())
    return event is not None and not event.data and lead.endswith("data: ")


def parse_event(block: bytes) -> ServerSentEvent | None:
    """The event of its lines; None for comments and other lines without data."""
    name, data = b"", []
    for line in block.splitlines():  # of bytes: at \r, \n and \r\n only
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ")
    return ServerSentEvent(name.decode("utf-8", "replace"), b"\n".join(data)) if data else None
