"""Events of one recorded connection: takes bytes, HTTP parts or frames of both directions, gives trace events."""

from __future__ import annotations

import zlib
from collections import deque
from typing import TYPE_CHECKING, Literal

from lmtool.core.errors import LmtoolError
from lmtool.net.access.credentials import LEFT_OUT, secrets_in, secrets_of, without_credentials, without_query_keys
from lmtool.protocol.providers.answer_reader import parts_of
from lmtool.protocol.providers.body_parts import form_of
from lmtool.trace.events import (
    Close,
    Done,
    Drop,
    Event,
    Frame,
    JsonText,
    Message,
    Open,
    Piece,
    Remark,
    Request,
    Response,
    parse_body,
    parse_frame,
    parse_sse_event,
)
from lmtool.trace.http_stream import Data, Head, HttpStream, Last, Opaque, is_session, is_websocket_handshake
from lmtool.trace.websocket_stream import CloseFrame, TooLarge, Unreadable, WebSocketStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from lmtool.trace.events import Direction, Style
    from lmtool.trace.http_stream import Part

LARGEST_PIECE = 2**20
"""Bytes of a body after which it is recorded in pieces."""
LARGEST_REQUEST = 2**24
"""Bytes of a request's body that are recorded."""
LARGEST_RESPONSE = 2**28
"""Bytes of a response's body that are recorded, after decompression."""
MOST_SECRETS = 256
"""Keys of one connection that are searched for in its answers."""
_ABNORMAL_CLOSURE = 1006
_NO_STATUS = 1005


class FrameTap:
    """Makes trace events of WebSocket messages in our own client or server, without a proxy. Never raises."""

    def __init__(self, emit: Callable[[int, Iterable[Event]], None], clock: Callable[[], float]) -> None:
        """emit: takes a connection's number and its events; clock: seconds since the recording began."""
        self._emit = emit
        self._clock = clock

    def opened(self, connection: int, agent: str) -> None:
        """Record the start of a connection."""
        facts = {"peer": "client", **({"agent": agent} if agent else {})}
        self._emit(connection, [Open(self._clock(), connection, facts)])

    def frame(self, connection: int, direction: Literal[">", "<"], frame: str | bytes) -> None:
        """Record a frame; `>`: client to server."""
        self._emit(connection, [Frame(self._clock(), direction, connection, parse_frame(frame, "msgspec"))])

    def ended(self, connection: int, by: Literal["client", "server"], code: int | None) -> None:
        """Record the end of a connection."""
        now = self._clock()
        if code == _ABNORMAL_CLOSURE:
            self._emit(connection, [Drop(now, connection, {"by": by})])
        else:
            self._emit(connection, [Close(now, connection, by, None if code == _NO_STATUS else code)])


