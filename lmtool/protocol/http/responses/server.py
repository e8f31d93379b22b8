"""Routes of OpenAI's Responses API, and the store of responses that later requests continue."""

from __future__ import annotations

import contextlib
import json
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from lmtool.core.signed_message import SignedMessage
from lmtool.core.types import ChatMessage
from lmtool.net.access.caller import caller_name
from lmtool.net.subprocesses.offload import is_long, run_in_subprocess
from lmtool.protocol.http.errors import ApiError
from lmtool.protocol.http.generation import prepare
from lmtool.protocol.http.http import Endpoint, EventStream, json_response, unless_gone
from lmtool.protocol.http.requests import MAX_LOGPROBS
from lmtool.protocol.http.responses.replies import Response as Reply
from lmtool.protocol.http.responses.requests import ResponsesCall, ResponsesRequest, read, resolve

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from lmtool.protocol.http.generation import Generation
    from lmtool.protocol.http.http import Event
    from lmtool.protocol.http.models import Models


MAX_RESPONSES = 1000
MAX_BYTES = 64 << 20
"""Most bytes of all stored responses and conversations."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A stored response with its conversation."""

    response: Mapping[str, Any]
    turns: tuple[ChatMessage, ...]
    """Conversation up to the response, without instructions."""
    items: str
    """JSON text of the request's items."""

    @property
    def size(self) -> int:
        """Estimated size in bytes."""
        characters = sum(
            len(turn.content) + sum(len(call.arguments) for call in turn.tool_calls) for turn in self.turns
        )
        return characters + len(self.items) + len(json.dumps(self.response, default=dict))


class Store:
    """Least recently used cache of responses by id, separate for each API key."""

    def __init__(self, most: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self._responses: OrderedDict[tuple[str, str], tuple[StoredResponse, int]] = OrderedDict()
        self._most = most
        self._max_bytes = max_bytes
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._responses)

    @property
    def memory_bytes(self) -> int:
        """Estimated bytes of all responses."""
        return self._bytes

    def put(self, stored: StoredResponse) -> None:
        """Store a response, unless it exceeds the limit of the whole store."""
        size = stored.size
        self._responses[caller_name(), stored.response["id"]] = (stored, size)
        self._bytes += size
        while self._responses and (len(self._responses) > self._most or self._bytes > self._max_bytes):
            _, (_, freed) = self._responses.popitem(last=False)
            self._bytes -= freed

    def get(self, number: str) -> StoredResponse:
        """Response with this id. Raises `ApiError` 404."""
        try:
            stored, _ = self._responses[caller_name(), number]
            self._responses.move_to_end((caller_name(), number))
        except KeyError:
            raise _unknown(number) from None
        return stored

    def items(self, ids: Sequence[str]) -> dict[str, Mapping[str, Any]]:
        """Items with these ids in the caller's stored responses. Raises `ApiError` 404."""
        wanted_ids = set(ids)
        items: dict[str, Mapping[str, Any]] = {}
        for (caller, _), (stored, _) in reversed(self._responses.items()):
            if caller == caller_name():
                items |= {item["id"]: item for item in stored.response["output"] if item["id"] in wanted_ids}
            if len(items) == len(wanted_ids):
                return items
        missing = next(number for number in ids if number not in items)
        raise ApiError(
            404,
            f"no item {missing[:80]!r} of an answer is kept here: send the item itself, or store: true for its answer",
            param="input",
            code="item_not_found",
        )

    def delete(self, number: str) -> None:
        """Delete a response. Raises `ApiError` 404."""
        if (caller_name(), number) not in self._responses:
            raise _unknown(number)
        _, size = self._responses.pop((caller_name(), number))
        self._bytes -= size


def _unknown(number: str) -> ApiError:
    return ApiError(
        404,
        f"no response {number[:80]!r} is kept here: send store: true, and the whole conversation where it is long ago",
        param="previous_response_id",
        code="previous_response_not_found",
    )


