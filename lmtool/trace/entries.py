"""Entries of TOKEN frames, from an event or straight from a line of a file; what makes no sense is left out."""

from __future__ import annotations

import contextlib
import json
import math
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from lmtool.trace.events import Frame, Parsed, token_entries
from lmtool.trace.exchanges import read_answer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lmtool.trace.events import Event

LARGEST_ID = 2**31 - 1
"""Token ids are smaller."""
NO_TOKEN = -(2**62)
"""Stands for a token that was not told."""
_NOT_NAMED = "\0"


class Entry(msgspec.Struct, gc=False):
    """What one entry tells about its stream: a token, an ending, or both."""

    stream_id: int | str
    """Of any other JSON value the text of it behind a NUL: see `key_of`."""
    token: int = NO_TOKEN
    logprob: float | None = None
    """Nats; finite."""
    finish_reason: str | None = None
    error: Any = None
    """None, or why the stream failed."""
    text: str | None = None

    @property
    def brings_token(self) -> bool:
        """Whether it has a token that a vocabulary can have."""
        return 0 <= self.token < LARGEST_ID

    @property
    def token_or_text(self) -> bool:
        """Whether it has such a token, or text without one."""
        return 0 <= self.token < LARGEST_ID or bool(self.text)


class TokenLine(msgspec.Struct, array_like=True, gc=False):
    """A line of a trace that is a TOKEN frame. Alternatives are passed over: they are most of the text."""

    time: Annotated[float, Meta(ge=0, le=1e12)]
    kind: Literal["<"]
    connection: Annotated[int, Meta(ge=0, lt=2**53)]
    lead: Literal["TOKEN"]
    entries: list[Entry]


_LINES = msgspec.json.Decoder(TokenLine)


def read_line(line: bytes) -> TokenLine | None:
    """The TOKEN frame of a line, four times as fast as `read_event`; None for every other line, and for odd ones."""
    if line.find(b'"TOKEN"', 0, 80) < 0:
        return None
    try:
        return _LINES.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def entries_of(event: Event) -> list[Entry]:
    """The entries of a TOKEN frame, also of one with `-Infinity`; empty for every other event."""
    objects = objects_of(event)
    if not objects:
        return []
    if isinstance(event, Frame) and isinstance(event.content, Parsed):  # whose numbers are finite
        with contextlib.suppress(msgspec.ValidationError, RecursionError):
            return msgspec.convert(objects, list[Entry])
    return [_entry(one) for one in objects]


def objects_of(event: Event) -> Sequence[Mapping[str, object]]:
    """The objects that `entries_of` reads."""
    if not isinstance(event, Frame) or event.direction != "<":
        return []
    if isinstance(event.content, Parsed):
        return token_entries(event)
    if isinstance(event.content, str) and event.content.startswith("TOKEN "):
        return read_answer(event)[1]
    return []


def key_of(stream_id: object) -> int | str:
    """A stream id as it stands in `Entry.stream_id`."""
    if type(stream_id) is int or isinstance(stream_id, str):
        return stream_id
    return _NOT_NAMED + json.dumps(stream_id, separators=(",", ":"), ensure_ascii=False)


def name_of(key: int | str) -> str:
    """A stream id for people: `3`, or the JSON text of what is no whole number."""
    if isinstance(key, int):
        return str(key)
    return key[1:] if key.startswith(_NOT_NAMED) else json.dumps(key, ensure_ascii=False)


def _entry(one: Mapping[str, object]) -> Entry:
    token, logprob, text, reason = (one.get(name) for name in ("token", "logprob", "text", "finish_reason"))
    return Entry(
        key_of(one.get("stream_id")),
        token if type(token) is int else NO_TOKEN,
        float(logprob) if isinstance(logprob, int | float) and math.isfinite(logprob) else None,
        None if reason is None else str(reason),
        one.get("error"),
        text if isinstance(text, str) else None,
    )
