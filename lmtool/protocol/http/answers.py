"""One answer while it grows: its text, its calls, its tokens, and how it ended."""

from __future__ import annotations

import uuid
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from lmtool.core.reasoning import SignedThought
from lmtool.core.types import ToolCall, Usage
from lmtool.protocol.http.tools.feed import Delta, Plain, Reader

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lmtool.core.reasoning import ThoughtSignature
    from lmtool.core.seam import Seam
    from lmtool.core.types import TokenOutput


@dataclass(slots=True)
class Call:
    """One call of a tool while it grows."""

    id: str
    name: str
    arguments: str = ""

    @property
    def whole(self) -> ToolCall:
        """The call as a conversation goes on with it."""
        return ToolCall(self.id, self.name, self.arguments)


@dataclass(slots=True)
class Answer:
    """One choice while it grows."""

    index: int
    logprobs: int | None
    """Alternatives requested per token; None: no logprobs."""
    reader: Reader = field(default_factory=Plain)
    """Tells calls from text."""
    marks: Mapping[int, str] = field(default_factory=dict)
    """Special tokens that the reader must see, by id: they do not show as text."""
    id_length: int | None = None
    """Of the ids of calls, where the model's templates want one."""
    max_calls: int | None = None
    """Further ones are left out; None: all are kept."""
    include_stop: bool = False
    """Whether the stop string that ends it is part of its text."""
    shows_reasoning: bool = True
    """Whether the thought before it is part of it."""
    reasoning: str = ""
    """The thought."""
    signed_thoughts: list[SignedThought] = field(default_factory=list)
    """Parts of it that the API of a pool's member has signed."""
    text: str = ""
    """Without calls."""
    calls: list[Call] = field(default_factory=list)
    outputs: list[TokenOutput] = field(default_factory=list)
    """Those with a token."""
    token_ids: list[int] = field(default_factory=list)
    """What was generated."""
    ended: str | None = None
    """`stop`, `length`, `content_filter` or `cancelled`."""
    usage: Usage | None = None
    warnings: tuple[str, ...] = ()
    stopped_by: str | int | None = None
    new_seam: Seam | None = None
    """Where another model of a pool went on, if the last output was the first one behind that."""

    new_signature: ThoughtSignature | None = None
    """Of the thought up to here, if it came with the last output."""

    @property
    def seam_field(self) -> dict[str, Any]:
        """What the first piece behind a seam has beside its text; otherwise nothing."""
        return {} if self.new_seam is None else {"seam": asdict(self.new_seam)}

    @property
    def finish_reason(self) -> str | None:
        """In OpenAI's words: an answer with calls that ended by itself ended with them."""
        return "tool_calls" if self.calls and self.ended == "stop" else self.ended

    def add(self, output: TokenOutput) -> list[Delta]:
        """Take one more output; return what it adds, which may have been held back before."""
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
        self._take(deltas)
        self.new_signature = output.signature if self.shows_reasoning else None
        if self.new_signature is not None:
            self.signed_thoughts.append(SignedThought.of(self.reasoning, self.signed_thoughts, self.new_signature))
        return deltas

    def _take(self, deltas: Sequence[Delta]) -> None:
        for delta in deltas:
            self.reasoning += delta.reasoning
            self.text += delta.text
            if delta.name is not None:
                self.calls.append(Call(delta.id or self._new_id(), delta.name))
            if delta.call is not None:
                self.calls[delta.call].arguments += delta.arguments

    def _new_id(self) -> str:
        number = uuid.uuid4().hex
        return f"call_{number[:24]}" if self.id_length is None else number[: self.id_length]

    @property
    def mean_logprob(self) -> float:
        """Of its tokens, in nats: what `best_of` goes by."""
        known = [output.logprob for output in self.outputs if output.logprob is not None]
        return sum(known) / len(known) if known else float("-inf")
