"""How uvicorn reads HTTP: with httptools, in a third of h11's CPU time, and with the limits that it lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lmtool.access.stall import STALL_SECONDS, StallTimer

if TYPE_CHECKING:
    import asyncio

MAX_HEAD_BYTES = 64 * 1024
"""Of a request line and its headers: as many as h11 reads."""


def http_protocol(stall_limit: float = STALL_SECONDS) -> type[asyncio.Protocol] | str:
    """What `uvicorn.Config` takes as `http`; h11 where httptools is not installed.

    stall_limit: seconds for which a client may take nothing of its answer; 0: any number.
    """
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        return "h11"
    protocol: type[asyncio.Protocol] = _with_limit_on_stalls(_with_limit_on_heads(HttpToolsProtocol), stall_limit)
    return protocol


def _with_limit_on_heads(base: Any) -> Any:  # noqa: ANN401  # uvicorn's class is there only where httptools is
    class HttpProtocol(base):  # type: ignore[misc]
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


def _with_limit_on_stalls(base: Any, stall_limit: float) -> Any:  # noqa: ANN401
    class HttpProtocol(base):  # type: ignore[misc]
        """Cuts a connection whose client takes nothing of its answer."""

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._stall = StallTimer(transport, stall_limit)

        def connection_lost(self, exc: Exception | None) -> None:
            self._stall.stop()
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._stall.start()

        def resume_writing(self) -> None:
            self._stall.stop()
            super().resume_writing()

        def on_headers_complete(self) -> None:
            if not self.flow.write_paused:
                self._stall.stop()
            super().on_headers_complete()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.cycle.response_complete:  # else another request of the client is being answered
                self._stall.start()

    return HttpProtocol
