"""How uvicorn carries LMTP: its WebSocket protocol, without the memory that it keeps, and its options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from lmtool.lmtp.config import ServerConfig

if TYPE_CHECKING:
    from websockets.frames import Frame


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """A connection whose last frame is free while it waits for the next one.

    The parser of `websockets` holds a frame until it has read another: 4 MiB for each client that says nothing more.
    """

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
        super().handle_cont(event)
        event.data = b""


def uvicorn_options(config: ServerConfig | None = None) -> dict[str, Any]:
    """Keyword arguments for `uvicorn.Config` that make it carry LMTP as SPEC.md says.

    websockets' sans-IO core with its back-pressure, see `WebSocketProtocol`; deflate off, because it costs more time
    than it saves; the frame limit; pings slow enough for a client that computes a mask in its event loop.
    """
    config = config or ServerConfig()
    return {
        "ws": WebSocketProtocol,
        "ws_max_size": config.max_frame_bytes,
        "ws_per_message_deflate": False,
        "ws_ping_interval": config.ping_interval,
        "ws_ping_timeout": config.ping_timeout,
    }
