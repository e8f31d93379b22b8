"""Every wire of a server, each asked for one short answer with a key: what the client is told."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

import lmtool
from lmtool.core.errors import AccessDeniedError, ConnectError, LmtoolError, OverloadedError, UnknownModelError
from lmtool.core.streams import error_of, stream
from lmtool.core.types import GenerateRequest, SamplingParams
from lmtool.gateway.pools.config_reader import parse
from lmtool.net.access.caller import Callers
from lmtool.net.access.key_file import parse_keys
from lmtool.net.access.policy import AccessPolicy
from lmtool.net.telemetry.refusals import RefusalLog
from lmtool.net.telemetry.request_log import HttpLog, RequestLog
from lmtool.net.telemetry.spans import Tracer
from lmtool.protocol.evergreen.status import Abort, Status
from lmtool.protocol.lmtp.client import LmtpClient
from lmtool.serving.config import ListenConfig, ModelsConfig, PoolsConfig, ServiceConfig
from lmtool.serving.events import Answered, Finished, Refused, as_json
from lmtool.serving.listening import bind, url
from lmtool.serving.service import Service
from tests.conftest import STORIES

MODEL = "lmtool-tiny"
OTHER = "stories260K"
POOL = "own"
POOLS = "pools:\n  - {id: own, retry: {max_retries: 0}, models: [{id: local, local: {model: lmtool-tiny}}]}\n"
SHORT = SamplingParams(max_tokens=2)


@dataclass(frozen=True)
class Told:
    """What a client is told, in the terms of HTTP; 200 for an answer."""

    status: int
    retry_after: int = 0
    text: str = ""


@dataclass
class KeyedServer:
    """A running server with a file of keys, on a port, on a Unix socket and over gRPC."""

    service: Service
    callers: Callers
    url: str
    unix: str
    grpc: str

    @property
    def scheduler(self) -> Any:
        """The first model's, whose queue shows the order of service."""
        models: Any = self.service._models
        return next(slot for slot in models._slots if slot.name == MODEL).model._inner._scheduler

    @property
    def http(self) -> str:
        """The port over HTTP."""
        return "http" + self.url.removeprefix("ws").rstrip("/")


@asynccontextmanager
async def keyed_server(
    keys: str,
    folder: Path,
    lines: list[str] | None = None,
    tracer: Tracer | None = None,
    pools: str | None = POOLS,
    **policy: Any,
) -> AsyncIterator[KeyedServer]:
    """A server of two models and a pool behind these keys.

    lines: of its log for machines, filled as it goes. tracer: see `Service`. policy: more of its `AccessPolicy`.
    """
    callers = Callers(parse_keys(keys, "keys.toml"))
    access = AccessPolicy(callers=callers, **policy)
    models = ModelsConfig.of([MODEL, str(STORIES)])
    lines = [] if lines is None else lines

    def log(entry: RequestLog) -> None:
        lines.append(as_json(Finished(entry), "now"))

    def log_http(entry: HttpLog) -> None:
        lines.append(as_json(Answered(entry), "now"))

    def log_refused(entry: RefusalLog) -> None:
        lines.append(as_json(Refused(entry), "now"))

    config = ServiceConfig(models, access=access, pools=None if pools is None else PoolsConfig(parse(pools)))
    service = Service(config, log, log_http=log_http, tracer=tracer, log_refused=log_refused)
    port, at_path = ListenConfig(port=0), ListenConfig(unix=str(folder / "s"))
    sockets = bind(port)
    service.listen([*sockets, *bind(at_path)])
    grpc = await service.listen_grpc("127.0.0.1", 0)
    try:
        await service.ready(lambda _: None)
        yield KeyedServer(service, callers, url(port, sockets), f"unix:{folder / 's'}", f"grpc://127.0.0.1:{grpc}")
    finally:
        await service.close()


