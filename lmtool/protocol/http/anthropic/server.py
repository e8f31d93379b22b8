"""The routes of the Messages API."""

from __future__ import annotations

import contextlib
from operator import attrgetter
from typing import TYPE_CHECKING

from lmtool.protocol.http.anthropic.replies import Message
from lmtool.protocol.http.anthropic.requests import MessagesRequest, read
from lmtool.protocol.http.generation import prepare
from lmtool.protocol.http.http import Endpoint, EventStream, json_response, unless_gone

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request
    from starlette.responses import Response

    from lmtool.protocol.http.errors import ApiError
    from lmtool.protocol.http.generation import Generation
    from lmtool.protocol.http.http import Event
    from lmtool.protocol.http.models import Models


class MessagesRoutes:
    """Answers `/messages`."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def endpoints(self) -> list[Endpoint]:
        """The routes."""
        return [
            Endpoint("POST", "/messages", self._create, MessagesRequest),
            Endpoint("POST", "/messages/count_tokens", self._count, MessagesRequest),
        ]

    @staticmethod
    def refusal(error: ApiError) -> Response:
        """The answer to a request that cannot be served."""
        return json_response(error.anthropic_body, error.anthropic_status, error.headers)

    async def _create(self, request: Request) -> Response:
        """Continue a conversation (Anthropic's Messages API)."""
        generation = await prepare(self._models, await self._models.read(request, read), count=True)
        call, served = generation.call, generation.served
        message = Message(generation.answers[0], call, served.info.model, served.info.eos_token_ids)
        if generation.prompt_ids is not None:
            [message.prompt_ids] = generation.prompt_ids
        if call.stream:
            events, failed = _events(generation, message), attrgetter("anthropic_body")
            return await EventStream(events, named=True, failed=failed, end=b"").start(request.receive)
        return await unless_gone(request.receive, _whole(generation, message))

    async def _count(self, request: Request) -> Response:
        """Count the input tokens of a conversation."""
        call = await self._models.read(request, read, counting=True)
        generation = await prepare(self._models, call, count=True)
        generation.served.need_tokenizer()
        return json_response({"input_tokens": generation.prompt_tokens})


async def _whole(generation: Generation, message: Message) -> Response:
    await generation.finish()
    return json_response(message.whole(generation.used))


async def _events(generation: Generation, message: Message) -> AsyncGenerator[list[Event], None]:
    events = [message.start(generation.prompt_tokens)]
    async with contextlib.aclosing(generation.steps()) as steps:
        async for outputs in steps:
            for output in outputs:
                events += message.add(generation.add(output)[1])
            if events:
                yield events
            events = []
    yield [*message.end(generation.usage())]
