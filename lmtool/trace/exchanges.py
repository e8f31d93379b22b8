"""A trace as requests, each with everything that was answered to it and when."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from lmtool.lmtp import json_text
from lmtool.lmtp.json_text import JsonTextError
from lmtool.trace import styles
from lmtool.trace.events import Done, Frame, Parsed, Piece, Request, Response

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lmtool.trace.events import Event
    from lmtool.trace.styles import Style


@dataclass(frozen=True, slots=True)
class Reply:
    """Entries of one LMTP frame that belong to one request."""

    offset: float
    """Seconds after the request."""
    command: str
    entries: tuple[Mapping[str, object], ...]
    bare: bool
    """Whether the payload was a single object, not a list."""
    style: Style
    exact: str | None = None
    """The frame's text where all of it belongs to the request."""

    def wire(self, recorded_id: object, stream_id: object) -> str:
        """The frame for a request that has this `stream_id`; as recorded if it has the recorded one."""
        if self.exact is not None and _same(recorded_id, stream_id):
            return self.exact
        entries = [{**e, "stream_id": stream_id} if "stream_id" in e else e for e in self.entries]
        payload: object = entries[0] if self.bare else entries
        try:
            return f"{self.command} {styles.write(payload, self.style)}"
        except ValueError:  # LMQL's server writes -Infinity: so does the answer
            return f"{self.command} {json.dumps(payload)}"

    @property
    def last(self) -> bool:
        """Whether a stream or request ends with it."""
        return self.command == "MSG" or any(e.get("finish_reason") or e.get("error") for e in self.entries)


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of an HTTP response's body."""

    offset: float
    data: bytes


@dataclass(slots=True)
class LmtpExchange:
    """A request on a WebSocket and its replies."""

    time: float
    connection: int
    command: str | None
    """None for a frame that is no command and JSON object."""
    payload: Mapping[str, object]
    text: str | bytes
    """The frame as it was sent."""
    replies: list[Reply] = field(default_factory=list)

    @property
    def stream_id(self) -> object:
        """As recorded; None where there is none."""
        return self.payload.get("stream_id")

    @property
    def ended(self) -> bool:
        """Whether its last answer came: an end of the stream, or what answers any other request."""
        return any(ends(reply.command, entry) for reply in self.replies for entry in reply.entries)


@dataclass(slots=True)
class HttpExchange:
    """An HTTP request and its response."""

    time: float
    connection: int
    request: Request
    payload: Mapping[str, object]
    response: Response | None = None
    parts: list[Part] = field(default_factory=list)
    streamed: bool = False
    """Whether the body was server-sent events."""
    complete: bool = False


Exchange: TypeAlias = LmtpExchange | HttpExchange


@dataclass(frozen=True, slots=True)
class Stray:
    """An entry of a server's frame for a stream that nobody began on its connection."""

    connection: int
    stream_id: object
    entry: Mapping[str, object]


def exchanges(events: Iterable[Event]) -> list[Exchange]:
    """All exchanges of a trace in order of their requests, in memory. Events must hold no references to blobs."""
    return collect(events)[0]


def collect(events: Iterable[Event]) -> tuple[list[Exchange], list[Stray]]:
    """As `exchanges`, and beside them what belongs to none."""
    collector = _Collector()
    for event in events:
        collector.take(event)
    return collector.found, collector.strays


_LAST = (("finish_reason",), ("model_info", "models"))
"""What the last entry has of a stream, and of a request."""


def ends(command: str, entry: Mapping[str, object]) -> bool:
    """Whether an entry of a server's frame is the last one of its stream or request."""
    if entry.get("error") is not None:
        return True
    return any(entry.get(name) is not None for name in _LAST[command == "MSG"])


def read_answer(frame: Frame) -> tuple[str, list[Mapping[str, object]]]:
    """Command and entries of a server's frame, also of one with `-Infinity`; nothing where it cannot be read."""
    command, value = _answer(frame.wire())
    return command, [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, dict)]


def _answer(wire: str | bytes) -> tuple[str, object]:
    command, space, text = wire.partition(" ") if isinstance(wire, str) else ("", "", "")
    try:
        return command, json_text.load(text) if space else None
    except JsonTextError:
        return command, None


