"""uvicorn's WebSocket protocol, which keeps nothing of a message once it has been handed on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

if TYPE_CHECKING:
    from websockets.frames import Frame


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """A connection whose last frame is free while it waits for the next one.

    The parser of `websockets` holds a frame until it has read another: 4 MiB for each client that says nothing more.
    """

    def handle_text(self, event: Frame) -> None:
        """Hand a text on."""
        super().handle_text(event)
        event.data = b""

    def handle_bytes(self, event: Frame) -> None:
        """Hand bytes on."""
        super().handle_bytes(event)
        event.data = b""

    def handle_cont(self, event: Frame) -> None:
        """Keep a part of a message, or hand the message on."""
        super().handle_cont(event)
        event.data = b""
