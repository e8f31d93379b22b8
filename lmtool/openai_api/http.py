"""What all routes share of HTTP: a body with a limit, server-sent events (HTML, 9.2), and clients that hang up."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from lmtool.errors import LmtoolError
from lmtool.helpers.reading import beside
from lmtool.openai_api import errors
from lmtool.openai_api.errors import ApiError
from lmtool.openai_api.members import read_object

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping

T = TypeVar("T")

MOST_BYTES = 4 << 20
"""Of a request's body."""
_SERVER_SENT = {"cache-control": "no-cache", "x-accel-buffering": "no"}


async def asked(request: Request, read: Callable[[Mapping[str, Any]], T]) -> T:
    """What `read` makes of the request's JSON object, a long one in a helper, see `beside`. Raises `ApiError`."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MOST_BYTES:
            raise ApiError(413, f"the request has more than {MOST_BYTES} bytes")
    return await beside(partial(read_object, read), bytes(data))


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
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
