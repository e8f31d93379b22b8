"""Calls of our own models: in this process, or behind LMTP. They take what OpenAI's route takes."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from lmtool.errors import LmtoolError
from lmtool.gateway.backend import CallFailedError, Reply
from lmtool.http_api import errors
from lmtool.http_api.errors import ApiError
from lmtool.http_api.generation import Generation
from lmtool.http_api.models import ApiConfig, Models
from lmtool.http_api.openai import requests
from lmtool.http_api.openai.replies import chat_logprobs
from lmtool.providers.answer_events import ChoiceFinished, ChunkToken, TextDelta, TokenUsage, ToolCallDelta, piece_of
from lmtool.providers.chat_request import UNIFIED_PARAMETERS
from lmtool.providers.openai_completions import write_chat
from lmtool.providers.outcomes import CONTEXT_TOO_LONG, NO_CONNECTION, TIMEOUT
from lmtool.routing.outcomes import OVERLOADED, Outcome

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from lmtool.gateway.config import MemberConfig
    from lmtool.gateway.pool_request import PoolRequest
    from lmtool.http_api.requests import Call
    from lmtool.interfaces import TokenModel
    from lmtool.lmtp.client import LmtpClient
    from lmtool.providers.answer_events import AnswerEvent
    from lmtool.types import TokenOutput

_OUTCOMES = {
    "context_length_exceeded": CONTEXT_TOO_LONG,
    "overloaded": OVERLOADED,
    "access_denied": Outcome("key_refused", "key refused"),
    "connection": NO_CONNECTION,
    "timeout": TIMEOUT,
}
"""By the code of the error; others by the status."""


class ModelBackend:
    """A member that is a `TokenModel`."""

    def __init__(self, config: MemberConfig, model: TokenModel, client: LmtpClient | None = None) -> None:
        """client: closed with this, where the model is a connection of its own."""
        self._config = config
        self._models = Models(model, ApiConfig())
        self._client = client

    def lacks(self, request: PoolRequest) -> Sequence[str]:
        """Several choices, images and sounds."""
        several = ["n above 1"] if request.chat.parameters.get("n", 1) != 1 else []
        return [*several, *request.chat.media]

    async def close(self) -> None:
        """Close its connection."""
        if self._client is not None:
            await self._client.close()

    async def answer(self, request: PoolRequest, reply: Reply) -> AsyncGenerator[list[AnswerEvent], None]:
        """See `Backend.answer`."""
        timeouts, loop = self._config.timeouts, asyncio.get_running_loop()
        stream, began = request.chat.stream, loop.time()
        first = timeouts.first_token if stream and timeouts.first_token is not None else timeouts.total
        deadline, collected = began + min(first, timeouts.total), []
        try:
            async with asyncio.timeout_at(deadline):
                generation = await self._started(request)
            reply.model = generation.served.info.model
            async with contextlib.aclosing(generation.steps()) as steps:
                while True:
                    async with asyncio.timeout_at(deadline):
                        outputs = await anext(steps, None)
                    if outputs is None:
                        break
                    deadline = began + timeouts.total
                    events = [event for output in outputs for event in _events(generation, output)]
                    if stream and events:
                        yield events
                    else:
                        collected += events
            yield [*collected, *_usage(generation)]
        except TimeoutError:
            raise CallFailedError(TIMEOUT) from None
        except (ApiError, LmtoolError) as error:
            raise CallFailedError(_outcome(error)) from None

    async def _started(self, request: PoolRequest) -> Generation:
        """The streams of the request, which nothing has been sent of yet."""
        served = await self._models.served(self._config.model)
        generation = Generation(served, self._call(request))
        await generation.start()
        return generation

    def _call(self, request: PoolRequest) -> Call:
        """The request as OpenAI's route would have it."""
        chat = replace(request.of(self._config), stream=False)
        spelled = {UNIFIED_PARAMETERS.get(name, name): value for name, value in chat.parameters.items()}
        call = requests.chat(write_chat(chat, self._config.model or "", spelled))
        if call.tools is not None and call.tools.forced:
            return replace(call, model=self._config.model)
        return replace(call, model=self._config.model, constraint=request.constraint)


def _events(generation: Generation, output: TokenOutput) -> list[AnswerEvent]:
    """What one more output adds."""
    answer, deltas = generation.add(output)
    tokens = _tokens(generation, output)
    events: list[AnswerEvent] = []
    for delta in deltas:
        if delta.call is None:
            events.append(TextDelta(0, delta.text, tokens))
            tokens = ()
        else:
            number = answer.calls[delta.call].id if delta.name is not None else None
            events.append(ToolCallDelta(0, delta.call, number, delta.name, delta.arguments))
    if tokens:
        events.append(TextDelta(0, "", tokens))
    if answer.finish_reason is not None:
        stopped_by = answer.stopped_by if isinstance(answer.stopped_by, str) else None
        events.append(ChoiceFinished(0, answer.finish_reason, stopped_by))
    return events


def _tokens(generation: Generation, output: TokenOutput) -> tuple[ChunkToken, ...]:
    wanted = generation.call.logprobs
    if wanted is None or (output.token is None and not output.named_tokens):
        return ()
    entries = chat_logprobs([output], generation.served.tokenizer, wanted)["content"]
    return tuple(
        ChunkToken(piece_of(entry["token"], entry["bytes"]), entry["logprob"], entry["top_logprobs"])
        for entry in entries
    )


def _usage(generation: Generation) -> list[AnswerEvent]:
    usage = generation.usage()
    return [TokenUsage(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens)]


def _outcome(error: ApiError | LmtoolError) -> Outcome:
    """How the call failed, in our words."""
    found = error if isinstance(error, ApiError) else errors.from_error(error)
    code = error.code if isinstance(error, LmtoolError) else found.code
    known = _OUTCOMES.get(found.code or "") or _OUTCOMES.get(code or "")
    if known is not None:
        return known
    if found.status < 500:
        return Outcome("refused", f"refused ({found.code or found.status})")
    return Outcome("fault", f"status {found.status}")
