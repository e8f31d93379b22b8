"""How uvicorn reads HTTP: with httptools, in a third of h11's CPU time, and with the limit on a head that it lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

MAX_HEAD_BYTES = 64 * 1024
"""Of a request line and its headers: as many as h11 reads."""


def http_protocol() -> type[asyncio.Protocol] | str:
    """What `uvicorn.Config` takes as `http`; h11 where httptools is not installed."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        return "h11"

    class HttpProtocol(HttpToolsProtocol):
        """Closes a connection whose request never gets to the end of its headers."""

        _in_head, _head_bytes, _completed = True, 0, False

        def data_received(self, data: bytes) -> None:
            in_head, self._completed = self._in_head, False
            super().data_received(data)
            # Behind the end of another request in the same bytes it is not known how many are of this head.
            same_head = in_head and self._in_head and not self._completed
            self._head_bytes = self._head_bytes + len(data) if same_head else 0
            if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response(f"The head of a request has at most {MAX_HEAD_BYTES} bytes.")

        def on_headers_complete(self) -> None:
            self._in_head = False
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            self._in_head = self._completed = True
            super().on_message_complete()

    return HttpProtocol
