"""Completions of texts and of chats: whole ones, and the events of streamed ones."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from lmtool.http_api.replies import Pieces, chat_logprobs, prompt_logprobs, text_logprobs, usage_object

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from lmtool.http_api.answers import Answer
    from lmtool.http_api.generation import Generation
    from lmtool.http_api.replies import Reply
    from lmtool.types import TokenOutput


async def whole(generation: Generation, reply: Reply) -> dict[str, Any]:
    """The answer in one piece. Raises `ApiError`."""
    call, pieces = generation.call, generation.served.spelling
    echoes = []
    if call.echo:
        echoes = [await generation.scored(prompt, call.logprobs) for prompt in call.prompts]
    shown = (
        [await _shown(generation, at) for at in range(len(call.prompts))] if call.prompt_logprobs is not None else []
    )
    await generation.finish()
    for at, answer in enumerate(generation.answers):
        if call.echo:
            text, scored = echoes[at // call.n]
            answer.text, answer.outputs = text + answer.text, [*scored, *answer.outputs]
    told = reply.whole(generation.answers, generation.used, pieces)
    if shown and reply.route == "chat":
        told["prompt_logprobs"] = shown[0]
    elif shown:
        for at, choice in enumerate(told["choices"]):
            choice["prompt_logprobs"] = shown[at // call.n]
    return told


async def _shown(generation: Generation, at: int) -> list[dict[str, Any] | None]:
    """The logprobs of one prompt's tokens."""
    wanted = generation.call.prompt_logprobs
    assert wanted is not None
    _, scored = await generation.scored(generation.prompts[at], wanted)
    return prompt_logprobs(scored, generation.served.spelt(), wanted)


async def events(generation: Generation, reply: Reply) -> AsyncGenerator[dict[str, Any], None]:
    """The pieces of a streamed answer. Raises `ApiError`."""
    call = generation.call
    tellers = [_Logprobs(generation, reply, answer) for answer in generation.answers]
    if call.echo:
        for at, answer in enumerate(generation.answers):
            text, scored = await generation.scored(call.prompts[at // call.n], call.logprobs)
            yield reply.echo(answer.index, text, tellers[at].told(scored))
    begun: set[int] = set()
    async with contextlib.aclosing(generation.deltas()) as deltas:
        async for answer, output, added in deltas:
            if reply.route == "chat" and answer.index not in begun:
                begun.add(answer.index)
                yield reply.start(answer.index)
            told = tellers[answer.index].told([output] if output.token is not None else [])
            for piece in reply.pieces(answer, added, told):
                yield piece | {"usage": usage_object(generation.usage())} if call.continuous_usage else piece
    if call.include_usage:
        yield reply.usage(generation.usage())


class _Logprobs:
    """The logprobs of one streamed answer, where they are wanted."""

    def __init__(self, generation: Generation, reply: Reply, answer: Answer) -> None:
        self._wanted = generation.call.logprobs
        self._pieces: Pieces | None = generation.served.spelling
        self._chat = reply.route == "chat"
        self._answer = answer
        self._offset = 0

    def told(self, outputs: list[TokenOutput]) -> dict[str, Any] | None:
        """Of these tokens, in the route's form; None where none are wanted, or there are none."""
        if self._wanted is None or self._pieces is None or not outputs:
            return None
        if self._chat:
            return chat_logprobs(outputs, self._pieces, self._wanted)
        told = text_logprobs(outputs, self._pieces, self._wanted, self._offset)
        self._offset += sum(len(token) for token in told["tokens"])
        return told
