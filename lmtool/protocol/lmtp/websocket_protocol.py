"""How uvicorn carries LMTP: its WebSocket protocol without the memory that it keeps, pings, stalls, and options."""

from __future__ import annotations

import asyncio
import logging
import struct
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import SecurityError

from lmtool.net.access.bounded_reads import READ_BYTES, BoundedReads
from lmtool.net.access.stall import STALL_SECONDS, StallTimer
from lmtool.protocol.lmtp.config import ServerConfig
from lmtool.protocol.lmtp.keepalive import Keepalive, PingLimits, offer
from lmtool.protocol.lmtp.peer_user import tell_user

if TYPE_CHECKING:
    from asyncio import BaseTransport, Task

    from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
    from websockets.frames import Frame
    from websockets.http11 import Request


class _ServerLog(logging.LoggerAdapter[logging.Logger]):
    """uvicorn's log without the exceptions that are a client's doing: a stranger could fill it."""

    @property
    def level(self) -> int:
        """That of the log."""
        return self.logger.level

    def exception(self, msg: object, *arguments: object, **options: Any) -> None:  # noqa: ANN401  # as of the log
        """Log an exception of the server."""
        if not isinstance(sys.exc_info()[1], UnicodeDecodeError):
            super().exception(msg, *arguments, **options)