def read_frame(frame: str | bytes) -> tuple[str | None, Mapping[str, object]]:
    """Command and payload of a client's frame; None and nothing where it is no command and JSON object."""
    if isinstance(frame, str):
        command, space, text = frame.partition(" ")
        try:
            value = json_text.load(text) if space else None
        except JsonTextError:
            value = None
        if json_text.is_object(value):
            return command, value
    return None, {}


class _Collector:
    def __init__(self) -> None:
        self.found: list[Exchange] = []
        self.strays: list[Stray] = []
        self._streams: dict[tuple[int, str], LmtpExchange] = {}
        self._refused: dict[tuple[int, str], list[LmtpExchange]] = {}
        self._latest: dict[int, LmtpExchange] = {}
        self._http: dict[int, list[HttpExchange]] = {}

    def take(self, event: Event) -> None:
        if isinstance(event, Frame):
            if event.direction == ">":
                self._asked(event)
            else:
                self._answered(event)
        elif isinstance(event, Request):
            value = event.body.value if isinstance(event.body, Parsed) else {}
            http = HttpExchange(event.time, event.connection, event, value if isinstance(value, dict) else {})
            self._http.setdefault(event.connection, []).append(http)
            self.found.append(http)
        elif isinstance(event, Response | Piece | Done) and self._http.get(event.connection):
            self._responded(event, self._http[event.connection])

    def _asked(self, frame: Frame) -> None:
        text = frame.wire()
        command, payload = read_frame(text)
        if command == "CANCEL":
            return
        exchange = LmtpExchange(frame.time, frame.connection, command, payload, text)
        self.found.append(exchange)
        self._latest[frame.connection] = exchange
        if "stream_id" in payload:
            self._name(exchange, (frame.connection, _key(payload["stream_id"])))

    def _name(self, exchange: LmtpExchange, key: tuple[int, str]) -> None:
        """Give the id to the exchange, unless a stream that runs has it: then the request is refused (LMTP, STR-5)."""
        holder = self._streams.get(key)
        begins = ("GENERATE", "SCORE")
        if holder is None or holder.ended or holder.command not in begins or exchange.command not in begins:
            self._streams[key] = exchange
        else:
            self._refused.setdefault(key, []).append(exchange)

    def _answered(self, frame: Frame) -> None:
        wire = frame.wire()
        command, value = _answer(wire)
        entries = value if isinstance(value, list) else [value]
        shares: dict[int, tuple[LmtpExchange, list[Mapping[str, object]]]] = {}
        for entry in entries:
            exchange = self._owner(frame.connection, command, entry)
            if exchange is not None and isinstance(entry, dict):
                shares.setdefault(id(exchange), (exchange, []))[1].append(entry)
            elif isinstance(entry, dict):
                self.strays.append(Stray(frame.connection, entry.get("stream_id"), entry))
        style: Style = frame.content.style if isinstance(frame.content, Parsed) else "py"
        for exchange, own in shares.values():
            exact = wire if len(own) == len(entries) and isinstance(wire, str) else None
            offset = frame.time - exchange.time
            exchange.replies.append(Reply(offset, command, tuple(own), not isinstance(value, list), style, exact))

    def _owner(self, connection: int, command: str, entry: object) -> LmtpExchange | None:
        stream_id = entry.get("stream_id") if isinstance(entry, dict) else None
        if stream_id is None:
            return self._latest.get(connection)
        key = connection, _key(stream_id)
        if command == "MSG" and isinstance(entry, dict) and entry.get("error") is not None and self._refused.get(key):
            return self._refused[key].pop(0)
        return self._streams.get(key)

    def _responded(self, event: Response | Piece | Done, waiting: list[HttpExchange]) -> None:
        exchange = waiting[0]
        if isinstance(event, Response):
            exchange.response = event
        elif isinstance(event, Piece):
            exchange.streamed = exchange.streamed or event.kind == "sse"
            exchange.parts.append(Part(event.time - exchange.time, event.wire()))
        else:
            exchange.complete = True
            waiting.pop(0)


def _key(stream_id: object) -> str:
    return json.dumps(stream_id, sort_keys=True)


def _same(one: object, other: object) -> bool:
    return _key(one) == _key(other)
