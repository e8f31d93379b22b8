"""State of one answer during generation: text, calls, tokens, and finish reason."""

from __future__ import annotations

import uuid
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lmtool.core.reasoning import SignedThought
from lmtool.core.types import ToolCall, Usage
from lmtool.protocol.http.tools.feed import Delta, Plain, Reader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.core.reasoning import ThoughtSignature
    from lmtool.core.seam import Seam
    from lmtool.core.types import TokenOutput


@dataclass(slots=True)
class Answer:
    """One choice during generation."""

    index: int
    logprobs: int | None
    """Alternatives requested per token; None: no logprobs."""
    reader: Reader = field(default_factory=Plain)
    """Separates calls from text."""
    marks: Mapping[int, str] = field(default_factory=dict)
    """Texts by id of special tokens that the reader needs, because they do not appear in the text."""
    id_length: int | None = None
    """Length of call ids that the model's templates require; None: any."""
    max_calls: int | None = None
    """Most calls; later ones are dropped. None: no limit."""
    include_stop: bool = False
    """True if the text contains the stop string that ends it."""
    shows_reasoning: bool = True
    """True if the answer contains the thought."""
    reasoning: str = ""
    """Text of the thought."""
    signed_thoughts: list[SignedThought] = field(default_factory=list)
    """Parts of the thought that a pool member's API signed."""
    text: str = ""
    """Text without calls."""
    calls: list[ToolCall] = field(default_factory=list)
    outputs: list[TokenOutput] = field(default_factory=list)
    """Outputs with a token."""
    token_ids: list[int] = field(default_factory=list)
    """Generated token ids."""
    ended: str | None = None
    """`stop`, `length`, `content_filter` or `cancelled`."""
    usage: Usage | None = None
    warnings: tuple[str, ...] = ()
    stopped_by: str | int | None = None
    new_seam: Seam | None = None
    """Failover point, if the last output was the first one after another pool member took over."""
    new_signature: ThoughtSignature | None = None
    """Signature of the thought so far, if the last output had one."""

    @property
    def seam_field(self) -> dict[str, Any]:
        """Extra JSON fields for the first chunk after a failover; empty otherwise."""
        return {} if self.new_seam is None else {"seam": asdict(self.new_seam)}

    @property
    def finish_reason(self) -> str | None:
        """OpenAI's finish reason: `tool_calls` for an answer with calls that was not cut off."""
        return "tool_calls" if self.calls and self.ended == "stop" else self.ended

    def add(self, output: TokenOutput) -> list[Delta]:
        """Add an output; return its deltas, which may include text held back before."""
        self.new_seam = output.seam
        mark = "" if output.token is None or output.reasoning is not None else self.marks.get(output.token, "")
        text = mark + (output.text or "")
        if self.include_stop and isinstance(output.stopped_by, str):
            text += output.stopped_by
        deltas = [Delta(reasoning=output.reasoning)] if output.reasoning and self.shows_reasoning else []
        deltas += self.reader.push(text)
        deltas += [Delta("", part.index, part.name, part.arguments, part.id) for part in output.tool_calls]
        if output.token is not None or output.named_tokens:
            self.outputs.append(output)
        if output.token is not None:
            self.token_ids.append(output.token)
        if output.finish_reason is not None:
            deltas += self.reader.finish(cut=output.finish_reason != "stop")
            self.ended, self.usage, self.warnings = output.finish_reason, output.usage, output.warnings
            self.stopped_by = output.stopped_by
        if self.max_calls is not None:
            deltas = [delta for delta in deltas if delta.call is None or delta.call < self.max_calls]
        for delta in deltas:
            self.reasoning += delta.reasoning
            self.text += delta.text
            if delta.name is not None:
                self.calls.append(ToolCall(delta.id or self._new_id(), delta.name, ""))
            if delta.call is not None:
                call = self.calls[delta.call]
                self.calls[delta.call] = replace(call, arguments=call.arguments + delta.arguments)
        self.new_signature = output.signature if self.shows_reasoning else None
        if self.new_signature is not None:
            self.signed_thoughts.append(SignedThought.of(self.reasoning, self.signed_thoughts, self.new_signature))
        return deltas

    def _new_id(self) -> str:
        number = uuid.uuid4().hex
        return f"call_{number[:24]}" if self.id_length is None else number[: self.id_length]

    @property
    def mean_logprob(self) -> float:
        """Mean logprob of its tokens, in nats; `best_of` ranks by it."""
        known = [output.logprob for output in self.outputs if output.logprob is not None]
        return sum(known) / len(known) if known else float("-inf")