_FAILED = 1011
"""The close code of a connection whose pings nobody answers."""
LEAST_READ_BYTES = 2048
MAX_FRAGMENTS = 16 * 1024
"""Of a message, empty ones too: 256 bytes each of the longest frame."""
_TOO_BIG = 1009
_UNREADABLE = b"HTTP/1.1 %b\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class WebSocketProtocol(BoundedReads, WebSocketsSansIOProtocol):
    """A connection whose last frame is free while it waits for the next one, and whose silent or stalled peer is found.

    The parser of `websockets` holds a frame until it has read another: 4 MiB for each client that says nothing more.
    """

    def __init__(
        self,
        *arguments: Any,  # noqa: ANN401  # uvicorn's
        pings: PingLimits | None = None,
        stall_limit: float = STALL_SECONDS,
        **options: Any,  # noqa: ANN401
    ) -> None:
        """pings: limits for a client that knows the extensions; others have more time.

        stall_limit: seconds for which a client may take nothing of what was sent; 0: any number.
        """
        super().__init__(*arguments, **options)
        self.logger: Any = _ServerLog(self.logger)
        self._pings = pings or PingLimits()
        self._stall_limit = stall_limit
        self._keepalive = Keepalive(self.loop, self._send_ping, self._give_up, deaf=self._deaf)
        self._count = 0
        """Pings that were sent: the payload of the last one."""
        self._fragments = 0
        """Of the message that is being read."""
        self._pong = b""
        """The answer to the last ping, until it is sent."""
        self._given_up = False
        self._drained = False
        """True if the client has taken bytes since the last ping, so many that more may be written."""

    @property
    def read_bytes(self) -> int:
        """As many as came of an unfinished frame: 340 small ones take 2 ms to parse, a part of a large one no time."""
        return min(READ_BYTES, max(LEAST_READ_BYTES, len(self.conn.reader.buffer)))

    def connection_made(self, transport: BaseTransport) -> None:
        """Begin to ping; nothing is sent before the handshake is over."""
        super().connection_made(transport)
        self._stall = StallTimer(self.transport, self._stall_limit)
        self._keepalive.start()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop pinging, and waiting for the client."""
        self._keepalive.stop()
        self._stall.stop()
        super().connection_lost(exc)
        if hasattr(self, "scope"):
            self.scope["extensions"].clear()
        del self._keepalive  # cycles of references, which stay until a collection

    def data_received(self, data: bytes) -> None:
        """Note that the client lives."""
        self._keepalive.alive()
        super().data_received(data)
        self._answer_ping()
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            # uvicorn says nothing to a handshake that websockets does not read: a body, 129 headers, or one of 9 kB.
            problem = self.conn.handshake_exc.__cause__ or self.conn.handshake_exc
            large = isinstance(problem, SecurityError)
            self.transport.write(
                _UNREADABLE % (b"431 Request Header Fields Too Large" if large else b"400 Bad Request")
            )
            self.transport.close()

    def pause_writing(self) -> None:
        """Wait for the client, not for ever."""
        super().pause_writing()
        self._stall.start()

    def resume_writing(self) -> None:
        """Note that the client reads."""
        self._drained = True
        self._stall.stop()
        super().resume_writing()
        self._answer_ping()

    def on_task_complete(self, task: Task[None]) -> None:
        """Give the client time to take the last bytes: nothing more is written."""
        super().on_task_complete(task)
        self._stall.start()

    def handle_connect(self, event: Request) -> None:
        """Let the application say that the client knows the extensions; tell it which user has connected."""
        super().handle_connect(event)
        if hasattr(self, "scope"):
            offer(self.scope, self._expect_pongs)
            tell_user(self.scope, self.transport)

    def handle_text(self, event: Frame) -> None:
        """Pass on a text."""
        super().handle_text(event)
        event.data = b""

    def handle_bytes(self, event: Frame) -> None:
        """Pass on bytes."""
        super().handle_bytes(event)
        event.data = b""

    def handle_cont(self, event: Frame) -> None:
        """Keep a part of a message, or pass the whole message on."""
        self._fragments = 0 if event.fin else self._fragments + 1
        if self._given_up:
            return
        if self._fragments > MAX_FRAGMENTS:
            self._fail(_TOO_BIG, f"a message has at most {MAX_FRAGMENTS} fragments")
            return
        super().handle_cont(event)
        event.data = b""

    def handle_ping(self) -> None:
        """Keep the answer to the last ping; those before it need none (RFC 6455, 5.5.3)."""
        self._pong = b"".join(self.conn.data_to_send()[-1:])

    def _answer_ping(self) -> None:
        if self._pong and self.writable.is_set() and not self.close_sent and not self.transport.is_closing():
            pong, self._pong = self._pong, b""
            self.transport.write(pong)

    async def receive(self) -> ASGIReceiveEvent:
        """Take the next event, at most one in a turn of the event loop: others have theirs between two small ones."""
        await asyncio.sleep(0)
        return await super().receive()

    def handle_parser_exception(self) -> None:
        """Close a connection whose client breaks RFC 6455; what the application still sends finds nobody."""
        self._given_up = True
        super().handle_parser_exception()

    async def send(self, event: ASGISendEvent) -> None:
        """Send, unless the client was given up: the application has not been told yet."""
        if self._given_up:
            raise ClientDisconnected
        await super().send(event)

    def _expect_pongs(self) -> None:
        # It may be lost before the application hears of it; its pings would keep it in memory.
        if not self.disconnected:
            self._keepalive.start(self._pings)

    def _send_ping(self) -> None:
        self._drained = False
        if self.handshake_complete and not self.close_sent and not self.transport.is_closing():
            self._count += 1
            self.conn.send_ping(struct.pack("!Q", self._count))
            self.transport.write(b"".join(self.conn.data_to_send()))

    def _deaf(self) -> bool:
        """True if nothing is read because the application is busy, and not because the client takes no answers."""
        return self.read_paused and (self.writable.is_set() or self._drained)

    def _give_up(self, reason: str) -> None:
        if not self.close_sent and not self.transport.is_closing():
            self._fail(_FAILED, reason)

    def _fail(self, code: int, reason: str) -> None:
        """Close, and expect nothing more of the client."""
        self.conn.fail(code, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = self._given_up = True
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # it would wait for ever to be taken
        else:
            self.transport.close()


def uvicorn_options(config: ServerConfig | None = None) -> dict[str, Any]:
    """Keyword arguments for `uvicorn.Config` that make it carry LMTP as SPEC.md says.

    websockets' sans-IO core with its back-pressure, see `WebSocketProtocol`; deflate off, because it costs more time
    than it saves; the frame limit; our own pings in place of uvicorn's; the limit on stalls.
    """
    config = config or ServerConfig()
    return {
        "ws": partial(WebSocketProtocol, pings=PingLimits(config.ping_interval), stall_limit=config.stall_limit),
        "ws_max_size": config.max_frame_bytes,
        "ws_per_message_deflate": False,
        "ws_ping_interval": None,
        "ws_ping_timeout": None,
    }