class ConnectionTap:
    """Makes trace events of one connection that speaks HTTP/1.1 and, after an upgrade, WebSocket. Never raises.

    A proxy passes client bytes to `requests.feed` until `upgraded`, and the resulting parts to `request_parts`; all
    other bytes it forwards first and passes in afterwards. Where HTTP is parsed elsewhere, parts of both directions are
    passed in.
    """

    def __init__(self, connection: int, style: Style) -> None:
        """connection: number in the trace; style: tried first when JSON is parsed."""
        self.requests = HttpStream(responses=False)
        """Parser of the client's bytes."""
        self.upgraded = False
        """True once the connection carries WebSocket frames."""
        self.recordable = True
        """False once the bytes could not be parsed."""
        self._responses = HttpStream(responses=True)
        self._number = connection
        self._style: Style = style
        self._opened = False
        self._pending: deque[_RequestRecorder] = deque()
        self._answer: ResponseRecorder | None = None
        self._frames: dict[Direction, WebSocketStream] = {}
        self._close: tuple[str, CloseFrame] | None = None
        self._is_session = False
        """True if the frames are Evergreen messages."""
        self.secrets: set[bytes] = set()
        """Keys seen in requests; bodies are recorded without them."""

    @property
    def idle(self) -> bool:
        """True if every request has been answered completely."""
        return not self._pending and self._answer is None

    def request_parts(self, time: float, parts: Iterable[Part]) -> Iterator[Event]:
        """Events of HTTP parts from the client."""
        for part in parts:
            if isinstance(part, Head):
                yield from self._begin_request(time, part)
            elif isinstance(part, Data) and self._pending:
                self._pending[-1].add(part.body)
            elif isinstance(part, Last) and self._pending:
                self._pending[-1].complete = True
                yield from self._pending[-1].emit(time, self._number, self._style)
            elif isinstance(part, Opaque) and self.upgraded:
                yield from self.frames(time, ">", part.raw)
        yield from self._unfollowed(time, self.requests, "client")

    def _begin_request(self, time: float, head: Head) -> Iterator[Event]:
        secrets = secrets_of(head.headers, head.start[1])
        self.secrets = secrets if len(self.secrets) > MOST_SECRETS else self.secrets | secrets
        self._pending.append(_RequestRecorder(head, self._without_secrets, self.secrets.update))
        self._responses.methods.append(head.start[0])
        if not self._opened:
            self._opened = True
            agent = head.get("user-agent")
            path = without_query_keys(head.start[1])
            facts = {"peer": "client", "path": path, **({"agent": agent} if agent else {})}
            if is_session(head):
                self._is_session, facts["protocol"] = True, "evergreen"
            yield Open(time, self._number, facts)

    def response_bytes(self, time: float, data: bytes) -> Iterator[Event]:
        """Events of bytes from the server."""
        if self.upgraded:
            yield from self.frames(time, "<", data)
            return
        yield from self.response_parts(time, self._responses.feed(data))
        yield from self._unfollowed(time, self._responses, "server")

    def response_parts(self, time: float, parts: Iterable[Part]) -> Iterator[Event]:
        """Events of HTTP parts from the server."""
        for part in parts:
            if isinstance(part, Head):
                yield from self._begin_response(time, part)
            elif isinstance(part, Data) and self._answer is not None:
                yield from self._answer.add(time, part.body)
            elif isinstance(part, Last) and self._answer is not None:
                yield from self._answer.finish(time)
                self._answer = None
            elif isinstance(part, Opaque) and self.upgraded:
                yield from self.frames(time, "<", part.raw)

    def _begin_response(self, time: float, head: Head) -> Iterator[Event]:
        status = int(head.start[1]) if head.start[1].isdigit() else 0
        if 100 <= status < 200 and status != 101:
            return
        request = self._pending.popleft() if self._pending else None
        if status == 101:
            self._upgrade(head)
            return
        if request is not None:
            yield from request.emit(time, self._number, self._style, even_upgrade=True)
            if request.upgrade:
                self.requests.resume()
            if not request.complete:
                yield Remark(time, "note", self._number, "answered before the request was complete")
        yield Response(time, self._number, status, head.start[2], _headers_by_name(head, self._without_secrets))
        self._answer = ResponseRecorder(head, self._number, self._style, self._without_secrets)

    def _without_secrets(self, data: bytes) -> bytes:
        """Bytes with `***` in place of keys: some servers repeat a key that they refuse."""
        for secret in self.secrets:
            data = data.replace(secret, LEFT_OUT.encode())
        return data

    def _upgrade(self, head: Head) -> None:
        self.upgraded = True
        extension = head.get("sec-websocket-extensions").lower()
        deflate = "permessage-deflate" in extension
        directions: tuple[tuple[Direction, str], ...] = ((">", "client"), ("<", "server"))
        for direction, end in directions:
            takeover = f"{end}_no_context_takeover" not in extension
            self._frames[direction] = WebSocketStream(deflate=deflate, takeover=takeover)

    def frames(self, time: float, direction: Direction, data: bytes) -> Iterator[Event]:
        """Events of WebSocket bytes, once `upgraded`."""
        for item in self._frames[direction].feed(data):
            if isinstance(item, str | bytes):
                yield self._message(time, direction, item)
            elif isinstance(item, CloseFrame):
                self._close = self._close or ("client" if direction == ">" else "server", item)
            elif isinstance(item, TooLarge):
                yield Remark(time, "note", self._number, f"{direction} {item.bytes} bytes were not recorded")
            elif isinstance(item, Unreadable):
                yield Remark(time, "note", self._number, f"{direction} is no longer recorded: {item.reason}")

    def _message(self, time: float, direction: Direction, frame: str | bytes) -> Event:
        if isinstance(frame, str) and any(secret.decode("latin-1") in frame for secret in self.secrets):
            frame = self._without_secrets(frame.encode()).decode()
        value = session_message(frame) if self._is_session else None
        if value is not None:
            return Message(time, direction, self._number, value)
        return Frame(time, direction, self._number, parse_frame(frame, self._style))

    def end(self, time: float, by: str) -> Iterator[Event]:
        """Events at the end of the connection; by: end that closed first (`client`, `server` or `proxy`)."""
        whole = self._responses.between
        for part in self._responses.end():
            whole = whole or isinstance(part, Last)
            yield from self.response_parts(time, [part])
        if not self._opened:
            return
        if self._close is not None:
            closer, frame = self._close
            yield Close(time, self._number, closer, frame.code, frame.reason)
        elif self.upgraded or not self.idle or not whole:
            yield Drop(time, self._number, {"by": by})
        else:
            yield Close(time, self._number, by)

    def _unfollowed(self, time: float, stream: HttpStream, sender: str) -> Iterator[Event]:
        if stream.broken and self.recordable:
            self.recordable = False
            yield Remark(time, "note", self._number, f"no longer recorded: the {sender} sent {stream.broken}")


