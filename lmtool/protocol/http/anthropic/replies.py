"""The events of one message, in order, and the message that they add up to."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lmtool.core.tool_arguments import arguments_object
from lmtool.protocol.http.anthropic.thinking_blocks import block_of, blocks_of, own_signature

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from lmtool.core.types import Usage
    from lmtool.protocol.http.answers import Answer
    from lmtool.protocol.http.http import Event
    from lmtool.protocol.http.requests import Call
    from lmtool.protocol.http.tools.deltas import Delta


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
