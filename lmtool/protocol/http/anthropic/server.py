"""Routes of Anthropic's Messages API, and the messages and events they answer with."""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from lmtool.core.tool_arguments import arguments_object
from lmtool.protocol.http.anthropic.requests import MessagesRequest, block_of, blocks_of, own_signature, read
from lmtool.protocol.http.generation import prepare
from lmtool.protocol.http.http import Endpoint, EventStream, json_response, unless_gone

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Iterator, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from lmtool.core.types import Usage
    from lmtool.protocol.http.answers import Answer
    from lmtool.protocol.http.errors import ApiError
    from lmtool.protocol.http.generation import Generation
    from lmtool.protocol.http.http import Event
    from lmtool.protocol.http.models import Models
    from lmtool.protocol.http.requests import Call
    from lmtool.protocol.http.tools.feed import Delta


_TEXT, _THINKING, _REDACTED = -1, -2, -3
"""Stand for the number of a call where a block is something else."""
_STOP_REASONS = {"length": "max_tokens", "content_filter": "refusal"}


@dataclass(slots=True)
class Message:
    """One message while it grows."""

    answer: Answer
    call: Call
    model: str
    eos: Collection[int] = ()
    """Ids that end an answer without a stop sequence."""
    prompt_ids: Sequence[int] | None = None
    """The ids of the prompt, where the request asks for those of prompt and answer."""
    id: str = field(default_factory=lambda: f"msg_{uuid.uuid4().hex}")
    _blocks: int = 0
    """Content blocks that have begun."""
    _open: int | None = None
    """What grows: the number of a call, or one of those below 0."""
    _thought: str = ""
    """Text of the block of a thought that grows."""

    def start(self, prompt_tokens: int) -> Event:
        """The first event. prompt_tokens: as far as they are known before the model has read them."""
        usage = {"input_tokens": prompt_tokens, "output_tokens": 0}
        empty = self._head() | {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        ids = {} if self.prompt_ids is None else {"prompt_token_ids": self.prompt_ids}
        return {"type": "message_start", "message": empty | ids}

    def add(self, added: Sequence[Delta]) -> Iterator[Event]:
        """The events for what one more output added."""
        for at, event in enumerate([*self._added(added), *self._signed()]):
            yield event if at else event | self.answer.seam_field

    def _signed(self) -> Iterator[Event]:
        """The end of the thought that the last output has signed, or a block that stands for one."""
        signature = self.answer.new_signature
        if signature is None:
            return
        if signature.is_redacted:
            yield from self._close()
            block = block_of(self.answer.signed_thoughts[-1])
            yield {"type": "content_block_start", "index": self._blocks, "content_block": block}
            self._open = _REDACTED
        elif self._open != _THINKING:
            yield from self._begin(_THINKING)
        yield from self._close(signature.value)

    def _begin(self, kind: int) -> Iterator[Event]:
        """End the block that grows, and begin one."""
        yield from self._close()
        self._open, self._thought = kind, ""
        yield {"type": "content_block_start", "index": self._blocks, "content_block": self._begun(kind)}

    def _added(self, added: Sequence[Delta]) -> Iterator[Event]:
        for delta in added:
            kind = _THINKING if delta.reasoning else _TEXT if delta.call is None else delta.call
            if self._open != kind:
                yield from self._begin(kind)
            if delta.reasoning:
                self._thought += delta.reasoning
                yield self._delta({"type": "thinking_delta", "thinking": delta.reasoning})
            elif delta.call is None:
                yield self._delta({"type": "text_delta", "text": delta.text})
            elif delta.arguments:
                yield self._delta({"type": "input_json_delta", "partial_json": delta.arguments})

    def end(self, usage: Usage) -> Iterator[Event]:
        """The events at the end."""
        yield from self._close()
        ending = {"stop_reason": self.stop_reason, "stop_sequence": self._stop_sequence}
        yield {
            "type": "message_delta",
            "delta": ending,
            "usage": usage_object(usage),
            **self._warned(),
            **({} if self.prompt_ids is None else {"token_ids": self.answer.token_ids}),
            **self.answer.seam_field,
        }
        yield {"type": "message_stop"}

    def whole(self, usage: Usage) -> dict[str, Any]:
        """The message in one piece."""
        content = list(blocks_of(self.answer.reasoning, self.answer.signed_thoughts))
        if self.answer.text or not (self.answer.calls or (self.answer.reasoning and self.answer.ended == "length")):
            content.append({"type": "text", "text": self.answer.text})
        content += [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments_object(call.arguments)}
            for call in self.answer.calls
        ]
        ending = {"stop_reason": self.stop_reason, "stop_sequence": self._stop_sequence}
        message = self._head() | {"content": content, **ending, "usage": usage_object(usage), **self._warned()}
        if self.prompt_ids is None:
            return message
        return message | {"prompt_token_ids": self.prompt_ids, "token_ids": self.answer.token_ids}

    @property
    def stop_reason(self) -> str:
        """In Anthropic's words."""
        if self.answer.ended in _STOP_REASONS:
            return _STOP_REASONS[self.answer.ended]
        if self.answer.calls:
            return "tool_use"
        return "stop_sequence" if self._cut else "end_turn"

    @property
    def _cut(self) -> bool:
        """Whether a stop sequence ended the answer; a model elsewhere may not say so, and then its last token tells."""
        if self.answer.stopped_by is not None:
            return True
        stops, outputs = self.call.sampling.stop, self.answer.outputs
        return bool(stops and outputs and outputs[-1].token not in self.eos)

    @property
    def _stop_sequence(self) -> str | None:
        if self.stop_reason != "stop_sequence":
            return None
        stops = self.call.sampling.stop
        stopped_by = self.answer.stopped_by
        return stopped_by if isinstance(stopped_by, str) else stops[0] if len(stops) == 1 else None

    def _head(self) -> dict[str, Any]:
        return {"id": self.id, "type": "message", "role": "assistant", "model": self.model}

    def _warned(self) -> dict[str, Any]:
        return {"warnings": list(self.answer.warnings)} if self.answer.warnings else {}

    def _begun(self, kind: int) -> dict[str, Any]:
        if kind == _TEXT:
            return {"type": "text", "text": ""}
        if kind == _THINKING:
            return {"type": "thinking", "thinking": "", "signature": ""}
        call = self.answer.calls[kind]
        return {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}

    def _delta(self, delta: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": self._blocks, "delta": delta}

    def _close(self, signature: str = "") -> Iterator[Event]:
        """End the block that grows. signature: of a thought, where it is not ours."""
        if self._open == _THINKING:
            signature = signature or own_signature(self._thought)
            yield self._delta({"type": "signature_delta", "signature": signature})
        if self._open is not None:
            yield {"type": "content_block_stop", "index": self._blocks}
            self._blocks += 1
            self._open = None


def usage_object(usage: Usage) -> dict[str, int]:
    """Token counts; what was reused of a prompt does not count as input a second time."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


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