def session_message(frame: str | bytes) -> Mapping[str, object] | None:
    """Evergreen message in a frame, as proto-JSON; None if it is not one, or without protobuf."""
    try:
        from lmtool.protocol.evergreen.codec import decode, json_value
    except ImportError:
        return None
    try:
        return json_value(decode(frame))
    except LmtoolError:
        return None


class _RequestRecorder:
    """Collects one request until it is complete."""

    def __init__(
        self, head: Head, clean: Callable[[bytes], bytes] = bytes, learn: Callable[[set[bytes]], object] = set
    ) -> None:
        """clean: removes secrets from bytes; learn: takes secrets found in the body."""
        self.upgrade = is_websocket_handshake(head)
        self._clean = clean
        self._learn = learn
        self.complete = False
        """True once the last byte has arrived."""
        self._head = head
        self._body = bytearray()
        self._size = 0
        self._emitted = False

    def add(self, data: bytes) -> None:
        self._size += len(data)
        if self._size <= LARGEST_REQUEST:
            self._body += data

    def emit(self, time: float, number: int, style: Style, *, even_upgrade: bool = False) -> Iterator[Event]:
        """Event of the request, once; of a WebSocket handshake only if it was refused."""
        if self._emitted or (self.upgrade and not even_upgrade):
            return
        self._emitted = True
        method, path, _ = self._head.start
        body = parse_body(self._clean(bytes(self._body)), style) if self._body else None
        if isinstance(body, JsonText) and (secrets := secrets_in(body.value)):
            self._learn(secrets)
            body = parse_body(self._clean(bytes(self._body)), style)
        yield Request(time, number, method, without_query_keys(path), _headers_by_name(self._head, self._clean), body)
        if self._size > LARGEST_REQUEST:
            yield Remark(time, "note", number, f"> {self._size - len(self._body)} bytes of this body were not recorded")


class ResponseRecorder:
    """Events of a response's body: one per server-sent event or JSON line, other bodies in large pieces."""

    def __init__(self, head: Head, number: int, style: Style, clean: Callable[[bytes], bytes] = bytes) -> None:
        """head: of the response; number: of the connection; clean: removes secrets from bytes."""
        self._form = form_of(head.get("content-type"))
        self._parts = parts_of(self._form)
        packed = head.get("content-encoding").lower() in ("gzip", "x-gzip", "deflate")
        self._unpack = zlib.decompressobj(47) if packed else None
        self._number = number
        self._style: Style = style
        self._clean = clean
        self._left_out = -LARGEST_RESPONSE
        """Bytes that were not recorded; negative: bytes that may still be recorded."""

    def add(self, time: float, data: bytes) -> Iterator[Event]:
        """Events of more body bytes."""
        data = self._unpacked(data)
        self._left_out += len(data)
        if self._left_out > 0:
            data = data[: max(0, len(data) - self._left_out)]
        for block in self._parts.split(data):
            yield self._piece(time, block)
        if self._parts.pending_bytes > LARGEST_PIECE:
            yield from self._rest(time)

    def finish(self, time: float) -> Iterator[Event]:
        """Events at the end of the body."""
        yield from self._rest(time)
        if self._left_out > 0:
            yield Remark(time, "note", self._number, f"< {self._left_out} bytes of this body were not recorded")
        yield Done(time, self._number)

    def _unpacked(self, data: bytes) -> bytes:
        if self._unpack is None or not data:
            return data
        try:
            return self._unpack.decompress(data, LARGEST_PIECE * 64)
        except zlib.error:
            self._unpack = None  # not compressed as its header says: recorded unchanged from here on
            return data

    def _rest(self, time: float) -> Iterator[Event]:
        if rest := self._parts.take_rest():
            yield self._piece(time, rest)

    def _piece(self, time: float, data: bytes) -> Piece:
        data = self._clean(data)
        if self._form == "events":
            return Piece(time, "sse", self._number, parse_sse_event(data, self._style))
        return Piece(time, "body", self._number, parse_body(data, self._style))


def _headers_by_name(head: Head, clean: Callable[[bytes], bytes] = bytes) -> dict[str, str]:
    """Headers of a message without credentials; values of equal names are joined."""
    joined: dict[str, str] = {}
    for name, whole in without_credentials(head.headers):
        value = clean(whole.encode("latin-1", "replace")).decode("latin-1")
        joined[name] = f"{joined[name]}, {value}" if name in joined else value
    return joined
