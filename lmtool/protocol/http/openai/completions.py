"""Completions of texts and of chats: whole ones, and the events of streamed ones."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from lmtool.protocol.http.openai.replies import (
    answer_logprobs,
    prompt_logprobs,
    text_length,
    text_logprobs,
    usage_object,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from lmtool.core.types import TokenOutput
    from lmtool.protocol.http.answers import Answer
    from lmtool.protocol.http.generation import Generation
    from lmtool.protocol.http.http import Event
    from lmtool.protocol.http.openai.replies import Reply


async def whole(generation: Generation, reply: Reply) -> dict[str, Any]:
    """The answer in one piece. Raises `ApiError`."""
    call, tokenizer = generation.call, generation.served.tokenizer
    echoes = []
    if call.echo:
        echoes = [await generation.scored(prompt, call.logprobs) for prompt in generation.echoed]
    shown = (
        [await _shown(generation, at) for at in range(len(call.prompts))] if call.prompt_logprobs is not None else []
    )
    await generation.finish()
    for at, answer in enumerate(generation.answers):
        if call.echo:
            text, scored = echoes[at // call.n]
            answer.text, answer.outputs = text + answer.text, [*scored, *answer.outputs]
    reply_object = reply.whole(generation.answers, generation.used, tokenizer)
    if shown and reply.route == "chat":
        reply_object["prompt_logprobs"] = shown[0]
    elif shown:
        for at, choice in enumerate(reply_object["choices"]):
            choice["prompt_logprobs"] = shown[at // call.n]
    return reply_object


async def _shown(generation: Generation, at: int) -> list[dict[str, Any] | None]:
    """The logprobs of one prompt's tokens."""
    wanted = generation.call.prompt_logprobs
    assert wanted is not None
    _, scored = await generation.scored(generation.prompts[at], wanted)
    return prompt_logprobs(scored, generation.served.need_tokenizer(), wanted)


async def events(generation: Generation, reply: Reply) -> AsyncGenerator[list[Event], None]:
    """The chunks of a streamed answer, those of one step together. Raises `ApiError`."""
    call = generation.call
    logprobs = [_Logprobs(generation, reply, answer) for answer in generation.answers]
    if call.echo:
        for at, answer in enumerate(generation.answers):
            text, scored = await generation.scored(generation.echoed[at // call.n], call.logprobs)
            yield [reply.echo(answer.index, text, logprobs[at].of(scored))]
    started: set[int] = set()
    begins = reply.route == "chat" or reply.prompt_ids is not None
    async with contextlib.aclosing(generation.steps()) as steps:
        async for outputs in steps:
            chunks: list[Event] = []
            for output in outputs:
                answer, deltas = generation.add(output)
                if begins and answer.index not in started:
                    started.add(answer.index)
                    chunks.append(reply.start(answer.index))
                ids = () if reply.prompt_ids is None or output.token is None else (output.token,)
                added = reply.chunks(answer, deltas, logprobs[answer.index].of([output]), ids)
                if call.continuous_usage:
                    for chunk in added:
                        chunk["usage"] = usage_object(generation.usage())
                chunks += added
            if chunks:
                yield chunks
    if call.include_usage:
        yield [reply.usage(generation.usage())]


class _Logprobs:
    """The logprobs of one streamed answer, where requested."""

    def __init__(self, generation: Generation, reply: Reply, answer: Answer) -> None:
        self._wanted = generation.call.logprobs
        self._tokenizer = generation.served.tokenizer
        self._chat = reply.route == "chat"
        self._as_ids = reply.tokens_as_ids
        self._answer = answer
        self._offset = 0

    def of(self, outputs: list[TokenOutput]) -> dict[str, Any] | None:
        """Logprobs of these tokens in the route's JSON shape, or None if not requested."""
        outputs = [output for output in outputs if output.token is not None or output.named_tokens]
        if self._wanted is None or not outputs:
            return None
        if self._chat:
            if not self._answer.shows_reasoning and all(output.reasoning is not None for output in outputs):
                return None
            return answer_logprobs(self._answer, outputs, self._tokenizer, as_ids=self._as_ids)
        if self._tokenizer is None:
            return None
        logprobs = text_logprobs(outputs, self._tokenizer, self._wanted, self._offset, as_ids=self._as_ids)
        self._offset += text_length(outputs, self._tokenizer)
        return logprobs
