"""HTTP of all routes: size-limited bodies, server-sent events (HTML, 9.2), disconnects, and the OpenAPI document."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from lmtool import __version__
from lmtool.core.errors import LmtoolError
from lmtool.core.prompt_limits import limits_of
from lmtool.net.subprocesses.offload import is_long, run_in_subprocess
from lmtool.protocol.http import errors
from lmtool.protocol.http.decoding import read_object
from lmtool.protocol.http.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence

    from starlette.types import Receive, Scope, Send

    from lmtool.core.prompt_limits import LimitsByModel, PromptLimits
    from lmtool.protocol.http.decoding import Body


T = TypeVar("T")


@runtime_checkable
class Limitable(Protocol):
    """A request whose prompts must fit into a model's context."""

    @property
    def model(self) -> str | None:
        """Its name."""

    def check(self, limits: PromptLimits) -> None:
        """Raise `ContextOverflowError` for what cannot fit."""


MAX_BYTES = 4 << 20
"""Of a request's body."""
Event: TypeAlias = "dict[str, Any]"
Handler: TypeAlias = "Callable[[Request], Awaitable[Response]]"


class Endpoint(NamedTuple):
    """One route of an API. The first line of the handler's docstring is its summary for clients."""

    method: str
    path: str
    handler: Handler
    body: type[Body] | None = None
    """The struct of its request."""


async def read_request(
    request: Request, read: Callable[[Mapping[str, Any]], T], limits: LimitsByModel | None = None
) -> T:
    """What `read` makes of the request's JSON object, a long one in a helper, see `beside`. Raises `ApiError`.

    limits: of the models' prompts; what is beyond them is refused.
    """
    body, decode_body = await read_body(request), partial(_read, read, limits or {})
    return await run_in_subprocess(decode_body, body) if is_long(body) else decode_body(body)


async def read_body(request: Request, limit: int = MAX_BYTES) -> bytes:
    """The bytes of a request. Raises `ApiError` for more than the limit."""
    chunks, size = [], 0
    async for chunk in request.stream():
        chunks.append(chunk)
        size += len(chunk)
        if size > limit:
            raise ApiError(413, f"the request has more than {limit} bytes")
    return b"".join(chunks)


def _read(read: Callable[[Mapping[str, Any]], T], limits: LimitsByModel, data: bytes) -> T:
    found = read_object(read, data)
    own = limits_of(found.model, limits) if isinstance(found, Limitable) else None
    if isinstance(found, Limitable) and own is not None:
        try:
            found.check(own)
        except LmtoolError as problem:
            raise errors.from_error(problem) from None
    return found


def to_json(value: object) -> bytes:
    """The JSON of a value. Of what msgspec refuses (half a surrogate pair, integers beyond 64 bits), Python's own."""
    try:
        return _encode(value)
    except (UnicodeEncodeError, OverflowError):
        return json.dumps(value).encode()


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A response of JSON."""
    return Response(to_json(value), status, headers, media_type="application/json")


_encode = msgspec.json.Encoder().encode


class EventStream(Response):
    """A response of server-sent events, those of one step in one write."""

    media_type = "text/event-stream"

    def __init__(
        self,
        steps: AsyncGenerator[list[Event], None],
        *,
        named: bool = False,
        failed: Callable[[ApiError], Event] | None = None,
        end: bytes = b"data: [DONE]\n\n",
    ) -> None:
        """steps: events that are sent together.

        named: whether an event's `type` is its name on the wire. failed: the event that tells of a later error; None:
        OpenAI's. end: what follows the last event.
        """
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._steps, self._named, self._failed, self._end = steps, named, failed, end
        self._first: list[Event] = []

    async def start(self, receive: Receive) -> EventStream:
        """This response once its first events are known: what cannot be answered at all is raised, to be a status."""
        self._first = await unless_gone(receive, self._next())
        return self

    async def _next(self) -> list[Event]:
        return await anext(self._steps)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  # ASGI's
        """Send all events; stop when the client disconnects, which ends the streams behind them."""
        try:
            with contextlib.suppress(ClientDisconnect):  # raised further, it would be logged as a fault of the server
                await unless_gone(receive, self._send(send))
        finally:
            await self._steps.aclose()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self._written(self._first), "more_body": True})
        end = self._end
        try:
            async for events in self._steps:
                await send({"type": "http.response.body", "body": self._written(events), "more_body": True})
        except (ApiError, LmtoolError) as problem:
            error = problem if isinstance(problem, ApiError) else errors.from_error(problem)
            event = error.body if self._failed is None else self._failed(error)
            end = self._written([event]) + end
        await send({"type": "http.response.body", "body": end})

    def _written(self, events: Sequence[Event]) -> bytes:
        parts = []
        for event in events:
            if self._named and "type" in event:
                parts.append(f"event: {event['type']}\n".encode())
            parts += (b"data: ", to_json(event), b"\n\n")
        return b"".join(parts)


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client disconnects. Raises `ClientDisconnect` then."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)
        del working, watching  # else what went wrong would hold itself and the request until garbage is collected


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


FRONT = "/v1"
"""Before every path; without it they are served as well."""
_ERROR = {
    "description": "The request cannot be served: what is wrong, and the field to blame.",
    "content": {"application/json": {"schema": {"type": "object", "required": ["error"]}}},
}


def document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """The document of these endpoints, as JSON."""
    bodies = list({endpoint.body: None for endpoint in endpoints if endpoint.body is not None})
    references, schemas = msgspec.json.schema_components(bodies, ref_template="#/components/schemas/{name}")
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        body = None if endpoint.body is None else references[bodies.index(endpoint.body)]
        path = FRONT + endpoint.path.replace(":path}", "}")
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint, path, body)
    return {
        "openapi": "3.1.0",
        "info": {"title": "lmtool", "version": __version__, "description": "OpenAI's and Anthropic's APIs."},
        "paths": paths,
        "components": {"schemas": schemas, "responses": {"Error": _ERROR}},
    }


def _operation(endpoint: Endpoint, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": (endpoint.handler.__doc__ or "").partition("\n")[0],
        "responses": {
            "200": {"description": "The answer; as server-sent events where the request has `stream`."},
            "default": {"$ref": "#/components/responses/Error"},
        },
    }
    if names := re.findall(r"\{(\w+)\}", path):
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return operation
