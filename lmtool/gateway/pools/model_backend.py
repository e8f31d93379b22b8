"""Calls of our own models: in this process, or behind LMTP. They take what OpenAI's route takes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from lmtool.core.errors import LmtoolError
from lmtool.core.outcomes import Outcome
from lmtool.core.types import ChatPrompt
from lmtool.gateway.pools.backend import CallFailedError, Reply
from lmtool.gateway.pools.failures import outcome_of_error
from lmtool.gateway.pools.token_stream import MemberLostError, TokenStream
from lmtool.net.access.caller import salted
from lmtool.protocol.http.errors import ApiError
from lmtool.protocol.http.models import ApiConfig, Models
from lmtool.protocol.http.openai import requests
from lmtool.protocol.http.openai.replies import chat_logprobs
from lmtool.protocol.http.requests import ThoughtOptions
from lmtool.protocol.providers.answer_events import (
    ChoiceFinished,
    ChunkToken,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
    piece_of,
)
from lmtool.protocol.providers.chat_request import UNIFIED_PARAMETERS
from lmtool.protocol.providers.json_values import list_of
from lmtool.protocol.providers.openai_completions import write_chat
from lmtool.protocol.providers.outcomes import TIMEOUT

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from lmtool.core.interfaces import TokenModel
    from lmtool.core.types import TokenOutput
    from lmtool.gateway.pools.config import MemberConfig
    from lmtool.gateway.pools.pool_request import PoolRequest
    from lmtool.protocol.http.generation import Generation
    from lmtool.protocol.http.requests import Call
    from lmtool.protocol.lmtp.client import LmtpClient
    from lmtool.protocol.providers.answer_events import AnswerEvent

SAME_MODEL = Outcome("refused", "is the same model as one that refused")
OTHER_FINGERPRINT = Outcome("refused", "has another fingerprint")


class ModelBackend:
    """A member that is a `TokenModel`."""

    resumes = True

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
        timeouts, began = self._config.timeouts, asyncio.get_running_loop().time()
        whole = not request.chat.stream
        first = timeouts.total if whole or timeouts.first_token is None else timeouts.first_token
        deadline = began + min(first, timeouts.total)
        lost = False
        try:
            async with asyncio.timeout_at(deadline):
                stream = await self._stream(request, reply)
            while (outputs := await stream.take(deadline)) is not None:
                deadline = began + timeouts.total
                events = [event for output in outputs for event in _events(stream.generation, output)]
                if events and not whole:
                    yield events
                else:
                    stream.collected += events
            used = stream.generation.usage()
            counts = (used.prompt_tokens, used.completion_tokens, used.cached_tokens, used.reasoning_tokens)
            yield [*stream.collected, TokenUsage(*counts)]
        except MemberLostError as error:
            lost = True
            raise CallFailedError(error.outcome) from None
        except TimeoutError:
            lost = True
            if reply.stream is not None:
                reply.stream.leave()
            raise CallFailedError(TIMEOUT) from None
        except (ApiError, LmtoolError) as error:
            outcome = outcome_of_error(error)
            if outcome.kind == "refused" and reply.stream is not None:
                reply.refused_by = reply.stream.fingerprint
            raise CallFailedError(outcome) from None
        finally:
            if reply.stream is not None and not (lost and reply.stream.resumable):
                await reply.stream.close()
                reply.stream = None

    async def _stream(self, request: PoolRequest, reply: Reply) -> TokenStream:
        """The stream of the answer: that of another member, where this one has the same fingerprint, or a new one.

        Raises `CallFailedError` where it would have to be that one and cannot.
        """
        served = await self._models.served(self._config.model)
        reply.model = served.info.model
        if served.info.fingerprint in reply.refused:
            raise CallFailedError(SAME_MODEL)
        stream = reply.stream
        if stream is not None and stream.fingerprint == served.info.fingerprint:
            stream.go_on(served, self._config.model)
            return stream
        if stream is not None:
            if reply.must_resume:
                raise CallFailedError(OTHER_FINGERPRINT)
            await stream.close()
        reply.stream = TokenStream(served, self._call(request), reply.caller)
        await reply.stream.generation.start()
        return reply.stream

    def _call(self, request: PoolRequest) -> Call:
        """The request as OpenAI's route would have it."""
        chat = replace(request.of(self._config), stream=False)
        spelled = {UNIFIED_PARAMETERS.get(name, name): value for name, value in chat.parameters.items()}
        body = write_chat(chat, self._config.model or "", spelled)
        for turn, message in zip(list_of(body["messages"]), chat.messages, strict=True):
            if message.reasoning and isinstance(turn, dict):
                turn["reasoning_content"] = message.reasoning
        call = requests.chat(body)
        [prompt] = call.prompts
        assert isinstance(prompt, ChatPrompt)
        variables = {**prompt.chat_template_kwargs, **request.chat_template_kwargs}
        prompt = replace(prompt, prefill=chat.prefill, chat_template_kwargs=variables)
        call = replace(call, prompts=(prompt,), cache_salt=salted(""))
        if chat.thinking is not None:
            asked, demanded_by = chat.thinking, "thinking" if chat.thinking.enabled else ""
            thoughts = ThoughtOptions(asked.enabled, asked.budget, asked.effort, demanded_by=demanded_by)
            call = replace(call, thoughts=thoughts)
        if call.tools is not None and call.tools.forced:
            return replace(call, model=self._config.model)
        return replace(call, model=self._config.model, constraint=request.constraint)


def _events(generation: Generation, output: TokenOutput) -> list[AnswerEvent]:
    """What one more output adds."""
    answer, deltas = generation.add(output)
    tokens = _tokens(generation, output)
    events: list[AnswerEvent] = []
    for delta in deltas:
        if delta.reasoning:
            events.append(TextDelta(0, delta.reasoning, tokens, "reasoning"))
            tokens = ()
        elif delta.call is None:
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
