"""The toy model behind our HTTP face, in this process or on a port; its answers can be rewritten on the way."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import uvicorn
from starlette.applications import Starlette

from lmtool.measure.audit.checks import NAMES, judge, parts_of
from lmtool.measure.audit.evidence import Finding, Kind
from lmtool.measure.audit.exchange_log import ExchangeLog
from lmtool.measure.audit.http_answers import HttpReply
from lmtool.measure.audit.http_wire import HttpWire, Route
from lmtool.measure.audit.interview import PARTS, Interview, Pace
from lmtool.measure.audit.lmtp_wire import LmtpWire
from lmtool.protocol.http.server import OpenAIServer
from lmtool.protocol.lmtp.endpoint import SocketEndpoint
from tests.measure.audit.toy_model import ToyModel

Json = dict[str, Any]
Rewrite = Callable[[Json, Json], Json]
"""What becomes of a JSON answer, or of a chunk of one: from it and the request."""
App = Callable[..., Any]


def application(model: ToyModel, rewrite: Rewrite | None = None) -> App:
    """Our HTTP routes over the model."""
    app = Starlette(routes=OpenAIServer(model, catalogue=model).routes())  # type: ignore[arg-type]
    return app if rewrite is None else _rewriting(app, rewrite)


def _rewriting(app: App, rewrite: Rewrite) -> App:
    """The application with every JSON value of its answers rewritten."""

    async def around(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await app(scope, receive, send)
            return
        sent, head, body = bytearray(), dict[str, Any](), bytearray()

        async def heard() -> Any:
            message = await receive()
            sent.extend(message.get("body", b""))
            return message

        async def said(message: Any) -> None:
            if message["type"] == "http.response.start":
                head.update(message)
            else:
                body.extend(message.get("body", b""))

        await app(scope, heard, said)
        data = _rewritten(bytes(body), json.loads(sent), rewrite) if head["status"] == 200 else bytes(body)
        headers = [(name, value) for name, value in head["headers"] if name.lower() != b"content-length"]
        await send({**head, "headers": [*headers, (b"content-length", str(len(data)).encode())]})
        await send({"type": "http.response.body", "body": data})

    return around


def _rewritten(body: bytes, request: Json, rewrite: Rewrite) -> bytes:
    if not body.startswith(b"data: "):
        return json.dumps(rewrite(json.loads(body), request)).encode()
    events = [event.removeprefix(b"data: ") for event in body.strip().split(b"\n\n")]
    values = [one if one == b"[DONE]" else json.dumps(rewrite(json.loads(one), request)).encode() for one in events]
    return b"".join(b"data: " + one + b"\n\n" for one in values)


class InProcess:
    """Sends requests to an application of this process; a `Transport` of the audit."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._count = 0
        self.bodies: list[tuple[str, Mapping[str, object]]] = []
        """Everything that was asked."""

    async def post(self, path: str, body: Mapping[str, object]) -> HttpReply:
        self._count += 1
        number = self._count
        self.bodies.append((path, body))
        received, head, data = asyncio.Event(), dict[str, Any](), bytearray()

        async def receive() -> Any:
            if not received.is_set():
                received.set()
                return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}
            return await asyncio.Future[Any]()  # nobody leaves

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                head.update(message)
            else:
                data.extend(message.get("body", b""))

        scope = {
            "type": "http", "method": "POST", "path": f"/v1{path}", "raw_path": f"/v1{path}".encode(), "root_path": "",
            "query_string": b"", "headers": [(b"content-type", b"application/json")], "http_version": "1.1",
            "scheme": "http", "server": ("toy", 80), "client": ("test", 1),
        }  # fmt: skip
        await self._app(scope, receive, send)
        kind = dict(head["headers"]).get(b"content-type", b"").decode()
        return HttpReply(number, head["status"], kind, bytes(data))


async def audited(
    app: App, route: Route = "completions", *, claim: Kind | None = None, only: Sequence[str] = NAMES
) -> dict[str, Finding]:
    """The findings of an application of this process."""
    wire = HttpWire(InProcess(app), route, "toy")
    assert await wire.find_out() == ""
    parts = parts_of(only)
    evidence = await Interview(wire, Pace(), lambda _: None).run([part for part in PARTS if part in parts])
    return judge(evidence, claim=claim, names=only)


def breaches(findings: Mapping[str, Finding]) -> dict[str, str]:
    """The checks that failed, and what they found."""
    return {name: one.sentence for name, one in findings.items() if one.verdict == "breach"}


@contextlib.asynccontextmanager
async def listening(app: App) -> AsyncIterator[str]:
    """The application on a port of its own; the value is its URL."""
    runner = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="error"))
    listener = socket.create_server(("127.0.0.1", 0))
    # Without uvicorn's main loop, which takes over signals and looks for the end only ten times a second.
    runner.config.load()
    runner.lifespan = runner.config.lifespan_class(runner.config)
    await runner.startup(sockets=[listener])
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        await runner.shutdown(sockets=[listener])


async def over_lmtp(endpoint: SocketEndpoint, only: Sequence[str] = NAMES) -> dict[str, Finding]:
    """The findings of a server over LMTP."""
    wire = LmtpWire(endpoint, ExchangeLog(), 10.0, None)
    assert await wire.find_out() == ""
    parts = parts_of(only)
    evidence = await Interview(wire, Pace(), lambda _: None).run([part for part in PARTS if part in parts])
    return judge(evidence, names=only)
