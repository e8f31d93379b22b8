"""Recorded exchanges: each request of a trace with its replies and their times, and which request a reply answers."""

from __future__ import annotations

import json
import marshal
import zlib
from collections import defaultdict, deque
from dataclasses import dataclass, field
from importlib.util import find_spec
from io import BytesIO
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

from lmtool.core.errors import ResourceError
from lmtool.protocol.lmtp import frames
from lmtool.trace.events import Close, Done, Frame, JsonText, Message, Piece, Request, Response, Vocab, write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from lmtool.protocol.lmtp.frames import Entry, Key
    from lmtool.trace.events import Event, Style
    from lmtool.trace.sessions import SessionAction

T = TypeVar("T")

_BLOCK = 2**13
"""Bytes that are compressed together; fields repeat from record to record."""


class PackedList(Generic[T]):
    """Records in order, compressed; each iteration unpacks them again. For sequential access."""

    __slots__ = ("_blocks", "_count", "_latest", "_make")

    def __init__(self, make: Callable[..., T]) -> None:
        """make: creates a record from its fields."""
        self._make = make
        self._blocks: list[bytes] = []
        self._latest = bytearray()
        self._count = 0

    def append(self, *fields: Any) -> None:  # noqa: ANN401 - what `marshal` takes
        """Add a record with these fields: JSON values, bytes, and tuples of them."""
        self._latest += marshal.dumps(fields)
        self._count += 1
        if len(self._latest) >= _BLOCK:
            self._blocks.append(zlib.compress(self._latest, 1))
            self._latest = bytearray()

    def __len__(self) -> int:
        """Number of records."""
        return self._count

    def __iter__(self) -> Iterator[T]:
        """Unpack each record."""
        for block in (*self._blocks, None):
            data = self._latest if block is None else zlib.decompress(block)
            file = BytesIO(data)
            while file.tell() < len(data):
                yield self._make(*marshal.load(file))  # noqa: S302 - of `append`, never from outside

    def __getitem__(self, place: int) -> T:
        """Unpack one record by its index, from 0, at the cost of unpacking all before it. Raises `IndexError`."""
        for record in islice(self, place, None):
            return record
        raise IndexError(place)


_START_STREAMS = ("GENERATE", "SCORE")
ENDED_KEPT = 1000
"""Ended streams of a connection that are remembered; an answer for an older one counts as unannounced."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Entries of one LMTP frame that belong to one request."""

    offset: float
    """Seconds after the request."""
    command: str
    entries: tuple[Entry, ...]
    bare: bool
    """True if the payload was a single object, not a list."""
    style: Style
    exact: str | None = None
    """Text of the frame if all of it belongs to the request and its JSON has another style."""

    def wire(self, recorded_id: object, stream_id: object) -> str:
        """Frame for a request with this `stream_id`; exactly as recorded if the ids are equal."""
        as_recorded = frames.stream_key(recorded_id) == frames.stream_key(stream_id)
        if self.exact is not None and as_recorded:
            return self.exact
        entries = list(self.entries)
        if not as_recorded:
            entries = [{**e, "stream_id": stream_id} if "stream_id" in e else e for e in entries]
        payload: object = entries[0] if self.bare else entries
        try:
            return f"{self.command} {write_json(payload, self.style)}"
        except ValueError:  # LMQL's server writes -Infinity: so does the answer
            return f"{self.command} {json.dumps(payload)}"

    @property
    def last(self) -> bool:
        """True if it ends a stream or request."""
        return self.command == "MSG" or any(e.get("finish_reason") or e.get("error") for e in self.entries)


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of an HTTP response's body."""

    offset: float
    data: bytes


@dataclass(slots=True)
class LmtpExchange:
    """A request on a WebSocket and its replies."""

    protocol: ClassVar[Literal["lmtp"]] = "lmtp"
    time: float
    connection: int
    command: str | None
    """None for a frame that is not a command and a JSON object."""
    payload: Mapping[str, object]
    text: str | bytes
    """The frame as sent."""
    replies: PackedList[Reply] = field(default_factory=lambda: PackedList(Reply))

    @property
    def kind(self) -> str:
        """The command; empty for a frame that is no request."""
        return self.command or ""

    @property
    def name(self) -> str:
        """Connection and stream id, such as `1/3`."""
        return f"{self.connection}/{self.stream_id}"

    @property
    def stream_id(self) -> object:
        """Stream id as recorded; None if there is none."""
        return self.payload.get("stream_id")

    @property
    def tokens(self) -> list[Entry]:
        """Entries with a token."""
        return [entry for reply in self.replies for entry in reply.entries if "token" in entry]

    @property
    def ended(self) -> bool:
        """True if its last answer has arrived."""
        return any(frames.ends(reply.command, entry) for reply in self.replies for entry in reply.entries)


