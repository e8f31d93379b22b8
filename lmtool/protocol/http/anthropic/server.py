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
"""Kinds of blocks that are not a call; a call's block has the call's index."""
_STOP_REASONS = {"length": "max_tokens", "content_filter": "refusal"}


@dataclass(slots=True)
class Message:
    """Writes one message: whole, or as events of a stream."""

    answer: Answer
    call: Call
    model: str
    eos: Collection[int] = ()
    """End-of-sequence token ids."""
    prompt_ids: Sequence[int] | None = None
    """Token ids of the prompt, if the request asks for ids."""
    id: str = field(default_factory=lambda: f"msg_{uuid.uuid4().hex}")
    _blocks: int = 0
    """Number of completed content blocks."""
    _open: int | None = None
    """Kind of the open block: index of a call, or a constant above; None: no open block."""
    _thought: str = ""
    """Text of the open thinking block."""

    def start(self, prompt_tokens: int) -> Event:
        """The first event. prompt_tokens: number of prompt tokens, if known before generation."""
        usage = {"input_tokens": prompt_tokens, "output_tokens": 0}
        empty = self._head() | {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        ids = {} if self.prompt_ids is None else {"prompt_token_ids": self.prompt_ids}
        return {"type": "message_start", "message": empty | ids}

    def add(self, added: Sequence[Delta]) -> Iterator[Event]:
        """Events for the deltas of one output."""
        for at, event in enumerate([*self._added(added), *self._signed()]):
            yield event if at else event | self.answer.seam_field

    def _signed(self) -> Iterator[Event]:
        """Events for the signature in the last output: end of the thinking block, or a redacted block."""
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
        """Events that close the open block and start another."""
        yield from self._close()
        self._open, self._thought = kind, ""
        block: dict[str, Any] = {"type": "text", "text": ""}
        if kind == _THINKING:
            block = {"type": "thinking", "thinking": "", "signature": ""}
        elif kind != _TEXT:
            call = self.answer.calls[kind]
            block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
        yield {"type": "content_block_start", "index": self._blocks, "content_block": block}

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
        """The last events."""
        yield from self._close()
        yield {
            "type": "message_delta",
            "delta": self._ending,
            "usage": usage_object(usage),
            **self._warned(),
            **({} if self.prompt_ids is None else {"token_ids": self.answer.token_ids}),
            **self.answer.seam_field,
        }
        yield {"type": "message_stop"}

    def whole(self, usage: Usage) -> dict[str, Any]:
        """The whole message."""
        content = list(blocks_of(self.answer.reasoning, self.answer.signed_thoughts))
        if self.answer.text or not (self.answer.calls or (self.answer.reasoning and self.answer.ended == "length")):
            content.append({"type": "text", "text": self.answer.text})
        content += [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments_object(call.arguments)}
            for call in self.answer.calls
        ]
        message = self._head() | {"content": content, **self._ending, "usage": usage_object(usage), **self._warned()}
        if self.prompt_ids is None:
            return message
        return message | {"prompt_token_ids": self.prompt_ids, "token_ids": self.answer.token_ids}

    @property
    def stop_reason(self) -> str:
        """Stop reason in Anthropic's terms."""
        if self.answer.ended in _STOP_REASONS:
            return _STOP_REASONS[self.answer.ended]
        if self.answer.calls:
            return "tool_use"
        # A remote model may not report the stop sequence; then the last token decides.
        stops, outputs = self.call.sampling.stop, self.answer.outputs
        by_sequence = self.answer.stopped_by is not None or (stops and outputs and outputs[-1].token not in self.eos)
        return "stop_sequence" if by_sequence else "end_turn"

    @property
    def _ending(self) -> dict[str, object]:
        sequence, reason = None, self.stop_reason
        if reason == "stop_sequence":
            stops, stopped_by = self.call.sampling.stop, self.answer.stopped_by
            sequence = stopped_by if isinstance(stopped_by, str) else stops[0] if len(stops) == 1 else None
        return {"stop_reason": reason, "stop_sequence": sequence}

    def _head(self) -> dict[str, Any]:
        return {"id": self.id, "type": "message", "role": "assistant", "model": self.model}

    def _warned(self) -> dict[str, Any]:
        return {"warnings": list(self.answer.warnings)} if self.answer.warnings else {}

    def _delta(self, delta: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": self._blocks, "delta": delta}

    def _close(self, signature: str = "") -> Iterator[Event]:
        """Events that close the open block, if any. signature: of a thought signed by another API."""
        if self._open == _THINKING:
            signature = signature or own_signature(self._thought)
            yield self._delta({"type": "signature_delta", "signature": signature})
        if self._open is not None:
            yield {"type": "content_block_stop", "index": self._blocks}
            self._blocks += 1
            self._open = None


def usage_object(usage: Usage) -> dict[str, int]:
    """Token counts; cached prompt tokens do not count as input tokens."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


class MessagesRoutes:
    """Serves `/messages`."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def endpoints(self) -> list[Endpoint]:
        """Routes of this API."""
        return [
            Endpoint("POST", "/messages", self._create, MessagesRequest),
            Endpoint("POST", "/messages/count_tokens", self._count, MessagesRequest),
        ]

    @staticmethod
    def refusal(error: ApiError) -> Response:
        """Response for an error, in Anthropic's form."""
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
        await unless_gone(request.receive, generation.finish())
        return json_response(message.whole(generation.used))

    async def _count(self, request: Request) -> Response:
        """Count the input tokens of a conversation."""
        call = await self._models.read(request, read, counting=True)
        generation = await prepare(self._models, call, count=True)
        generation.served.need_tokenizer()
        return json_response({"input_tokens": generation.prompt_tokens})


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
