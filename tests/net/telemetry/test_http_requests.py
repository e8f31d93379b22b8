"""HTTP requests around an application: their trace, and one line of the log for each."""

from __future__ import annotations

from typing import Any

import pytest

from lmtool.core.types import GenerateRequest, Usage
from lmtool.net.telemetry.http_requests import HttpRequests
from lmtool.net.telemetry.request_log import HttpLog
from lmtool.net.telemetry.telemetry import Telemetry
from lmtool.net.telemetry.trace_context import TraceContext, current_trace
from tests.net.telemetry.test_trace_context import GOOD


class App:
    """An application that takes two streams for each request, and fails where the path says so."""

    def __init__(self) -> None:
        self.logged: list[HttpLog] = []
        self.traces: list[TraceContext | None] = []
        self.telemetry = Telemetry()
        self.around = HttpRequests(self.answer, self.logged.append, ("/health",))

    async def answer(self, scope: Any, _receive: Any, send: Any) -> None:
        """The application itself."""
        self.traces.append(current_trace.get())
        if scope["path"].endswith("/early"):
            raise OSError("the client has left")
        if scope["path"].endswith("/bug"):
            raise ZeroDivisionError
        await send({"type": "http.response.start", "status": 200})
        for tokens in (2, 3):
            stream = self.telemetry.observe("gpt2", GenerateRequest("a", (1,)))
            for _ in range(tokens):
                stream.token(self.telemetry.clock())
            stream.end("length", Usage(5, tokens, 4), self.telemetry.clock())
        await send({"type": "http.response.body"})

    async def ask(self, path: str, kind: str = "http", **more: Any) -> None:
        """A request."""

        async def send(_message: Any) -> None:
            """Read nothing."""

        headers = [(b"TraceParent", GOOD.encode())]
        await self.around({"type": kind, "method": "POST", "path": path, "headers": headers, **more}, None, send)  # type: ignore[arg-type]


async def test_a_request_is_logged_with_its_streams_together() -> None:
    """Status, times and the tokens of all its streams, its trace; below a proxy's path too, without that."""
    app = App()
    await app.ask("/v1/completions")
    await app.ask("/llm/v1/completions", root_path="/llm")
    [entry, below] = app.logged
    assert (entry.method, entry.path, entry.status, entry.model, entry.end) == (
        *("POST", "/v1/completions", 200),
        *("gpt2", "length"),
    )
    assert (entry.streams, entry.prompt_tokens, entry.output_tokens, entry.cached_tokens) == (2, 10, 5, 8)
    assert entry.ttft is not None
    assert 0 <= entry.ttft <= entry.seconds
    assert (entry.traceparent, below.path) == (GOOD, "/v1/completions")
    assert (app.traces, current_trace.get()) == ([TraceContext(GOOD)] * 2, None)


async def test_a_client_that_leaves_is_logged_without_a_status() -> None:
    """Where nothing was answered there is none."""
    app = App()
    with pytest.raises(OSError, match="left"):
        await app.ask("/early")
    [entry] = app.logged
    assert (entry.status, entry.streams, entry.end) == (None, 0, None)


async def test_a_fault_of_the_server_is_a_500() -> None:
    """As its client is told, and not as if that had left."""
    app = App()
    with pytest.raises(ZeroDivisionError):
        await app.ask("/bug")
    assert [entry.status for entry in app.logged] == [500]


async def test_probes_and_connections_are_not_logged_here() -> None:
    """Probes are nobody's requests, and connections log their requests one by one; both have their trace."""
    app = App()
    await app.ask("/health")
    await app.ask("/llm/health", root_path="/llm")
    await app.ask("/", kind="websocket")
    assert (app.logged, app.traces) == ([], [TraceContext(GOOD)] * 3)