@dataclass(slots=True)
class HttpExchange:
    """An HTTP request and its response."""

    protocol: ClassVar[Literal["http"]] = "http"
    time: float
    connection: int
    request: Request
    payload: Mapping[str, object]
    response: Response | None = None
    parts: PackedList[Part] = field(default_factory=lambda: PackedList(Part))
    streamed: bool = False
    """True if the body was server-sent events."""
    complete: bool = False

    @property
    def kind(self) -> str:
        """Method and path."""
        return f"{self.request.method} {self.request.path}"

    @property
    def name(self) -> str:
        """The connection."""
        return str(self.connection)

    @property
    def text(self) -> bytes:
        """The request's body."""
        return self.request.wire_body()


Exchange: TypeAlias = LmtpExchange | HttpExchange
RecordedRequest: TypeAlias = "Exchange | SessionAction"


@dataclass(frozen=True, slots=True)
class Recording:
    """Requests of a trace with their answers, in little memory."""

    exchanges: list[Exchange]
    session_events: list[Event]
    """Messages of Evergreen sessions, and ends of connections."""
    words: Mapping[int, str | bytes]
    """Text of token ids."""

    @classmethod
    def of(cls, events: Iterable[Event]) -> Recording:
        """Read a trace in one pass. Events must hold no references to blobs."""
        collector = Collector()
        session_events: list[Event] = []
        words: dict[int, str | bytes] = {}
        for event in events:
            collector.take(event)
            if isinstance(event, Vocab):
                words |= event.tokens
            elif isinstance(event, Message | Close):
                session_events.append(event)
        return cls(collector.exchanges, session_events, words)

    @property
    def requests(self) -> list[RecordedRequest]:
        """Exchanges, and actions of Evergreen sessions. Raises `ResourceError` without protobuf."""
        return [*self.exchanges, *recorded_actions(self.session_events)]


def recorded_requests(events: Iterable[Event]) -> list[RecordedRequest]:
    """All exchanges and Evergreen actions. Raises `ResourceError` without protobuf."""
    return Recording.of(events).requests


def recorded_actions(events: Sequence[Event]) -> list[SessionAction]:
    """Actions of Evergreen sessions. Raises `ResourceError` if there are any and protobuf is missing."""
    if not any(isinstance(event, Message) for event in events):
        return []
    if find_spec("google") is None:
        raise ResourceError("reading Evergreen sessions needs protobuf", "install it:  pip install 'lmtool[serve]'")
    from lmtool.trace.sessions import session_actions

    return session_actions(events)


def exchanges(events: Iterable[Event]) -> list[Exchange]:
    """All exchanges of a trace in order of their requests. Events must hold no references to blobs."""
    return collect(events)[0]


def collect(events: Iterable[Event]) -> tuple[list[Exchange], list[tuple[int, Entry]]]:
    """All exchanges of a trace, and (connection, entry) of answers to streams that no request started."""
    collector = Collector()
    for event in events:
        collector.take(event)
    return collector.exchanges, collector.unmatched


def read_request(frame: str | bytes) -> tuple[str | None, Mapping[str, object]]:
    """Command and payload of a client's frame; None and nothing if it is not a command and a JSON object."""
    command, value, _ = frames.parse(frame)
    return (command, value) if isinstance(value, dict) else (None, {})


