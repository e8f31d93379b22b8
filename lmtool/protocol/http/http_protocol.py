"""How uvicorn reads HTTP: with httptools, in a third of h11's CPU time, and with the limits that both lack."""

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
"""Of a request line and its headers: as many as h11 reads."""
MAX_HEADERS = 256
"""Header lines of a request, those of its trailer section too."""
MAX_FRAMING_BYTES = 16 * 1024
"""Sizes and extensions of chunks above `FRAMING_PER_CHUNK` and twice the content, and trailers (as Go's net/http)."""
FRAMING_PER_CHUNK = 16
MAX_PIPELINED = 4
"""Requests that wait until the one before them is answered; then nothing more is read of their connection."""
_PIECE = 2048
"""Bytes that are parsed at once: of the shortest requests, 113 end in them."""
_LINGER_SECONDS = 5.0
"""Time to send the rest of a request that is answered already: a reset would take the answer from the client."""


class HttpProtocol(BoundedReads, HttpToolsProtocol):
    """A connection whose client can neither fill memory, nor take much time at once, nor hold the connection for ever.

    Trailers are dropped: uvicorn would add them to the headers, after these were judged (RFC 9110, 6.5.1).
    """

    def __init__(self, *arguments: Any, stall_limit: float = STALL_SECONDS, **options: Any) -> None:  # noqa: ANN401
        """stall_limit: seconds for which a client may take nothing of its answer; 0: any number."""
        super().__init__(*arguments, **options)
        self._stall_limit = stall_limit
        self._unread = b""
        """Bytes that are not parsed yet, because enough requests wait."""
        self._in_head, self._whole = True, True
        self._framing, self._fields = 0, 0
        """Bytes of the request that are no content, and its header lines."""
        self._problem = ""
        """Why a request is refused, where httptools does not know it."""

    flow: _Flow

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Begin to wait for a request."""
        super().connection_made(transport)
        self.flow = _Flow(transport, self._may_read)
        self._stall = StallTimer(transport, self._stall_limit)
        self._arrival = ArrivalTimer(transport)
        self._arrival.start()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release what the connection holds."""
        self._end()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over."""
        self._end()
        super().handle_websocket_upgrade()
        self.flow.resume_reading()
        self.parser = None  # type: ignore[assignment]  # as uvicorn does where the connection ends

    def _end(self) -> None:
        """Stop the timers, and break the cycles of references: they stay until a collection, which is rare."""
        self._stall.stop()
        self._arrival.stop()
        self._unread = b""
        self.pipeline.clear()
        self.flow.may_read = _always

    # Reading.

    def data_received(self, data: bytes) -> None:
        """Parse bytes, unless enough requests wait."""
        if not self.transport.is_closing():  # under TLS bytes may still come
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
        """Read the head again without `Upgrade` (RFC 9110, 7.8): httptools reads what follows as another protocol.

        uvicorn answers as if there was no body, and takes a later part of the body for the next request.
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
        """Begin to count."""
        super().on_message_begin()
        self._in_head, self._whole, self._framing, self._fields = True, False, 0, 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header without the white space around its value (RFC 9112, 5.1); drop a trailer."""
        self._fields += 1
        if self._fields > MAX_HEADERS:
            self._problem = f"A request has at most {MAX_HEADERS} headers."
            raise ValueError(self._problem)  # httptools ends parsing, uvicorn answers
        if self._in_head:
            super().on_header(name, value.strip(b" \t"))

    def on_headers_complete(self) -> None:
        """Count what is no content from here on."""
        if self._is_ignored_upgrade:
            return
        self._in_head, self._framing = False, 0
        if not self.flow.write_paused:
            self._stall.stop()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take content, and discount a chunk's framing."""
        self._framing = max(0, self._framing - 3 * len(body) - FRAMING_PER_CHUNK)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Begin to wait for the next request, or for nothing while this one is answered."""
        if self._is_ignored_upgrade:
            return
        self._in_head = self._whole = True
        super().on_message_complete()
        self._await_request()

    def send_400_response(self, msg: str) -> None:
        """Refuse what cannot be read; between the parts of an answer that is not possible, and the end says enough."""
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            super().send_400_response(self._problem or msg)
        else:
            self.transport.close()

    # Writing.

    def pause_writing(self) -> None:
        """Wait for the client, not for ever."""
        super().pause_writing()
        self._stall.start()

    def resume_writing(self) -> None:
        """Note that the client reads."""
        self._stall.stop()
        super().resume_writing()

    def on_response_complete(self) -> None:
        """Go on with what the client has sent meanwhile."""
        super().on_response_complete()
        if self.cycle.response_complete:  # else another request of the client is being answered
            self._stall.start()
        if self._unread:
            self.loop.call_soon(self._parse)
        self._await_request()

    def _await_request(self) -> None:
        """Limit the time for the rest of the request that is being read, or for the next one."""
        answered = self.cycle is None or self.cycle.response_complete
        if self.transport.is_closing() or (self._whole and not answered):
            self._arrival.stop()
        elif self._in_head or not answered:
            self._arrival.start()
        else:
            self._arrival.start(_LINGER_SECONDS)


class _Flow(FlowControl):
    """Reads on only where no request waits: every answer would let in more than it takes away."""

    def __init__(self, transport: asyncio.Transport, may_read: Callable[[], bool]) -> None:
        super().__init__(transport)
        self.may_read = may_read

    def resume_reading(self) -> None:
        if self.may_read():
            super().resume_reading()


def _always() -> bool:
    return True
