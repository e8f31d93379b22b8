"""Events of a trace as data (FORMAT.md, "Events"), and their content: parsed JSON where that loses nothing.

`time` is in seconds since the recording began, `connection` counts from 1 (0: the recording as a whole).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from lmtool.protocol.lmtp import frames
from lmtool.protocol.lmtp.frames import ParsedFrame

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lmtool.protocol.lmtp.frames import Entry

Style: TypeAlias = Literal["py", "compact", "msgspec"]
"""JSON style of the program that wrote a text (FORMAT.md, "Styles")."""

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
"""Names with a meaning in traces; a message that contains them is kept as exact text."""


@dataclass(frozen=True, slots=True)
class JsonText:
    """Text that ends in JSON, parsed; encoding it gives the same bytes, unless it was redacted."""

    lead: str
    """Text before the JSON: a frame's command, the `data: ` of a server-sent event, nothing in a body."""
    value: object
    """The JSON value; a member may be a reference `{"$blob": sha256}` or a mark `{"$redacted": ...}`."""
    style: Style

    @property
    def json(self) -> str:
        """The JSON text."""
        return write_json(self.value, self.style)


Content: TypeAlias = JsonText | str | bytes
"""Parsed JSON, exact text, or binary data."""


def decoded(data: bytes) -> str | bytes:
    """Text if the bytes are UTF-8; otherwise the bytes."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def parse_frame(message: str | bytes, preferred: Style) -> Content:
    """Content of a WebSocket message: parsed if it is a command, one space and JSON, and encodes to the same text."""
    if isinstance(message, bytes):
        return message
    command, space, payload = message.partition(" ")
    return _taken_apart(command, payload, preferred) or message if space else message


def parse_body(body: bytes, preferred: Style) -> Content:
    """Content of an HTTP body: JSON, text, or bytes that are not UTF-8."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return body
    return _taken_apart("", text, preferred) or text


def parse_sse_event(block: bytes, preferred: Style) -> Content:
    """Content of one server-sent event with its blank line; parsed if its last line is `data: ` and JSON."""
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
    """JSON text of a value from `read_json` or from a trace."""
    return _WRITERS[style](value)


def read_json(text: str, preferred: Style) -> tuple[object, Style] | None:
    """Value of a JSON text and the style that encodes it to exactly this text; None if no style does.

    `preferred` wins if several styles do.
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
    """Style of this name; None if there is none."""
    return next((style for style in STYLES if style == name), None)


Direction: TypeAlias = Literal[">", "<"]
"""`>`: client to server; `<`: server to client."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One WebSocket message."""

    time: float
    direction: Direction
    connection: int
    content: Content

    @property
    def command(self) -> str | None:
        """LMTP command; None if the content was not parsed."""
        return self.content.lead if isinstance(self.content, JsonText) else None

    def parse(self) -> ParsedFrame:
        """Command and JSON value, also of content that is kept as text."""
        if isinstance(self.content, JsonText):
            return ParsedFrame(self.content.lead, self.content.value, readable=True)
        return frames.parse(self.content)

    def answer(self) -> tuple[str | None, list[Entry]]:
        """Command and entries of a server's frame; nothing for a client's frame."""
        if self.direction == ">":
            return None, []
        parsed = self.parse()
        return parsed.command, frames.entries_of(parsed.value)

    def wire(self) -> str | bytes:
        """The message as sent: text, or bytes for a binary one."""
        if isinstance(self.content, JsonText):
            return f"{self.content.lead} {self.content.json}"
        return self.content


@dataclass(frozen=True, slots=True)
class Message:
    """One message of an Evergreen session, over any transport."""

    time: float
    direction: Direction
    connection: int
    value: Mapping[str, object]
    """The message as proto-JSON; `{"hex": ...}` for one that JSON cannot represent."""

    def fragments(self) -> list[Entry]:
        """Its fragments of nodes, as proto-JSON."""
        return frames.entries_of(self.value.get("nodeFragments"))


