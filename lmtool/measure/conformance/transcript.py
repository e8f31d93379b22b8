"""The transcript of a case: every message in both directions, as data for checks."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lmtool.protocol.lmtp import frames

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.protocol.lmtp.frames import Entry, Key
    from lmtool.trace.events import Direction


@dataclass(frozen=True, slots=True)
class Message:
    """One WebSocket message."""

    time: float
    """Seconds since the case began."""
    connection: str
    direction: Direction
    content: str | bytes
    command: str | None = None
    """What stands before the first space; None for a message without one and for a binary one."""
    payload: object = None
    """The JSON value, `-Infinity` and its like included; None where there is none."""
    readable: bool = False
    """True if the payload could be read as JSON, at least as Python reads it."""

    @classmethod
    def of(cls, time: float, connection: str, direction: Direction, content: str | bytes) -> Message:
        """Take a message apart as far as that goes."""
        return cls(time, connection, direction, content, *frames.parse(content))

    @property
    def entries(self) -> list[Entry]:
        """The objects of its payload."""
        return frames.entries_of(self.payload)

    def strict(self) -> bool:
        """True if the payload is JSON as the standard has it, without `NaN` and its like."""
        text = self.content.partition(" ")[2] if isinstance(self.content, str) else ""
        try:
            json.loads(text, parse_constant=_refuse)
        except (ValueError, RecursionError):
            return False
        return True


@dataclass(frozen=True, slots=True)
class ConnectionEnd:
    """How a connection ended."""

    time: float
    code: int
    """1006 where there was no close frame."""
    reason: str
    by: str
    """`client` or `server`."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The answer to a plain HTTP request."""

    status: int
    body: str


class Transcript:
    """Everything sent and received in one case. Connections have names; the first one of a server case is `a`."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        """In order; put there by `add`."""
        self.closed: dict[str, ConnectionEnd] = {}
        self.handshakes: dict[str, int] = {}
        """HTTP status of each handshake, by connection; 101 for one that succeeded."""
        self.http: dict[str, HttpAnswer] = {}
        """Answers to GETs, by path."""
        self._tokens: dict[tuple[str, Key], list[tuple[int, Entry]]] = {}
        self._replies: dict[tuple[str, Key], list[Entry]] = {}

    def add(self, message: Message) -> None:
        """Keep a message."""
        if message.direction == "<":
            for entry in message.entries:
                key = message.connection, frames.stream_key(entry.get("stream_id"))
                if message.command == "TOKEN":
                    self._tokens.setdefault(key, []).append((len(self.messages), entry))
                elif message.command == "MSG" and "stream_id" in entry:
                    self._replies.setdefault(key, []).append(entry)
        self.messages.append(message)

    def received(self, at: str | None = None) -> list[Message]:
        """Messages of the peer under test when it is a server; on one connection, or on all."""
        return [m for m in self.messages if m.direction == "<" and at in (None, m.connection)]

    def sent(self) -> list[Message]:
        """Messages of a client."""
        return [m for m in self.messages if m.direction == ">"]

    def placed_entries(self, of: object, at: str = "a") -> Sequence[tuple[int, Entry]]:
        """Entries of one stream in TOKEN messages, each with the number of its message among all."""
        return self._tokens.get((at, frames.stream_key(of)), ())

    def entries(self, of: object, at: str = "a") -> list[Entry]:
        """Entries of one stream in TOKEN messages."""
        return [entry for _, entry in self.placed_entries(of, at)]

    def tokens(self, of: object, at: str = "a") -> list[Entry]:
        """Those that have a token."""
        return [e for e in self.entries(of, at) if e.get("token") is not None]

    def ids(self, of: object, at: str = "a") -> list[object]:
        """The ids of the tokens."""
        return [e["token"] for e in self.tokens(of, at)]

    def replies(self, of: object, at: str = "a") -> Sequence[Entry]:
        """Entries with this id in MSG messages."""
        return self._replies.get((at, frames.stream_key(of)), ())

    def has_ended(self, of: object, at: str = "a") -> bool:
        """True if a stream has its ending, or was refused by a MSG."""
        return any(ends(e) for _, e in self.placed_entries(of, at)) or any(
            e.get("error") is not None for e in self.replies(of, at)
        )

    def is_answered(self, of: object, at: str = "a") -> bool:
        """True if a request has its MSG."""
        return any(
            {"model_info", "models", "buffer"} & e.keys() or e.get("error") is not None for e in self.replies(of, at)
        )


@dataclass(slots=True)
class ClientRun:
    """One run of a client command against the scripted server."""

    transcript: Transcript = field(default_factory=Transcript)
    paths: list[str] = field(default_factory=list)
    """Paths of its handshakes."""
    status: int | None = None
    """Exit status; None when it did not end in time and was killed."""
    timeout: float = 0.0
    """Seconds it had."""
    stdout: str = ""
    stderr: str = ""
    usual: str | None = None
    """Its stdout for a plain answer; None where that is another each time."""
    notes: list[str] = field(default_factory=list)
    """What the server could not do, such as get a pong."""

    def requests(self, *commands: str) -> list[Message]:
        """Frames it sent with one of these commands."""
        return [message for message in self.transcript.sent() if message.command in commands]


def ends(entry: Entry) -> bool:
    """True if an entry of a TOKEN is the last one of its stream."""
    return frames.ends("TOKEN", entry)


def same_id(one: object, other: object) -> bool:
    """True if two stream ids are the same (STR-2): 1 and 1.0 are not."""
    return frames.stream_key(one) == frames.stream_key(other)


def msg_refusal(log: Transcript, of: object, at: str = "a") -> str:
    """Why a request has no answer, in brackets, where a MSG refused it."""
    errors = [entry["error"] for entry in log.replies(of, at) if entry.get("error") is not None]
    return f" (a MSG refused it: {short(errors[0])})" if errors else ""


def short(value: object, most: int = 120) -> str:
    """A value for a sentence."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _refuse(constant: str) -> object:
    raise ValueError(constant)
