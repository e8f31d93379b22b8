"""Frames of any peer as an observer reads them: command, entries, and what an entry means for its stream.

The codec refuses what a client or server must not obey; here nothing is refused and nothing is lost.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from lmtool.core.seam import Seam  # noqa: TC001  # msgspec reads the annotation
from lmtool.protocol.lmtp import json_text
from lmtool.protocol.lmtp.json_text import JsonTextError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Entry: TypeAlias = "Mapping[str, object]"
"""One object of a server's payload."""
Key: TypeAlias = int | str
"""A stream id to look up by: 1, 1.0 and "1" are three (LMTP, STR-2)."""

LARGEST_ID = 2**31 - 1
"""Token ids are smaller."""
NO_TOKEN = -(2**62)
"""Stands for a token that an entry does not have."""
_JSON = "\0"


class ParsedFrame(NamedTuple):
    """A frame as far as it can be read."""

    command: str | None
    """What stands before the first space; None without one, and for a binary frame."""
    value: object
    """The JSON value, `-Infinity` and its like included."""
    readable: bool
    """True if there is a JSON value, at least as Python reads it."""


class TokenEntry(msgspec.Struct, gc=False):
    """What one entry of a TOKEN means for its stream: a token, an ending, or both. Alternatives are left out."""

    stream_id: Key
    token: int = NO_TOKEN
    logprob: float | None = None
    """Nats; finite."""
    finish_reason: str | None = None
    error: str | None = None
    """Why the stream failed; also an entry that makes no sense is the end of its stream."""
    text: str | None = None
    attempts: str = ""
    """On the last entry of a pool's stream: the members that were called for it."""
    usage: Any = None
    """On the last entry of a stream: what it consumed, where the server counts."""
    seam: Seam | None = None
    """On the first entry behind the place where another member of a pool went on."""
    reasoning: str | None = None
    """What it adds to a thought before the answer (TXT-7), possibly nothing; None: it is of the answer."""

    @property
    def is_thought(self) -> bool:
        """True if it is of a thought, and adds nothing to the answer."""
        return self.reasoning is not None and not self.text

    @property
    def own_text(self) -> str | None:
        """What it adds to thought and answer; None where the server told no text."""
        return self.text if self.reasoning is None else f"{self.reasoning}{self.text or ''}"

    @property
    def has_token(self) -> bool:
        """True if it has a token that a vocabulary can have."""
        return 0 <= self.token < LARGEST_ID

    @property
    def counts(self) -> bool:
        """True if it has such a token, or text without one."""
        return self.has_token or bool(self.own_text)

    @property
    def last(self) -> bool:
        """True if its stream ends with it."""
        return self.finish_reason is not None or self.error is not None


def parse(frame: str | bytes) -> ParsedFrame:
    """Take a frame apart."""
    command, space, text = frame.partition(" ") if isinstance(frame, str) else ("", "", "")
    if not space:
        return ParsedFrame(None, None, readable=False)
    try:
        return ParsedFrame(command, json_text.load(text), readable=True)
    except JsonTextError:
        return ParsedFrame(command, None, readable=False)


def entries_of(value: object) -> list[Entry]:
    """The objects of a server's payload, a list or a single one."""
    return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, dict)]


def token_entries(entries: Sequence[Entry]) -> list[TokenEntry]:
    """What the entries of a TOKEN mean."""
    try:
        converted = msgspec.convert(entries, list[TokenEntry])
        if math.isfinite(sum([one.logprob or 0.0 for one in converted])):  # an infinity or NaN stays one in a sum
            return converted
    except (msgspec.ValidationError, RecursionError):
        pass
    return [_tolerant(one) for one in entries]


def _tolerant(entry: Entry) -> TokenEntry:
    """The same of an entry that is not as it should be: one that makes no sense is an error of its stream."""
    key = stream_key(entry.get("stream_id"))
    members = {name: value for name, value in entry.items() if value is not None} | {"stream_id": key}
    logprob = members.get("logprob")
    if isinstance(logprob, float) and not math.isfinite(logprob):
        del members["logprob"]  # LMQL's server writes -Infinity
    try:
        return msgspec.convert(members, TokenEntry)
    except (msgspec.ValidationError, RecursionError) as error:
        return TokenEntry(key, error=f"the server sent a TOKEN that makes no sense: {error}")


def alternatives(entry: Mapping[str, Any]) -> tuple[tuple[int, float], ...]:
    """The tokens that an entry names beside its own, by id, and their logprobs in nats, best first."""
    listed = entry.get("top_logprobs")
    pairs = [
        (int(name), float(value))
        for name, value in (listed.items() if isinstance(listed, dict) else ())
        if name.isascii() and name.isdigit() and len(name) < 10 and _is_finite(value)
    ]
    return tuple(sorted(pairs, key=lambda one: -one[1]))


def _is_finite(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type] # the first test says it


def ends(command: str | None, entry: Entry) -> bool:
    """True if an entry of a server's frame is the last one of its stream or request."""
    if entry.get("error") is not None:
        return True
    last = ("model_info", "models", "buffer", "watch") if command == "MSG" else ("finish_reason",)
    return any(entry.get(name) is not None for name in last)


def stream_key(stream_id: object) -> Key:
    """A stream id as something to look up."""
    if type(stream_id) is int or isinstance(stream_id, str):
        return stream_id
    return _JSON + json.dumps(stream_id, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def stream_name(key: Key) -> str:
    """A stream id for people: `3`, or the JSON text of what is no whole number."""
    if isinstance(key, int):
        return str(key)
    return key[1:] if key.startswith(_JSON) else json.dumps(key, ensure_ascii=False)
