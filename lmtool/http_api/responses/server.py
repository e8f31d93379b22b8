"""The routes of the Responses API."""

from __future__ import annotations

import contextlib
import json
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response

from lmtool.http_api.errors import ApiError
from lmtool.http_api.generation import Generation, Served
from lmtool.http_api.http import asked, server_sent, unless_gone
from lmtool.http_api.requests import MOST_LOGPROBS
from lmtool.http_api.responses import events
from lmtool.http_api.responses.requests import Ask, read
from lmtool.http_api.responses.store import Kept, Store
from lmtool.types import ChatMessage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from starlette.requests import Request

    from lmtool.prompt_limits import LimitsByModel


class ResponsesRoutes:
    """Answers `/responses`, and remembers what it answered."""

    def __init__(
        self,
        served: Callable[[str | None], Awaitable[Served]],
        limits: Callable[[], LimitsByModel] = dict,
        store: Store | None = None,
        most_logprobs: int = MOST_LOGPROBS,
    ) -> None:
        """served: the model of a name; raises `UnknownModelError`. limits: of the models' prompts.

        most_logprobs: alternatives beside a token.
        """
        self._served = served
        self._limits = limits
        self._most_logprobs = most_logprobs
        self._store = Store() if store is None else store

    def handlers(self) -> list[tuple[str, str, Callable[[Request], Any]]]:
        """Method, path and handler each."""
        return [
            ("POST", "/responses", self._create),
            ("GET", "/responses/{number}", self._retrieve),
            ("DELETE", "/responses/{number}", self._delete),
            ("GET", "/responses/{number}/input_items", self._input_items),
        ]

    async def _create(self, request: Request) -> Response:
        ask = await asked(request, partial(read, most_logprobs=self._most_logprobs), self._limits())
        if ask.previous is not None:
            ask = ask.behind(self._store.get(ask.previous).turns)
        generation = Generation(await self._served(ask.call.model), ask.call)
        await generation.start()
        said = self._events(generation, ask)
        if ask.call.stream:
            return await server_sent(said, named=True, end="")
        return await unless_gone(request, _last(said))

    async def _events(self, generation: Generation, ask: Ask) -> AsyncGenerator[dict[str, Any], None]:
        served = generation.served
        response = events.Response(generation.answers[0], served.info.model, ask.told, served.spelling)
        async with contextlib.aclosing(generation.deltas()) as deltas:
            first = True
            try:
                async for _, output, added in deltas:
                    if first:  # from now on an error is an event
                        for event in response.start():
                            yield event
                    first = False
                    for event in response.add(output, added):
                        yield event
            except ApiError as error:
                if first or not ask.call.stream:
                    raise
                yield response.failed(error)
                return
        for event in response.end(generation.usage()):
            if ask.store and "response" in event:
                self._keep(generation, ask, event["response"])
            yield event

    def _keep(self, generation: Generation, ask: Ask, response: dict[str, Any]) -> None:
        answer = generation.answers[0]
        calls = tuple(call.whole for call in answer.calls)
        said = ChatMessage("assistant", answer.text, calls)
        self._store.put(Kept(response, (*ask.turns, said), ask.items))

    async def _retrieve(self, request: Request) -> Response:
        return JSONResponse(self._store.get(request.path_params["number"]).response)

    async def _delete(self, request: Request) -> Response:
        number = request.path_params["number"]
        self._store.delete(number)
        return JSONResponse({"id": number, "object": "response", "deleted": True})

    async def _input_items(self, request: Request) -> Response:
        items = json.loads(self._store.get(request.path_params["number"]).items)
        numbered = [{"id": f"item_{at}", **item} for at, item in enumerate(items)]
        ends = {"first_id": numbered[0]["id"], "last_id": numbered[-1]["id"]} if numbered else {}
        return JSONResponse({"object": "list", "data": numbered, "has_more": False, **ends})


async def _last(said: AsyncGenerator[dict[str, Any], None]) -> Response:
    """The whole response, which the last event holds."""
    event: dict[str, Any] = {}
    async with contextlib.aclosing(said):
        async for one in said:
            event = one
    return JSONResponse(event["response"])
