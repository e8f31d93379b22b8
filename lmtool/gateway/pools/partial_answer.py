"""What a caller has got of an answer, and whether another model can go on with it by prefill."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lmtool.gateway.pools.pool_request import Prefill
from lmtool.protocol.providers.answer_events import ChoiceFinished, TextDelta, ToolCallDelta

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.gateway.pools.config import MemberConfig
    from lmtool.gateway.pools.pool_request import PoolRequest
    from lmtool.protocol.providers.answer_events import AnswerEvent, TokenUsage

_FORMATS = frozenset({"response_format", "output_config"})
"""Providers' own parameters that give an answer a form."""


@dataclass(slots=True)
class PartialAnswer:
    """The part of an answer that was given out."""

    pieces: int = 0
    """Of text and of tool calls."""
    tokens: int = 0
    """As far as they are known: a piece whose tokens have no names counts as one."""
    has_calls: bool = False
    has_reasoning: bool = False
    finish_reasons: dict[int, str] = field(default_factory=dict)
    """Of the choices that have ended, by number."""
    texts: list[str] = field(default_factory=list)
    """Of the first choice."""

    @property
    def text(self) -> str:
        """Of the first choice, without its reasoning."""
        return "".join(self.texts)

    @property
    def as_prefill(self) -> Prefill:
        """What a member is to go on with."""
        return Prefill(self.text, self.tokens)

    def add(self, events: Sequence[AnswerEvent]) -> None:
        """Take what is given out now."""
        for event in events:
            if isinstance(event, ChoiceFinished):
                self.finish_reasons[event.choice] = event.reason
            elif isinstance(event, ToolCallDelta):
                self.has_calls = True
                self.pieces += 1
            elif isinstance(event, TextDelta):
                self._add_text(event)

    def _add_text(self, event: TextDelta) -> None:
        self.tokens += len(event.tokens) or bool(event.text)
        if event.kind == "reasoning":
            self.has_reasoning = True
            return
        self.pieces += 1
        if not event.choice:
            self.texts.append(event.text)


def is_piece(event: AnswerEvent) -> bool:
    """True if an answer begins with this event: text that is no reasoning, or a call."""
    return isinstance(event, ToolCallDelta) or (isinstance(event, TextDelta) and event.kind != "reasoning")


def is_reasoning(event: AnswerEvent) -> bool:
    """True if a model reasons in this event."""
    return isinstance(event, TextDelta) and event.kind == "reasoning"


def obstacle_to_prefill(request: PoolRequest, partial: PartialAnswer, member: MemberConfig) -> str:
    """Why nobody can go on by prefill with what this member has given out, for a sentence; empty where nothing does.

    Wherever the rest could be wrong it is not asked for.
    """
    chat = request.of(member)
    stops = chat.parameters.get("stop")
    reasons = {
        "it has a tool call": partial.has_calls,
        "it must have a tool call": chat.tool_choice in ("required", "named"),
        "it has a form to keep": request.constraint is not None or bool(_FORMATS & chat.parameters.keys()),
        "it follows reasoning that no other model knows": partial.has_reasoning,
        "it has several choices": chat.parameters.get("n", 1) != 1,
        "a stop string may have begun": _may_stop(partial.text, stops if isinstance(stops, list | tuple) else ()),
    }
    return next((reason for reason, applies in reasons.items() if applies), "")


def _may_stop(text: str, stops: Sequence[str]) -> bool:
    """True if the text ends with the beginning of a stop string, whose rest would not be known as one."""
    return any(text.endswith(stop[:length]) for stop in stops for length in range(1, len(stop)))


def without_prefill(usage: TokenUsage, tokens: int) -> TokenUsage:
    """The counts of an answer whose first tokens were counted as part of its prompt."""
    prompt, completion = usage.prompt_tokens, usage.completion_tokens
    return replace(
        usage,
        prompt_tokens=None if prompt is None else max(0, prompt - tokens),
        completion_tokens=None if completion is None else completion + tokens,
    )
