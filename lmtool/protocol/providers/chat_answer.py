"""An answer folded from its events: choices with text and calls, usage, and what it lacks."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from lmtool.core.reasoning import SignedThought
from lmtool.core.types import ToolCall
from lmtool.protocol.providers.answer_events import AnswerFailed, ChoiceFinished, TextDelta, TokenUsage, ToolCallDelta

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lmtool.core.reasoning import ThoughtSignature
    from lmtool.protocol.providers.answer_events import AnswerEvent, ChunkToken

ROLE = "assistant"
"""Of every answer, whatever its API calls it."""


@dataclass(slots=True)
class _CallInProgress:
    id: str | None = None
    name: str = ""
    arguments: list[str] = field(default_factory=list)


@dataclass(slots=True)
class AnswerChoice:
    """One of the answers to a request."""

    texts: list[str] = field(default_factory=list)
    """What is shown to the user, refusals included."""
    reasoning: list[str] = field(default_factory=list)
    signed_thoughts: list[SignedThought] = field(default_factory=list)
    """Parts of it that the API has signed."""
    tokens: list[ChunkToken] = field(default_factory=list)
    """Those that the API named; of the reasoning as well, where it does."""
    finish_reason: str | None = None
    """None while it goes on; `tool_calls` wherever there are any and it ended by itself."""
    stop: str | None = None
    """The stop string that ended it, where the API tells."""
    _calls: dict[int, _CallInProgress] = field(default_factory=dict)

    @property
    def content(self) -> str:
        """All of the text."""
        return "".join(self.texts)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls, in order; those whose API has no ids for them are `call_0`, `call_1` and so on."""
        return tuple(
            ToolCall(call.id or f"call_{number}", call.name, "".join(call.arguments) or "{}")
            for number, (_, call) in enumerate(sorted(self._calls.items()))
        )

    @property
    def empty(self) -> bool:
        """Whether it brought neither text nor a call."""
        return not (self.texts or self.reasoning or self.signed_thoughts or self._calls)

    def sign(self, signature: ThoughtSignature) -> None:
        """Sign the thought up to here."""
        self.signed_thoughts.append(SignedThought.of("".join(self.reasoning), self.signed_thoughts, signature))

    def add_call(self, delta: ToolCallDelta) -> None:
        """Add to a call what this delta brings."""
        call = self._calls.setdefault(delta.index, _CallInProgress())
        call.id = call.id or delta.id
        call.name = call.name or delta.name or ""
        call.arguments.append(delta.arguments)

    def finish(self, event: ChoiceFinished) -> None:
        """End the choice."""
        calls = self._calls and event.reason == "stop"
        self.finish_reason, self.stop = "tool_calls" if calls else event.reason, event.stop


@dataclass(slots=True)
class ChatAnswer:
    """One answer with all its choices, whole or as far as it has come."""

    choices: dict[int, AnswerChoice] = field(default_factory=dict)
    """By number."""
    usage: TokenUsage = field(default_factory=TokenUsage)
    failure: AnswerFailed | None = None
    """Why it broke off, in the server's words, which are not for the caller."""

    def add(self, events: Iterable[AnswerEvent]) -> None:
        """Add what these events bring, in order."""
        for event in events:
            if isinstance(event, AnswerFailed):
                self.failure = self.failure or event
            elif isinstance(event, TokenUsage):
                self.usage = newer_usage(self.usage, event)
            else:
                self._add_to(self.choices.setdefault(event.choice, AnswerChoice()), event)

    def _add_to(self, choice: AnswerChoice, event: TextDelta | ToolCallDelta | ChoiceFinished) -> None:
        if isinstance(event, TextDelta):
            choice.tokens += event.tokens
            if event.text:
                (choice.reasoning if event.kind == "reasoning" else choice.texts).append(event.text)
            if event.signature is not None:
                choice.sign(event.signature)
        elif isinstance(event, ToolCallDelta):
            choice.add_call(event)
        else:
            choice.finish(event)

    @property
    def empty(self) -> bool:
        """Whether no choice has text or a call."""
        return all(choice.empty for choice in self.choices.values())

    @property
    def finished(self) -> bool:
        """Whether there are choices and every one of them has ended."""
        return bool(self.choices) and all(choice.finish_reason is not None for choice in self.choices.values())


def newer_usage(old: TokenUsage, new: TokenUsage) -> TokenUsage:
    """The counts of two events of one answer: the later one's, where it has them."""

    def count(name: str) -> int | None:
        value: int | None = getattr(new, name)
        older: int | None = getattr(old, name)
        return older if value is None else value

    return TokenUsage(*(count(one.name) for one in fields(TokenUsage)))
