"""The routes of the Messages API."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response

from lmtool.http_api.anthropic import errors
from lmtool.http_api.anthropic.events import Message
from lmtool.http_api.anthropic.requests import read
from lmtool.http_api.generation import Generation, Served
from lmtool.http_api.http import asked, server_sent, unless_gone

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from starlette.requests import Request

    from lmtool.http_api.errors import ApiError
    from lmtool.prompt_limits import LimitsByModel


class MessagesRoutes:
    """Answers `/messages`."""

    def __init__(
        self, served: Callable[[str | None], Awaitable[Served]], limits: Callable[[], LimitsByModel] = dict
    ) -> None:
        """served: the model of a name; raises `UnknownModelError`. limits: of the models' prompts."""
        self._served = served
        self._limits = limits

    def handlers(self) -> list[tuple[str, str, Callable[[Request], Any]]]:
        """Method, path and handler each."""
        return [("POST", "/messages", self._create), ("POST", "/messages/count_tokens", self._count)]

    @staticmethod
    def refusal(error: ApiError) -> Response:
        """The answer to a request that cannot be served."""
        return JSONResponse(errors.body(error), errors.status(error))

    async def _create(self, request: Request) -> Response:
        generation = await self._generation(await asked(request, read, self._limits()))
        call, served = generation.call, generation.served
        message = Message(generation.answers[0], call, served.info.model, served.info.eos_token_ids)
        if call.stream:
            return await server_sent(_events(generation, message), named=True, failed=errors.body, end="")
        return await unless_gone(request, _whole(generation, message))

    async def _count(self, request: Request) -> Response:
        generation = await self._generation(await asked(request, partial(read, counting=True), self._limits()))
        generation.served.spelt()
        return JSONResponse({"input_tokens": generation.prompt_tokens})

    async def _generation(self, call: Any) -> Generation:  # noqa: ANN401  # a requests.Call
        generation = Generation(await self._served(call.model), call)
        await generation.start(count=True)
        return generation


async def _whole(generation: Generation, message: Message) -> Response:
    await generation.finish()
    return JSONResponse(message.whole(generation.used))


async def _events(generation: Generation, message: Message) -> AsyncGenerator[dict[str, Any], None]:
    started = False
    async with contextlib.aclosing(generation.deltas()) as deltas:
        async for _, _, added in deltas:
            if not started:
                yield message.start(generation.prompt_tokens)
            started = True
            for event in message.add(added):
                yield event
    for event in message.end(generation.usage()):
        yield event
