"""Every route of every application that we serve, found in the application itself, is behind the door."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute

from lmtool.net.access.asgi import Door
from lmtool.net.access.policy import AccessPolicy
from lmtool.protocol.http.errors import refused
from lmtool.protocol.lmtp.config import ServerConfig
from lmtool.serving.composition import Loader
from lmtool.serving.config import HttpConfig, ListenConfig, ModelsConfig, ServiceConfig
from lmtool.serving.frontends import http_server
from lmtool.serving.listening import bind
from lmtool.serving.service import Service
from lmtool.trace.server_tap import ServerTap
from tests.net.access.knocking import KEY, LET_IN, PAGE_LET_IN, POLICY, REFUSED, http_answer, socket_status

STORIES = str(Path(__file__).parents[1] / "data/stories260K")
UNKNOWN = [("GET", "/nowhere"), ("POST", "/v1/nowhere"), ("GET", "/docs"), ("PROPFIND", "/"), ("OPTIONS", "/v1/models")]


def places(routes: Sequence[BaseRoute], front: str = "") -> Iterator[tuple[str, str]]:
    """Method and path of each route, `WS` for a socket."""
    for route in routes:
        if isinstance(route, Mount):
            yield from places(route.routes, front + route.path)
        elif isinstance(route, WebSocketRoute):
            yield "WS", front + route.path
        elif isinstance(route, Route):
            path = front + route.path.replace("{name:path}", "gpt2").replace("{number}", "resp_0")
            yield from ((method, path) for method in sorted(route.methods or ()))
        else:
            pytest.fail(f"{route!r} is of a kind that this walk does not know: teach it")


async def unguarded(port: int, routes: Sequence[BaseRoute]) -> list[str]:
    """What answers otherwise than by the refusal that is due."""
    found = []
    for method, path in [*places(routes), *UNKNOWN, ("WS", "/nowhere")]:
        assert "{" not in path, f"{path} has a part that this walk does not fill"
        for knock in REFUSED:
            if method == "WS":
                status = await socket_status(port, knock, path)
            else:
                status = (await http_answer(port, knock, method, path)).status_code
            if status != knock.status:
                found.append(f"{method} {path} with {knock.name}: {status}")
    return found


@contextlib.asynccontextmanager
async def serving(config: ServiceConfig) -> AsyncIterator[tuple[int, Service, Starlette]]:
    """A service on a port, without its model: nothing here may ask for one."""
    made: list[Starlette] = []

    def kept(tap: ServerTap, application: Any, leave_out: Collection[str]) -> Any:
        made.append(application)
        return around(tap, application, leave_out)

    around = ServerTap.around
    service, sockets = Service(config), bind(ListenConfig(port=0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServerTap, "around", kept)  # where the application goes by
        service.listen(sockets)
    try:
        yield sockets[0].getsockname()[1], service, made[0]
    finally:
        await service.close()


@pytest.mark.parametrize(
    "config",
    [
        ServiceConfig(ModelsConfig("auto"), access=POLICY),
        ServiceConfig(ModelsConfig(STORIES), access=POLICY, http=HttpConfig(root_path="/llm")),
        ServiceConfig(access=POLICY, workers=("ws://127.0.0.1:1/",)),
    ],
    ids=["serve auto", "below a path", "balance"],
)
async def test_every_route_is_behind_the_door(config: ServiceConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP and WebSocket, known paths and others: without the key, from a foreign page, under a rebound name.

    `/health` alone is open. Nothing was begun meanwhile: no model, no connection, no request.
    """
    loads: list[object] = []
    monkeypatch.setattr(Loader, "load", lambda *asked: loads.append(asked))
    async with serving(config) as (port, service, application):
        found = list(places(application.routes))
        paths = {path for _, path in found}
        assert {("WS", "/"), ("GET", "/metrics"), ("POST", "/v1/messages"), ("POST", "/chat/completions")} <= {*found}
        assert len(paths) > 20
        still_open = [one for one in await unguarded(port, application.routes) if "/health" not in one]
        assert still_open == []
        assert (loads, service.faces[0].connections, service.streams, list(service.health.requests)) == ([], 0, 0, [])
        for knock in REFUSED:
            assert (await http_answer(port, knock, "GET", "/health")).status_code == 503  # it loads


async def test_what_is_let_in() -> None:
    """The key opens every wire, for programs and for pages that may read the answer."""
    async with serving(ServiceConfig(ModelsConfig("auto"), access=POLICY)) as (port, _, _):
        for knock in (LET_IN, PAGE_LET_IN):
            assert await socket_status(port, knock) == 101
            answers = [await http_answer(port, knock, "GET", path) for path in ("/", "/metrics", "/nowhere")]
            assert [answer.status_code for answer in answers] == [200, 200, 404]
            for answer in answers:
                assert answer.headers.get("access-control-allow-origin") == knock.headers.get("origin")
                assert KEY not in answer.text


async def test_the_walk_finds_what_is_not() -> None:
    """A route and a socket beside the door are found, whichever way is open."""

    async def answer(_request: Any) -> PlainTextResponse:
        return PlainTextResponse("planted")

    async def accept(socket: Any) -> None:
        await socket.accept()
        await socket.close()

    planted = [Route("/planted", answer), Mount("/below", routes=[WebSocketRoute("/planted", accept)])]
    application = Starlette(routes=planted)
    guarded = Door(application, POLICY, refused)

    async def leaky(scope: Any, receive: Any, send: Any) -> None:
        await (application if "planted" in scope["path"] else guarded)(scope, receive, send)

    sockets = bind(ListenConfig(port=0))
    port = sockets[0].getsockname()[1]
    server = http_server(leaky, AccessPolicy(hosts=("*",), origins=("*",)), ServerConfig())
    running = asyncio.create_task(server.serve(sockets))
    try:
        found = await unguarded(port, planted)
    finally:
        server.should_exit = True
        await running
    assert {one.partition(":")[0] for one in found} == {
        f"{place} with {knock.name}"
        for place in ("GET /planted", "HEAD /planted", "WS /below/planted")
        for knock in REFUSED
    }