class RequestTable(Generic[T]):
    """Requests of one connection by stream id; finds the request that an entry belongs to (LMTP, STR-2, STR-5, ERR-6).

    An answer for an id belongs to its stream even after the stream's end, until another request uses the id or
    `ENDED_KEPT` other streams have ended.
    """

    def __init__(self) -> None:
        self.holders: dict[Key, T] = {}
        """Current or latest stream of each id."""
        self._ended: dict[Key, None] = {}
        """Ids whose stream has ended, oldest first."""
        self._queued: dict[Key, deque[T]] = {}
        """Requests with the id of a running stream: refused, or started after it."""
        self._questions: dict[Key, deque[T]] = {}
        """Requests that start no stream, such as MODEL_INFO."""
        self._answered_ids: set[Key] = set()
        """Ids whose questions have all been answered; the last question is kept for surplus answers."""

    @property
    def any_queued(self) -> bool:
        """True if an id may pass to another request when its stream ends."""
        return bool(self._queued)

    def add(self, command: str | None, key: Key, request: T) -> None:
        """Add a request with this id."""
        if command not in _START_STREAMS:
            if key in self._answered_ids:
                self._answered_ids.discard(key)
                del self._questions[key]
            self._questions.setdefault(key, deque()).append(request)
        elif key not in self.holders or key in self._ended:
            self._ended.pop(key, None)
            self.holders[key] = request
        else:
            self._queued.setdefault(key, deque()).append(request)

    def owner(self, command: str | None, entry: Entry) -> T | None:
        """Request that an entry answers; None if there is none. Call once per entry, in order."""
        key = frames.stream_key(entry.get("stream_id"))
        questions = self._questions.get(key)
        if command == "MSG":
            failed = entry.get("error") is not None
            if failed and key in self._queued:
                return self._next(key)
            unanswered = questions is not None and key not in self._answered_ids
            if questions is not None and ((failed and unanswered) or (frames.ends("MSG", entry) and not failed)):
                return self._answer(key, questions)
        return self.holders.get(key, questions[0] if questions else None)

    def _answer(self, key: Key, questions: deque[T]) -> T:
        """The oldest of these questions, which is now answered."""
        if len(questions) > 1:
            return questions.popleft()
        self._answered_ids.add(key)
        return questions[0]

    def _next(self, key: Key) -> T:
        queued = self._queued[key]
        request = queued.popleft()
        if not queued:
            del self._queued[key]
        return request

    def end(self, key: Key) -> None:
        """End the stream with this id; the id becomes free, or passes to the next queued request."""
        if key in self._queued:
            self.holders[key] = self._next(key)
            return
        self._ended[key] = None
        if len(self._ended) > ENDED_KEPT:
            oldest = next(iter(self._ended))
            del self._ended[oldest], self.holders[oldest]

    def open_requests(self) -> list[T]:
        """Requests without an end."""
        left = [request for key, request in self.holders.items() if key not in self._ended]
        left += [request for queued in self._queued.values() for request in queued]
        return left + [q for key, several in self._questions.items() if key not in self._answered_ids for q in several]


class Collector:
    """Builds the exchanges of a trace; call `take` with each event, in order."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.unmatched: list[tuple[int, Entry]] = []
        self._tables: defaultdict[int, RequestTable[LmtpExchange]] = defaultdict(RequestTable)
        self._latest: dict[int, LmtpExchange] = {}
        self._http: defaultdict[int, deque[HttpExchange]] = defaultdict(deque)

    def take(self, event: Event) -> None:
        """Take an event."""
        if isinstance(event, Frame):
            if event.direction == ">":
                self._request(event)
            else:
                self._answer(event)
        elif isinstance(event, Request):
            value = event.body.value if isinstance(event.body, JsonText) else {}
            http = HttpExchange(event.time, event.connection, event, value if isinstance(value, dict) else {})
            self._http[event.connection].append(http)
            self.exchanges.append(http)
        elif isinstance(event, Response | Piece | Done) and self._http[event.connection]:
            self._respond(event, self._http[event.connection])

    def _request(self, frame: Frame) -> None:
        text = frame.wire()
        command, payload = read_request(text)
        if command == "CANCEL":
            return
        exchange = LmtpExchange(frame.time, frame.connection, command, payload, text)
        self.exchanges.append(exchange)
        self._latest[frame.connection] = exchange
        if "stream_id" in payload:
            self._tables[frame.connection].add(command, frames.stream_key(payload["stream_id"]), exchange)

    def _answer(self, frame: Frame) -> None:
        command, value, _ = frame.parse()
        entries = frames.entries_of(value)
        shares: dict[int, tuple[LmtpExchange, list[Entry]]] = {}
        for entry in entries:
            exchange = self._owner(frame.connection, command, entry)
            if exchange is None:
                self.unmatched.append((frame.connection, entry))
            else:
                shares.setdefault(id(exchange), (exchange, []))[1].append(entry)
        style: Style = frame.content.style if isinstance(frame.content, JsonText) else "py"
        size = len(value) if isinstance(value, list) else 1
        for exchange, own in shares.values():
            exact = frame.content if len(own) == size and isinstance(frame.content, str) else None
            offset = frame.time - exchange.time
            exchange.replies.append(offset, command or "", tuple(own), not isinstance(value, list), style, exact)

    def _owner(self, connection: int, command: str | None, entry: Entry) -> LmtpExchange | None:
        if entry.get("stream_id") is None:
            return self._latest.get(connection)
        table, key = self._tables[connection], frames.stream_key(entry["stream_id"])
        owner = table.owner(command, entry)
        if owner is not None and owner is table.holders.get(key) and frames.ends(command, entry):
            table.end(key)
        return owner

    def _respond(self, event: Response | Piece | Done, waiting: deque[HttpExchange]) -> None:
        exchange = waiting[0]
        if isinstance(event, Response):
            exchange.response = event
        elif isinstance(event, Piece):
            exchange.streamed = exchange.streamed or event.kind == "sse"
            exchange.parts.append(event.time - exchange.time, event.wire())
        else:
            exchange.complete = True
            waiting.popleft()
