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
    """A parsed request whose prompts must fit into a model's context."""

    @property
    def model(self) -> str | None:
        """Name of the model."""

    def check(self, limits: PromptLimits) -> None:
        """Raise `ContextOverflowError` for prompts that cannot fit."""


MAX_BYTES = 4 << 20
"""Most bytes of a request's body."""
Event: TypeAlias = "dict[str, Any]"
Handler: TypeAlias = "Callable[[Request], Awaitable[Response]]"


class Endpoint(NamedTuple):
    """One route of an API. The first line of the handler's docstring is its summary in the OpenAPI document."""

    method: str
    path: str
    handler: Handler
    body: type[Body] | None = None
    """Struct that decodes its request."""


async def read_request(
    request: Request, read: Callable[[Mapping[str, Any]], T], limits: LimitsByModel | None = None
) -> T:
    """Result of `read` for the request's JSON object. Long bodies are decoded in a subprocess. Raises `ApiError`.

    limits: prompt limits by model; longer prompts are rejected.
    """
    body, decode_body = await read_body(request), partial(_read, read, limits or {})
    return await run_in_subprocess(decode_body, body) if is_long(body) else decode_body(body)


async def read_body(request: Request, limit: int = MAX_BYTES) -> bytes:
    """Body of a request. Raises `ApiError` if it exceeds the limit, in bytes."""
    chunks, size = [], 0
    async for chunk in request.stream():
        chunks.append(chunk)
        size += len(chunk)
        if size > limit:
            raise ApiError(413, f"the request has more than {limit} bytes")
    return b"".join(chunks)


def _read(read: Callable[[Mapping[str, Any]], T], limits: LimitsByModel, data: bytes) -> T:
    parsed = read_object(read, data)
    if isinstance(parsed, Limitable) and (own := limits_of(parsed.model, limits)) is not None:
        try:
            parsed.check(own)
        except LmtoolError as problem:
            raise errors.from_error(problem) from None
    return parsed


def to_json(value: object) -> bytes:
    """JSON of a value; by Python's `json` for what msgspec rejects (lone surrogates, integers beyond 64 bits)."""
    try:
        return _encode(value)
    except (UnicodeEncodeError, OverflowError):
        return json.dumps(value).encode()


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON response."""
    return Response(to_json(value), status, headers, media_type="application/json")


_encode = msgspec.json.Encoder().encode


class EventStream(Response):
    """A response of server-sent events; the events of one step are sent in one write."""

    media_type = "text/event-stream"

    def __init__(
        self,
        steps: AsyncGenerator[list[Event], None],
        *,
        named: bool = False,
        failed: Callable[[ApiError], Event] | None = None,
        end: bytes = b"data: [DONE]\n\n",
    ) -> None:
        """steps: lists of events to send together.

        named: whether to send an event's `type` as its name. failed: makes the event for a later error; None: OpenAI's
        form. end: bytes after the last event.
        """
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._steps, self._named, self._failed, self._end = steps, named, failed, end
        self._first: list[Event] = []

    async def start(self, receive: Receive) -> EventStream:
        """Wait for the first events and return this response; an error before them is raised and becomes the status."""

        async def first() -> list[Event]:
            return await anext(self._steps)

        self._first = await unless_gone(receive, first())
        return self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  # ASGI's
        """Send all events; stop when the client disconnects, which cancels the streams."""
        try:
            with contextlib.suppress(ClientDisconnect):  # otherwise it would be logged as a server error
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
    """Result of `work`. If the client disconnects, `work` is cancelled and `ClientDisconnect` is raised."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)
        del (
            working,
            watching,
        )  # breaks the reference cycle of an exception, which would keep the request until garbage collection


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


FRONT = "/v1"
"""Prefix of every path; the paths without it are served as well."""
_ERROR = {
    "description": "The request cannot be served: what is wrong, and the field to blame.",
    "content": {"application/json": {"schema": {"type": "object", "required": ["error"]}}},
}


def document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """OpenAPI 3.1 document of these endpoints."""
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
