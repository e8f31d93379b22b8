"""What all routes share of HTTP: a body with a limit, server-sent events (HTML, 9.2), and clients that hang up."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from lmtool.errors import LmtoolError
from lmtool.http_api import errors
from lmtool.http_api.errors import ApiError
from lmtool.http_api.members import read_object
from lmtool.prompt_limits import limits_of
from lmtool.subprocesses.reading import beside, is_long

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping

    from lmtool.prompt_limits import LimitsByModel, PromptLimits

T = TypeVar("T")


@runtime_checkable
class Limitable(Protocol):
    """A request whose prompts must fit into a model's context."""

    @property
    def model(self) -> str | None:
        """Its name."""

    def check(self, limits: PromptLimits) -> None:
        """Raise `ContextOverflowError` for what cannot fit."""


MOST_BYTES = 4 << 20
"""Of a request's body."""
_SERVER_SENT = {"cache-control": "no-cache", "x-accel-buffering": "no"}


async def asked(request: Request, read: Callable[[Mapping[str, Any]], T], limits: LimitsByModel | None = None) -> T:
    """What `read` makes of the request's JSON object, a long one in a helper, see `beside`. Raises `ApiError`.

    limits: of the models' prompts; what is beyond them is refused.
    """
    body, read_body = await _body(request), partial(_read, read, limits or {})
    return await beside(read_body, body) if is_long(body) else read_body(body)


async def _body(request: Request) -> bytes:
    chunks, size = [], 0
    async for chunk in request.stream():
        chunks.append(chunk)
        size += len(chunk)
        if size > MOST_BYTES:
            raise ApiError(413, f"the request has more than {MOST_BYTES} bytes")
    return b"".join(chunks)


def _read(read: Callable[[Mapping[str, Any]], T], limits: LimitsByModel, data: bytes) -> T:
    found = read_object(read, data)
    own = limits_of(found.model, limits) if isinstance(found, Limitable) else None
    if isinstance(found, Limitable) and own is not None:
        try:
            found.check(own)
        except LmtoolError as problem:
            raise errors.of(problem) from None
    return found


async def server_sent(
    events: AsyncGenerator[dict[str, Any], None],
    *,
    named: bool = False,
    failed: Callable[[ApiError], dict[str, Any]] | None = None,
    end: str = "data: [DONE]\n\n",
) -> Response:
    """A response of events. What cannot be answered at all is raised: it must be a status, not an event.

    named: whether an event's `type` is its name on the wire. failed: the event that tells of a later error; None:
    OpenAI's. end: what follows the last event.
    """
    first = await anext(events)

    def written(event: dict[str, Any]) -> str:
        name = f"event: {event['type']}\n" if named else ""
        return f"{name}data: {json.dumps(event)}\n\n"

    async def lines() -> AsyncIterator[str]:
        try:
            yield written(first)
            async for event in events:
                yield written(event)
        except (ApiError, LmtoolError) as problem:
            error = problem if isinstance(problem, ApiError) else errors.of(problem)
            yield f"data: {json.dumps(error.body)}\n\n" if failed is None else written(failed(error))
        finally:
            await events.aclose()
        if end:
            yield end

    return StreamingResponse(lines(), media_type="text/event-stream", headers=_SERVER_SENT)


async def unless_gone(request: Request, work: Any) -> Response:  # noqa: ANN401  # a coroutine of a Response
    """What `work` answers; given up when the client hangs up meanwhile, which ends its streams."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        response: Response = working.result()
        return response
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)
        del working, watching  # else what went wrong would hold itself and the request until garbage is collected


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