def told_of(error: LmtoolError) -> Told:
    """An error of a client of ours."""
    statuses: tuple[tuple[type[LmtoolError], int], ...] = (
        (AccessDeniedError, 401),
        (UnknownModelError, 404),
        (OverloadedError, 429),
    )
    status = next((status for kind, status in statuses if isinstance(error, kind)), 400)
    if isinstance(error, ConnectError) and "HTTP status 401" not in error.message and error.retry_after:
        status = 429
    if isinstance(error, Abort):
        aborts = {Status.UNAUTHENTICATED: 401, Status.NOT_FOUND: 404, Status.RESOURCE_EXHAUSTED: 429}
        status = aborts.get(error.status, 400)
    return Told(status, error.retry_after, error.sentence)


async def lmtp(place: str, key: str, model: str) -> Told:
    """GENERATE over LMTP."""
    try:
        async with LmtpClient(place, api_key=key or None) as client:
            await client.models()  # from then on it is told the kinds of errors (EXT-2)
            request = GenerateRequest("a", (1, 40, 41), SHORT, model)
            outputs = [output async for output in stream(client, request)]
    except LmtoolError as error:
        return told_of(error)
    last = outputs[-1]
    return Told(200) if last.error is None else told_of(error_of(last))


async def evergreen(place: str, key: str, model: str) -> Told:
    """GENERATE in a session."""
    try:
        async with lmtool.session(place, api_key=key or None) as session:
            pieces = [piece async for piece in session.generate("Hello", model=model, max_tokens=2)]
    except LmtoolError as error:
        return told_of(error)
    return Told(200, text="".join(pieces))


async def http(
    server: KeyedServer, key: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
) -> Told:
    """One HTTP request."""
    headers = {**(headers or {}), **({"authorization": f"Bearer {key}"} if key else {})}
    method = "GET" if body is None else "POST"
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.request(method, server.http + path, json=body) as response,
    ):
        return Told(response.status, int(response.headers.get("retry-after", 0)), await response.text())


async def chat_socket(server: KeyedServer, key: str, model: str) -> Told:
    """The unified API's WebSocket."""
    pool = POOL if model == MODEL else model
    headers = {"x-api-key": key} if key else {}
    try:
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.ws_connect(f"{server.http}/v1/language/{pool}/chatStream") as socket,
        ):
            await socket.send_json({"id": "1", "message": {"role": "user", "content": "Hello"}})
            while True:
                event = await socket.receive_json()
                if error := event.get("error"):
                    statuses = {"rate_limit_exceeded": 429, "pool_not_found": 404}
                    return Told(statuses.get(error["name"], 400), 1, json.dumps(error))
                if event["chunk"].get("finish_reason"):
                    return Told(200)
    except aiohttp.WSServerHandshakeError as refused:
        return Told(refused.status, int((refused.headers or {}).get("retry-after", 0)))


def chat(model: str) -> dict[str, Any]:
    """The body of a chat request."""
    return {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}


Wire = Callable[[KeyedServer, str, str], Awaitable[Told]]

WIRES: dict[str, Wire] = {
    "LMTP": lambda server, key, model: lmtp(server.url, key, model),
    "LMTP over a Unix socket": lambda server, key, model: lmtp(server.unix, key, model),
    "chat completions": lambda server, key, model: http(server, key, "/v1/chat/completions", chat(model)),
    "completions": lambda server, key, model: http(
        server, key, "/v1/completions", {"model": model, "prompt": "Hello", "max_tokens": 2}
    ),
    "responses": lambda server, key, model: http(
        server, key, "/v1/responses", {"model": model, "input": "Hello", "max_output_tokens": 16}
    ),
    "messages": lambda server, key, model: http(server, key, "/v1/messages", chat(model)),
    "unified": lambda server, key, model: http(
        server,
        key,
        f"/v1/language/{POOL if model == MODEL else model}/chat",
        {"message": {"role": "user", "content": "Hello"}},
    ),
    "unified over WebSocket": chat_socket,
    "Evergreen": lambda server, key, model: evergreen(server.url, key, model),
    "Evergreen over gRPC": lambda server, key, model: evergreen(server.grpc, key, model),
}
"""Each asks a model for an answer; the pool stands for the first model where only pools are."""
