"""Deltas of an HTTP answer as outputs of its streams: texts, and calls of tools as they form."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from msgspec import structs

from lmtool.protocol.providers.answer_events import counted_tokens
from lmtool.trace.stream_events import OutputEvent, Stream

if TYPE_CHECKING:
    from lmtool.protocol.providers.answer_events import TextDelta, ToolCallDelta
    from lmtool.protocol.providers.answer_reader import AnswerReader
    from lmtool.trace.stream_events import RequestStarted, StreamEvent

S = TypeVar("S", bound=Stream)


@dataclass(slots=True)
class HttpRequest(Generic[S]):
    """A request whose answer is not complete."""

    started: RequestStarted
    choices: dict[int, S] = field(default_factory=dict)
    """Streams by number of the choice; empty for a request that generates nothing."""
    reader: AnswerReader | None = None
    http_error: str = ""
    """Status of a response that is an error."""
    choices_with_tokens: set[int] = field(default_factory=set)
    """Choices whose tokens came with logprobs: further text of theirs is text of these tokens."""
    tools: dict[tuple[int, int], str] = field(default_factory=dict)
    """Names of the tools that are called, by choice and number of the call."""
    calls_with_tokens: set[tuple[int, int]] = field(default_factory=set)
    """Calls whose tokens came with logprobs."""
    without_text: bool = False
    """Whether the tokens that came last were named without a text: of a call, whose delta follows."""

    def text_outputs(self, time: float, stream: S, event: TextDelta) -> list[OutputEvent]:
        """The tokens that text brings, or the text as a piece."""
        is_piece = not event.tokens
        self.without_text = not event.text
        return [
            OutputEvent(
                time,
                stream,
                text=token.piece,
                logprob=token.logprob,
                is_piece=is_piece,
                is_thought=event.kind == "reasoning",
                top=None if is_piece else token,
            )
            for token in counted_tokens(event, self.choices_with_tokens)
        ]

    def add_call(self, time: float, stream: S, event: ToolCallDelta, outputs: list[StreamEvent]) -> None:
        """Add what a delta of a call brings to the outputs of its chunk: the tool's name, then its arguments.

        Tokens without text that the same chunk names are this call's own; then its text is theirs.
        """
        key = (event.choice, event.index)
        tool = self.tools[key] = event.name or self.tools.get(key, "")
        for place, output in enumerate(outputs):
            if isinstance(output, OutputEvent) and output.stream is stream and self._is_of_call(output):
                outputs[place] = structs.replace(output, call=event.index, tool=tool)
                self.calls_with_tokens.add(key)
        if key in self.calls_with_tokens:
            return
        texts = ((event.name or "", True), (event.arguments, False))
        outputs += [
            OutputEvent(time, stream, text=text, is_piece=True, call=event.index, tool=tool, is_tool_name=is_name)
            for text, is_name in texts
            if text
        ]

    def _is_of_call(self, output: OutputEvent) -> bool:
        """Whether an output of the chunk at hand is a token of the call that the chunk brings."""
        return self.without_text and bool(output.top) and not output.is_thought and output.call is None
