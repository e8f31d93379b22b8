"""A body's bytes split into what can be read on its own, however they are cut: lines, or all of it at once."""

from __future__ import annotations

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
