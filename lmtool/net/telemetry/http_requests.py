"""HTTP requests around an ASGI application: their trace, their streams, and one line of the log for each."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeAlias

from lmtool.net.telemetry.observation import current_streams
from lmtool.net.telemetry.request_log import http_log
from lmtool.net.telemetry.trace_context import current_trace, read_trace

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from lmtool.net.telemetry.observation import Observation
    from lmtool.net.telemetry.request_log import HttpLog

    Receive: TypeAlias = Callable[[], Awaitable[Any]]
    Send: TypeAlias = Callable[[Any], Awaitable[None]]
    Application: TypeAlias = Callable[[Any, Receive, Send], Awaitable[None]]


_FAULT = 500


class HttpRequests:
    """An ASGI application that passes all on, in the context of the trace that the headers name."""

    def __init__(self, app: Application, log: Callable[[HttpLog], None], leave_out: Collection[str] = ()) -> None:
        """log: called when a request has been answered. leave_out: paths that are not logged."""
        self._application = app
        self._log = log
        self._leave_out = leave_out

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request, or one connection."""
        if scope["type"] not in {"http", "websocket"}:
            await self._application(scope, receive, send)
            return
        headers = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        token = current_trace.set(read_trace(headers))
        try:
            path = str(scope["path"]).removeprefix(str(scope.get("root_path", "")).rstrip("/"))
            if scope["type"] == "http" and path not in self._leave_out:
                await self._answer(path, scope, receive, send)
            else:
                await self._application(scope, receive, send)
        finally:
            current_trace.reset(token)

    async def _answer(self, path: str, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        began, status = time.perf_counter(), list[int]()
        streams: list[Observation] = []

        async def noting(message: Mapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                status.append(message["status"])
            await send(message)

        token = current_streams.set(streams)
        try:
            await self._application(scope, receive, noting)
        except Exception as problem:
            if not status and not _is_departure(problem):
                status.append(_FAULT)  # which the server answers behind this
            raise
        finally:
            current_streams.reset(token)
            seconds, code = time.perf_counter() - began, status[0] if status else None
            self._log(http_log(scope["method"], path, code, seconds, streams))


def _is_departure(problem: Exception) -> bool:
    """True if an application was ended by a client that has left, and not by a fault of its own."""
    from starlette.requests import ClientDisconnect

    return isinstance(problem, OSError | ClientDisconnect)
