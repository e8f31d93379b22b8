"""Every event a trace holds, as data (FORMAT.md, "Events").

`time` is in seconds since the recording began, `connection` counts from 1 (0: the recording as a whole).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from lmtool.protocol.lmtp import frames
from lmtool.protocol.lmtp.frames import ParsedFrame
from lmtool.trace.content import JsonText

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.protocol.lmtp.frames import Entry
    from lmtool.trace.content import Content

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
        """The LMTP command; None for what is not a command, one space and JSON."""
        return self.content.lead if isinstance(self.content, JsonText) else None

    def parse(self) -> ParsedFrame:
        """Command and JSON value, however the content is kept."""
        if isinstance(self.content, JsonText):
            return ParsedFrame(self.content.lead, self.content.value, readable=True)
        return frames.parse(self.content)

    def answer(self) -> tuple[str | None, list[Entry]]:
        """Command and entries of a server's frame; nothing of one that a client sent."""
        if self.direction == ">":
            return None, []
        parsed = self.parse()
        return parsed.command, frames.entries_of(parsed.value)

    def wire(self) -> str | bytes:
        """The message as it was sent: text, or bytes for a binary one."""
        if isinstance(self.content, JsonText):
            return f"{self.content.lead} {self.content.json}"
        return self.content


@dataclass(frozen=True, slots=True)
class Message:
    """One message of an Evergreen session, whatever carried it."""

    time: float
    direction: Direction
    connection: int
    value: Mapping[str, object]
    """The message as proto-JSON; `{"hex": ...}` for one that JSON cannot write."""

    def fragments(self) -> list[dict[str, object]]:
        """Its fragments of nodes, as proto-JSON."""
        found = self.value.get("nodeFragments")
        return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request, whole."""

    time: float
    connection: int
    method: str
    path: str
    headers: Mapping[str, str]
    """Those that were recorded; names in lower case."""
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
    """A connection ends in good order."""

    time: float
    connection: int
    by: str
    """`client` or `server`: who closed first."""
    code: int | None = None
    """The WebSocket close code; None where there was none."""
    reason: str = ""


class Drop(_WithFacts):
    """A connection ends without a close frame. Facts: `by` and `reason` where known."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Vocab:
    """What token ids mean: text, or bytes that are no UTF-8 on their own."""

    time: float
    connection: int
    tokens: Mapping[int, str | bytes]
    names: Mapping[int, str] = field(default_factory=dict)
    """What tokens are called that add no text, such as `<|im_end|>`; of some of `tokens`."""


@dataclass(frozen=True, slots=True)
class Blob:
    """A large value, kept once; later events refer to it."""

    time: float
    connection: int
    sha256: str
    value: object


@dataclass(frozen=True, slots=True)
class Remark:
    """A marker that one can jump to, or free text."""

    time: float
    kind: Literal["mark", "note"]
    connection: int
    text: str


class Stat(_WithFacts):
    """What the server told about itself. Facts: memory, queue lengths."""

    __slots__ = ()


class Turn(_WithFacts):
    """A turn of a conversation, as its client tells it. Facts: `number`, `behind`, `prompt`, `text`, `answer`, ..."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class End:
    """The recording was ended in good order."""

    time: float
    events: int
    """Events before this one."""
    tokens: int
    """Entries with a `token` in the parsed TOKEN frames."""
    sha256: str
    """Of the lines before this one (FORMAT.md, "The end")."""
    connection: int = 0


@dataclass(frozen=True, slots=True)
class Other:
    """An event of a kind that this version does not know."""

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
    """The entries of a parsed TOKEN frame, one per event of a stream; empty for every other event."""
    if not isinstance(event, Frame) or not isinstance(event.content, JsonText):
        return []
    command, entries = event.answer()
    return entries if command == "TOKEN" else []


def count_tokens(event: Event) -> int:
    """How many tokens an event carries, as the end record counts them."""
    return sum("token" in entry for entry in token_entries(event))


def _body_bytes(content: Content) -> bytes:
    if isinstance(content, JsonText):
        return f"{content.lead}{content.json}".encode()
    return content.encode() if isinstance(content, str) else content