@dataclass(frozen=True, slots=True)
class Request:
    """A complete HTTP request."""

    time: float
    connection: int
    method: str
    path: str
    headers: Mapping[str, str]
    """Recorded headers; names in lower case."""
    body: Content | None = None

    def wire_body(self) -> bytes:
        """The body's bytes."""
        return b"" if self.body is None else _body_bytes(self.body)


@dataclass(frozen=True, slots=True)
class Response:
    """Status and headers of an HTTP response; its body follows in pieces, then `Done`."""

    time: float
    connection: int
    status: int
    reason: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a response's body: one server-sent event with its blank line, or bytes of another body."""

    time: float
    kind: Literal["sse", "body"]
    connection: int
    content: Content

    def wire(self) -> bytes:
        """The piece's bytes."""
        if self.kind == "sse" and isinstance(self.content, JsonText):
            return f"{self.content.lead}{self.content.json}\n\n".encode()
        return _body_bytes(self.content)


@dataclass(frozen=True, slots=True)
class Done:
    """A response's body is complete."""

    time: float
    connection: int


@dataclass(frozen=True, slots=True)
class _WithFacts:
    time: float
    connection: int
    facts: Mapping[str, object] = field(default_factory=dict)


class Open(_WithFacts):
    """A connection begins. Facts: `peer`, `agent`, `path`, ..."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Close:
    """A connection is closed regularly."""

    time: float
    connection: int
    by: str
    """End that closed first: `client` or `server`."""
    code: int | None = None
    """WebSocket close code; None without one."""
    reason: str = ""


class Drop(_WithFacts):
    """A connection is lost without a close frame. Facts: `by` and `reason` if known."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Vocab:
    """Meaning of token ids: text, or bytes that are not UTF-8 by themselves."""

    time: float
    connection: int
    tokens: Mapping[int, str | bytes]
    names: Mapping[int, str] = field(default_factory=dict)
    """Names of tokens that add no text, such as `<|im_end|>`, for some of `tokens`."""


@dataclass(frozen=True, slots=True)
class Blob:
    """A large value, stored once; later events refer to it."""

    time: float
    connection: int
    sha256: str
    value: object


@dataclass(frozen=True, slots=True)
class Remark:
    """A marker to jump to, or a note."""

    time: float
    kind: Literal["mark", "note"]
    connection: int
    text: str


class Stat(_WithFacts):
    """Statistics that the server reports. Facts: memory, queue lengths."""

    __slots__ = ()


class Turn(_WithFacts):
    """A turn of a conversation, reported by its client. Facts: `number`, `behind`, `prompt`, `text`, `answer`, ..."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class End:
    """The recording was closed regularly."""

    time: float
    events: int
    """Events before this one."""
    tokens: int
    """Entries with a `token` in the parsed TOKEN frames."""
    sha256: str
    """Hash of the lines before this one (FORMAT.md, "The end")."""
    connection: int = 0


@dataclass(frozen=True, slots=True)
class Other:
    """An event of an unknown kind."""

    time: float
    kind: str
    connection: int
    rest: tuple[object, ...]


Event: TypeAlias = (
    Frame
    | Message
    | Request
    | Response
    | Piece
    | Done
    | Open
    | Close
    | Drop
    | Vocab
    | Blob
    | Remark
    | Stat
    | Turn
    | End
    | Other
)


def token_entries(event: Event) -> list[Entry]:
    """Entries of a parsed TOKEN frame, one per event of a stream; empty for every other event."""
    if not isinstance(event, Frame) or not isinstance(event.content, JsonText):
        return []
    command, entries = event.answer()
    return entries if command == "TOKEN" else []


def count_tokens(event: Event) -> int:
    """Number of tokens in an event, as the end record counts them."""
    return sum("token" in entry for entry in token_entries(event))


def _body_bytes(content: Content) -> bytes:
    if isinstance(content, JsonText):
        return f"{content.lead}{content.json}".encode()
    return content.encode() if isinstance(content, str) else content
