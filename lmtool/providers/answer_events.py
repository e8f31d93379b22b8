"""What any API's answer says, in one form: tokens and text, tool calls, endings, usage, failures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

TextKind: TypeAlias = Literal["text", "reasoning", "refusal"]
Alternative: TypeAlias = "tuple[str | bytes, float]"
"""A token that might have been chosen, as `ChunkToken.piece` names it, and its logprob in nats."""


@dataclass(frozen=True, slots=True)
class ChunkToken:
    """One token that an API names with its logprob. There are no ids over HTTP."""

    text: str
    logprob: float | None = None
    """Nats; None where it was not sent, as for the first token of an echoed prompt, or is no finite number."""
    data: bytes | None = None
    """The token's own bytes where the API sends them: a token may hold part of a character."""
    alternatives: tuple[Alternative, ...] = ()
    """Best first; the chosen one may be among them."""

    @property
    def piece(self) -> str | bytes:
        """The token's text; its bytes where they are no text on their own."""
        return self.text if self.data is None else piece_of(self.data)


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text that was added to a choice, with the tokens that the API names for it.

    The two need not match: a token may complete no character yet, and text may be held back before a stop string.
    """

    choice: int
    text: str
    tokens: tuple[ChunkToken, ...] = ()
    """Empty where logprobs were not asked for."""
    kind: TextKind = "text"


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A call of a tool begins or goes on."""

    choice: int
    index: int
    """Which call of the choice."""
    id: str | None = None
    """In the call's first delta only; so is the name."""
    name: str | None = None
    arguments: str = ""
    """More of the arguments' JSON text."""


@dataclass(frozen=True, slots=True)
class ChoiceFinished:
    """A choice is complete."""

    choice: int
    reason: str
    """In OpenAI's words where there is one: `stop`, `length`, `tool_calls`, `content_filter`; else the API's own."""
    stop: str | None = None
    """The stop string that ended it, where the API tells."""


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of the whole answer so far, all choices together; None for what the API does not count."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    """Tokens of the prompt that were not computed again."""


@dataclass(frozen=True, slots=True)
class AnswerFailed:
    """The request was refused, or its answer broke off."""

    message: str
    code: str | None = None
    """The API's own word for the error."""


AnswerEvent: TypeAlias = TextDelta | ToolCallDelta | ChoiceFinished | TokenUsage | AnswerFailed


def piece_of(data: bytes) -> str | bytes:
    """The text of a token's bytes; the bytes where they are no UTF-8 on their own."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
