"""HTTP/1.1 connection for uvicorn, based on httptools (a third of h11's CPU time) with additional limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from lmtool.net.access.bounded_reads import BoundedReads
from lmtool.net.access.stall import STALL_SECONDS, ArrivalTimer, StallTimer

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

MAX_HEAD_BYTES = 64 * 1024
"""Most bytes of a request line and its headers, as in h11."""
MAX_HEADERS = 256
"""Most header lines of a request, trailers included."""
MAX_FRAMING_BYTES = 16 * 1024
"""Most bytes of trailers and of chunk framing beyond `FRAMING_PER_CHUNK` and twice the content (Go's net/http)."""
FRAMING_PER_CHUNK = 16
MAX_PIPELINED = 4
"""Most pipelined requests that wait for an answer before reading from the connection pauses."""
_PIECE = 2048
"""Bytes parsed at once; at most 113 of the shortest requests end in them."""
_LINGER_SECONDS = 5.0
"""Seconds to receive the rest of a request that was answered early; a reset would discard the answer."""


class HttpProtocol(BoundedReads, HttpToolsProtocol):
    """A connection that limits the memory, the parsing time and the idle time that its client can use.

    Trailers are dropped: uvicorn would add them to the headers after these were checked (RFC 9110, 6.5.1).
    """

    def __init__(self, *arguments: Any, stall_limit: float = STALL_SECONDS, **options: Any) -> None:  # noqa: ANN401
        """stall_limit: seconds for which a client may read nothing of its answer; 0: no limit."""
        super().__init__(*arguments, **options)
        self._stall_limit = stall_limit
        self._unread = b""
        """Unparsed bytes, while `MAX_PIPELINED` requests wait."""
        self._in_head, self._whole = True, True
        self._framing, self._fields = 0, 0
        """Bytes of the request other than content, and its header lines."""
        self._problem = ""
        """Reason for rejecting a request that httptools accepts."""

    flow: _Flow

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Start waiting for a request."""
        super().connection_made(transport)
        self.flow = _Flow(transport, self._may_read)
        self._stall = StallTimer(transport, self._stall_limit)
        self._arrival = ArrivalTimer(transport)
        self._arrival.start()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release timers and buffers."""
        self._end()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self) -> None:
        """Pass the connection to the WebSocket protocol."""
        self._end()
        super().handle_websocket_upgrade()
        self.flow.resume_reading()
        self.parser = None  # type: ignore[assignment]  # as in uvicorn when the connection ends

    def _end(self) -> None:
        """Stop the timers, and break reference cycles, which would keep memory until a rare garbage collection."""
        self._stall.stop()
        self._arrival.stop()
        self._unread = b""
        self.pipeline.clear()
        self.flow.may_read = lambda: True

    # Reading.

    def data_received(self, data: bytes) -> None:
        """Parse bytes, unless too many requests wait."""
        if not self.transport.is_closing():  # TLS may still deliver bytes
            self._arrival.count(len(data))
            self._unread += data
            self._parse()

    def _parse(self) -> None:
        while self._unread and len(self.pipeline) < MAX_PIPELINED and not self.transport.is_closing():
            piece, self._unread = self._unread[:_PIECE], self._unread[_PIECE:]
            self._framing += len(piece)
            self._feed(piece)
            if self._framing > (MAX_HEAD_BYTES if self._in_head else MAX_FRAMING_BYTES):
                self._problem = f"The head of a request has at most {MAX_HEAD_BYTES} bytes."
                if not self._in_head:
                    self._problem = f"Chunk extensions and trailers have at most {MAX_FRAMING_BYTES} bytes."
                self.send_400_response(self._problem)
        if self.transport.is_closing():
            self._unread = b""
        elif self._unread:
            self.flow.pause_reading()
        elif self.parser is not None and (self.cycle is None or len(self.cycle.body) <= HIGH_WATER_LIMIT):
            self.flow.resume_reading()

    def _feed(self, piece: bytes) -> None:
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade as upgrade:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
            else:
                self._ignore_upgrade(piece[upgrade.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Parse the head again without `Upgrade` (RFC 9110, 7.8); httptools treats what follows as another protocol.

        uvicorn would answer as if there were no body, and parse the rest of the body as the next request.
        """
        kept = [b"%b: %b\r\n" % header for header in self.headers if header[0] != b"upgrade"]
        if len(kept) == len(self.headers):  # CONNECT
            self.send_400_response("Invalid HTTP request received.")
            return
        start = b"%b %b HTTP/%b\r\n" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        self.parser = httptools.HttpRequestParser(self)
        self._unread = b"".join([start, *kept, b"\r\n", rest, self._unread])

    @property
    def _is_ignored_upgrade(self) -> bool:
        return self.parser.should_upgrade() and not self._should_upgrade()

    def _may_read(self) -> bool:
        return not self._unread and not self.pipeline

    def on_message_begin(self) -> None:
        """Reset the counts for a new request."""
        super().on_message_begin()
        self._in_head, self._whole, self._framing, self._fields = True, False, 0, 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header, its value stripped of white space (RFC 9112, 5.1); drop a trailer."""
        self._fields += 1
        if self._fields > MAX_HEADERS:
            self._problem = f"A request has at most {MAX_HEADERS} headers."
            raise ValueError(self._problem)  # httptools stops, uvicorn answers
        if self._in_head:
            super().on_header(name, value.strip(b" \t"))

    def on_headers_complete(self) -> None:
        """Start counting chunk framing."""
        if self._is_ignored_upgrade:
            return
        self._in_head, self._framing = False, 0
        if not self.flow.write_paused:
            self._stall.stop()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Process content, and allow for its chunk framing."""
        self._framing = max(0, self._framing - 3 * len(body) - FRAMING_PER_CHUNK)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Wait for the next request; stop the arrival timer while this one is being answered."""
        if self._is_ignored_upgrade:
            return
        self._in_head = self._whole = True
        super().on_message_complete()
        self._await_request()

    def send_400_response(self, msg: str) -> None:
        """Reject an invalid request; in the middle of an answer, only close the connection."""
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            super().send_400_response(self._problem or msg)
        else:
            self.transport.close()

    # Writing.

    def pause_writing(self) -> None:
        """Start the stall timer: the client is not reading."""
        super().pause_writing()
        self._stall.start()

    def resume_writing(self) -> None:
        """Stop the stall timer: the client is reading again."""
        self._stall.stop()
        super().resume_writing()

    def on_response_complete(self) -> None:
        """Parse bytes that arrived in the meantime."""
        super().on_response_complete()
        if self.cycle.response_complete:  # otherwise another request is being answered
            self._stall.start()
        if self._unread:
            self.loop.call_soon(self._parse)
        self._await_request()

    def _await_request(self) -> None:
        """Set the arrival timer for the rest of the current request, or for the next one."""
        answered = self.cycle is None or self.cycle.response_complete
        if self.transport.is_closing() or (self._whole and not answered):
            self._arrival.stop()
        elif self._in_head or not answered:
            self._arrival.start()
        else:
            self._arrival.start(_LINGER_SECONDS)


class _Flow(FlowControl):
    """Resumes reading only while no request waits; otherwise each answer would admit more than it frees."""

    def __init__(self, transport: asyncio.Transport, may_read: Callable[[], bool]) -> None:
        super().__init__(transport)
        self.may_read = may_read

    def resume_reading(self) -> None:
        if self.may_read():
            super().resume_reading()