class ResponsesRoutes:
    """Serves `/responses`, and stores the responses."""

    def __init__(self, models: Models, max_logprobs: int = MAX_LOGPROBS) -> None:
        """max_logprobs: most alternatives per token."""
        self._models = models
        self._max_logprobs = max_logprobs
        self.store = Store()
        """Responses that later requests may continue."""

    def endpoints(self) -> list[Endpoint]:
        """Routes of this API."""
        return [
            Endpoint("POST", "/responses", self._create, ResponsesRequest),
            Endpoint("GET", "/responses/{number}", self._retrieve),
            Endpoint("DELETE", "/responses/{number}", self._delete),
            Endpoint("GET", "/responses/{number}/input_items", self._input_items),
        ]

    async def _create(self, request: Request) -> Response:
        """Answer an input, or continue a stored response (OpenAI's Responses API)."""
        ask = await self._models.read(request, read, max_logprobs=self._max_logprobs)
        if ask.references:
            resolve_items = partial(resolve, self.store.items(ask.references))
            is_offloaded = is_long(ask.items)
            resolved = await run_in_subprocess(resolve_items, ask.items) if is_offloaded else resolve_items(ask.items)
            ask = ask.with_turns(*resolved)
        if ask.previous is not None:
            ask = ask.with_turns((*self.store.get(ask.previous).turns, *ask.turns))
        generation = await prepare(self._models, ask.call)
        steps = self._events(generation, ask)
        if ask.call.stream:
            return await EventStream(steps, named=True, end=b"").start(request.receive)
        return await unless_gone(request.receive, _last(steps))

    async def _events(self, generation: Generation, ask: ResponsesCall) -> AsyncGenerator[list[Event], None]:
        served = generation.served
        sampling = generation.call.sampling
        repeated = {**ask.repeated, "temperature": sampling.temperature, "top_p": sampling.top_p}
        response = Reply(generation.answers[0], served.info.model, repeated, served.tokenizer)
        response.tokens_as_ids = ask.call.tokens_as_ids
        if generation.prompt_ids is not None:
            [response.prompt_ids] = generation.prompt_ids
        if ask.call.request_id:
            response.id = f"resp_{ask.call.request_id}"
        first = [*response.start()]
        async with contextlib.aclosing(generation.steps()) as steps:
            try:
                async for outputs in steps:
                    added = [event for one in outputs for event in response.add(one, generation.add(one)[1])]
                    if first or added:
                        yield first + added
                    first = []  # later errors are sent as events
            except ApiError as error:
                if first or not ask.call.stream:
                    raise
                yield [response.failed(error)]
                return
        last = [*response.end(generation.usage())]
        if ask.store:
            self._keep(generation, ask, last[-1]["response"])
        yield last

    def _keep(self, generation: Generation, ask: ResponsesCall, response: dict[str, Any]) -> None:
        answer = generation.answers[0]
        turn = ChatMessage("assistant", answer.text, tuple(answer.calls), reasoning=answer.reasoning)
        turn = SignedMessage.of(turn, answer.signed_thoughts)
        if ask.call.return_token_ids:  # the next request continues after exactly these ids
            turn = ChatMessage("assistant", answer.text, tokens=tuple(answer.token_ids))
        self.store.put(StoredResponse(response, (*ask.turns, turn), ask.items))

    async def _retrieve(self, request: Request) -> Response:
        """A stored response."""
        return json_response(self.store.get(request.path_params["number"]).response)

    async def _delete(self, request: Request) -> Response:
        """Delete a stored response."""
        number = request.path_params["number"]
        self.store.delete(number)
        return json_response({"id": number, "object": "response", "deleted": True})

    async def _input_items(self, request: Request) -> Response:
        """The input of a stored response."""
        items = json.loads(self.store.get(request.path_params["number"]).items)
        numbered = [{"id": f"item_{at}", **item} for at, item in enumerate(items)]
        ends = {"first_id": numbered[0]["id"], "last_id": numbered[-1]["id"]} if numbered else {}
        return json_response({"object": "list", "data": numbered, "has_more": False, **ends})


async def _last(steps: AsyncGenerator[list[Event], None]) -> Response:
    """The whole response, from the last event."""
    last: list[Event] = []
    async with contextlib.aclosing(steps):
        async for last in steps:  # noqa: B007  # only the last list is needed
            pass
    return json_response(last[-1]["response"])
