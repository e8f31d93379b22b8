"""The unified API (GEP-0002) as a face: chat whole, as events and over WebSocket; the state of the pools."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.routing import BaseRoute, Route, WebSocketRoute

from lmtool.core.errors import LmtoolError
from lmtool.gateway.pools import other_apis
from lmtool.gateway.pools.caller import Caller
from lmtool.gateway.pools.chat_socket import ChatSocket
from lmtool.gateway.pools.failures import PoolFailedError
from lmtool.gateway.pools.pool_answer import begin_answer
from lmtool.gateway.pools.pool_stream import current_answers
from lmtool.gateway.pools.unified_replies import Reply, attempts_header, error_body
from lmtool.gateway.pools.unified_requests import read
from lmtool.net.access.caller import is_admin
from lmtool.net.access.request_tracker import RequestTracker
from lmtool.protocol.http import errors
from lmtool.protocol.http.errors import ApiError
from lmtool.protocol.http.http import EventStream, json_response, read_body, unless_gone
from lmtool.protocol.providers.unified import ATTEMPTS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable

    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
    from starlette.websockets import WebSocket

    from lmtool.core.metrics import MetricFamily
    from lmtool.gateway.pools.pool import Pool
    from lmtool.gateway.pools.pool_answer import PoolAnswer
    from lmtool.gateway.pools.pools import Pools
    from lmtool.net.access.policy import Refusal
    from lmtool.protocol.http.http import Event

    Handler: TypeAlias = Callable[[Request, Pool], Awaitable[tuple[Response, PoolAnswer]]]
    """Answers a request to a pool, and says what was called for it."""

_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
CHAT_PATHS = ("/v1/language/{pool}/chat", "/v1/{pool}/chat")
_OWN_PATHS = re.compile(
    "/v1/language(/.*)?|(" + "|".join((*CHAT_PATHS, *other_apis.ROUTES)).replace("{pool}", "[^/]+") + ")/?"
)


class GatewayServer:
    """Answers the unified API over pools."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._tracker = RequestTracker()
        self._sockets: set[ChatSocket] = set()

    @property
    def running(self) -> int:
        """Requests that are being answered, each stream of a WebSocket counted."""
        return self._tracker.count + sum(socket.running for socket in self._sockets)

    def metrics(self) -> Iterable[MetricFamily]:
        """Calls, tokens and costs of the pools' members."""
        return self._pools.metrics()

    async def drain(self, seconds: float) -> bool:
        """Take nothing new and wait for what runs; whether all of it ended by itself within `seconds`."""
        ended = await self._tracker.drain(seconds)
        return all([ended, *[await socket.drain(seconds) for socket in list(self._sockets)]])

    def routes(self) -> list[BaseRoute]:
        """Routes for a starlette application."""
        chat = [route for path in CHAT_PATHS for route in self._answering("POST", path, self._chat)]
        others = [
            route
            for path, handler in other_apis.ROUTES.items()
            for route in self._answering("POST", path, partial(self._other, handler))
        ]
        status = self._answering("GET", "/v1/language", self._status)
        health = [Route(path, self._health, methods=["GET"]) for path in ("/v1/health", "/v1/health/")]
        socket = WebSocketRoute("/v1/language/{pool}/chatStream", self._socket)
        nothing = Route("/v1/language/{rest:path}", self._guarded(_no_route), methods=_METHODS)
        return [*chat, *others, *status, *health, socket, nothing]

    def _answering(self, method: str, path: str, handler: Callable[[Request], Awaitable[Response]]) -> list[BaseRoute]:
        """The routes of a path, with and without a slash at its end; methods that it lacks are refused."""
        counted, refused_methods = [Middleware(self._tracker.around)], sorted(_METHODS - {method})

        async def refuse(_request: Request) -> Response:
            response = failed(ApiError(405, f"this path takes {method}", code="method_not_allowed"))
            response.headers["allow"] = method
            return response

        return [
            route
            for one in (path, f"{path}/")
            for route in (
                Route(one, self._guarded(handler), methods=[method], middleware=counted),
                Route(one, refuse, methods=refused_methods),
            )
        ]

    def _guarded(self, handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """The handler, with errors in the unified API's form."""

        async def answer(request: Request) -> Response:
            if self._tracker.draining:
                return failed(ApiError(503, "the server is shutting down; connect again when it is back"))
            try:
                return await handler(request)
            except (ApiError, LmtoolError) as error:
                return failed(error)
            except ClientDisconnect:
                return json_response({}, 499)  # nobody reads it

        return answer

    async def _chat(self, request: Request) -> Response:
        pool, arrived = self._pools.need_pool(request.path_params["pool"]), asyncio.get_running_loop().time()
        sent, asked = read(await read_body(request), pool.config)
        answer = begin_answer(pool, asked, Caller(deadline=sent.deadline, arrived=arrived))
        reply = Reply(answer)
        if asked.chat.stream:
            stream = await EventStream(_events(answer, reply), failed=error_body).start(request.receive)
            return _with_attempts(stream, answer)
        await unless_gone(request.receive, reply.collect())
        return _with_attempts(json_response(reply.whole()), answer)

    async def _status(self, _request: Request) -> Response:
        pools = [pool.status() if is_admin() else pool.public_status() for pool in self._pools.visible]
        return json_response({"pools": pools})

    async def _health(self, _request: Request) -> Response:
        ready = {
            pool.id: sum(member.health.available(pool.clock()) for member in pool.members)
            for pool in self._pools.visible
        }
        return json_response({"healthy": not self._tracker.draining, "ready_models": ready})

    async def _other(self, handler: Handler, request: Request) -> Response:
        response, call = await handler(request, self._pools.need_pool(request.path_params["pool"]))
        return _with_attempts(response, call)

    async def _socket(self, websocket: WebSocket) -> None:
        socket = ChatSocket(websocket, self._pools)
        self._sockets.add(socket)
        try:
            await socket.serve()
        finally:
            self._sockets.discard(socket)


async def _no_route(request: Request) -> Response:
    expected = "expected /v1/language/{pool}/chat, or /v1/language/{pool}/chatStream as a WebSocket"
    raise ApiError(404, f"there is no {request.url.path[:200]}; {expected}", code="route_not_found")


async def _events(answer: PoolAnswer, reply: Reply) -> AsyncGenerator[list[Event], None]:
    """The pieces of a stream. Raises `PoolFailedError` before the first one; later it is the last event."""
    try:
        async with aclosing(answer.events()) as events:
            async for some in events:
                if pieces := list(reply.pieces(some)):
                    reply.attempts_told = reply.attempts_told or len(answer.attempts)  # the head goes with the first
                    yield pieces
    except PoolFailedError as error:
        if answer.member is None:
            raise
        yield [error_body(error) | {"finish_reason": "error"}]
        return
    yield [reply.end()]


def failed(error: ApiError | LmtoolError) -> Response:
    """The answer to a request that failed."""
    answer = error if isinstance(error, ApiError) else errors.from_error(error)
    status = error.status if isinstance(error, PoolFailedError) else answer.status
    response = json_response(error_body(error), status, answer.headers)
    if isinstance(error, PoolFailedError) and error.attempts:
        response.headers[ATTEMPTS] = attempts_header(error.attempts)
    return response


def refused(path: str, refusal: Refusal) -> tuple[int, bytes]:
    """Status and JSON body of a refusal by `lmtool.net.access`: in this API's form at its paths, else in another's."""
    if not _OWN_PATHS.fullmatch(path):
        return errors.refused(path, refusal)
    body = error_body(ApiError(refusal.status, refusal.sentence, code=refusal.reason))
    return refusal.status, json.dumps(body).encode()


def _with_attempts(response: Response, answer: PoolAnswer) -> Response:
    if answer.attempts:
        response.headers[ATTEMPTS] = attempts_header(answer.attempts)
    return response


def noting_attempts(application: ASGIApp) -> ASGIApp:
    """An application whose responses name the attempts of the pools that they came from, whichever route it was."""

    async def noting(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await application(scope, receive, send)
            return
        answers: list[PoolAnswer] = []

        async def adding(message: Message) -> None:
            attempts = [attempt for answer in answers for attempt in answer.attempts]
            if message["type"] == "http.response.start" and attempts:
                line = attempts_header(attempts).encode("latin-1", "replace")
                message = {**message, "headers": [*message.get("headers", ()), (ATTEMPTS.encode(), line)]}
            await send(message)

        token = current_answers.set(answers)
        try:
            await application(scope, receive, adding)
        finally:
            current_answers.reset(token)

    return noting
