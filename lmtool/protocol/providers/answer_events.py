"""What any API's answer says, in one form: tokens and text, tool calls, endings, usage, failures."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal, TypeAlias

from lmtool.protocol.providers.json_values import count_of, list_of, logprob_of, object_of, text_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.core.reasoning import ThoughtSignature

Api: TypeAlias = Literal["chat", "completions", "responses", "messages", "ollama", "cohere_v1", "cohere_v2", "unified"]
"""The APIs whose answers are read here."""
TextKind: TypeAlias = Literal["text", "reasoning", "refusal"]
Piece: TypeAlias = str | bytes
"""The text of a token, or its bytes where these are no text on their own: it may hold part of a character."""
_SPELLED_BYTES = re.compile(r"bytes:(?:\\x[0-9a-fA-F]{2})+")


@dataclass(frozen=True, slots=True)
class ChunkToken:
    """One token that an API names with its logprob. There are no ids over HTTP."""

    piece: Piece
    logprob: float | None = None
    """Nats; None where it was not sent, as for the first token of an echoed prompt, or is no finite number."""
    top: object = None
    """The alternatives as they were sent; `alternatives` reads them, which most tokens are never asked for."""

    @property
    def alternatives(self) -> tuple[tuple[Piece, float], ...]:
        """What might have been chosen, and logprobs in nats, best first; the chosen one may be among them."""
        return tuple(sorted(self.alternatives_as_sent, key=lambda one: -one[1]))

    @property
    def alternatives_as_sent(self) -> tuple[tuple[Piece, float], ...]:
        """The same in the order in which they were sent."""
        if isinstance(self.top, dict):
            named = [(piece_of(name), logprob_of(value)) for name, value in self.top.items()]
        else:
            entries = [object_of(one) for one in list_of(self.top)]
            named = [(piece_of(one.get("token"), one.get("bytes")), logprob_of(one.get("logprob"))) for one in entries]
        return tuple((piece, logprob) for piece, logprob in named if logprob is not None)


def piece_of(text: object, data: object = None) -> Piece:
    r"""The piece that an API names by a text and, where it sends them, a list of bytes.

    Completions spell one that is no whole characters as `bytes:\xf0\x9f`.
    """
    name = text_of(text)
    try:
        if isinstance(data, list):
            raw = bytes(data)
        elif name.startswith("bytes:") and _SPELLED_BYTES.fullmatch(name):
            raw = bytes.fromhex(name[6:].replace("\\x", ""))
        else:
            return name
        return raw.decode()
    except UnicodeDecodeError:
        return raw
    except (TypeError, ValueError):  # no list of numbers below 256
        return name


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
    signature: ThoughtSignature | None = None
    """Of the thought up to here, since the last one, from an API that wants to have it back."""


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


def counted_tokens(event: TextDelta | ToolCallDelta, choices_with_tokens: set[int]) -> tuple[ChunkToken, ...]:
    """The tokens that an event brings: those it names, or else its text as a piece of unknown tokens.

    choices_with_tokens: those whose tokens were named before, which this adds to; further text of theirs is of these.
    """
    if isinstance(event, TextDelta) and event.tokens:
        choices_with_tokens.add(event.choice)
        return event.tokens
    text = event.text if isinstance(event, TextDelta) else f"{event.name or ''}{event.arguments}"
    return (ChunkToken(text),) if text and event.choice not in choices_with_tokens else ()


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
    reasoning_tokens: int | None = None
    """Those of the answer that are a thought."""

    @classmethod
    def of(cls, usage: Mapping[str, object], prompt: str, completion: str) -> TokenUsage:
        """The counts of a usage object whose members have these names."""
        read, written = (object_of(usage.get(f"{name}_details")) for name in (prompt, completion))
        counts = (usage.get(prompt), usage.get(completion), read.get("cached_tokens"), written.get("reasoning_tokens"))
        return cls(*map(count_of, counts))

    @classmethod
    def flat(cls, usage: Mapping[str, object]) -> TokenUsage:
        """The counts of LMTP's usage (EXT-3): each is a member of the object itself."""
        return cls(*(count_of(usage.get(one.name)) for one in fields(cls)))

    def updated(self, later: TokenUsage) -> TokenUsage:
        """With what was told later of the same answer: a stream may count its parts one after the other."""
        pairs = ((getattr(self, one.name), getattr(later, one.name)) for one in fields(self))
        return TokenUsage(*(max(known) if (known := [n for n in pair if n is not None]) else None for pair in pairs))

    def __str__(self) -> str:
        """For people: `17 read (12 cached), 5 written (2 of a thought)`; what is not known is left out."""
        parts = (
            _counted(self.prompt_tokens, "read", self.cached_tokens, "cached"),
            _counted(self.completion_tokens, "written", self.reasoning_tokens, "of a thought"),
        )
        return ", ".join(part for part in parts if part)


def _counted(total: int | None, word: str, share: int | None, of_them: str) -> str:
    """`17 read (12 cached)`; empty where the total is not known."""
    shared = f" ({share} {of_them})" if share else ""
    return "" if total is None else f"{total} {word}{shared}"


@dataclass(frozen=True, slots=True)
class AnswerFailed:
    """The request was refused, or its answer broke off."""

    message: str
    code: str | None = None
    """The API's own word for the error."""

    @classmethod
    def of(cls, value: Mapping[str, object]) -> AnswerFailed | None:
        """The failure that a server tells in place of what was asked for; None where it tells none.

        An `error` with type and message, or that is a text; vLLM's `message` of an object of kind `error`; FastAPI's
        `detail`.
        """
        error = value.get("error")
        if error is None and value.get("object") == "error":
            error = value
        if error is None and not (value.keys() & {"choices", "output", "content", "type"}):
            error = value.get("detail")
        if error is None:
            return None
        members = object_of(error)
        message = members.get("message")
        code = next((one for one in (members.get("code"), members.get("type")) if isinstance(one, str)), None)
        if not isinstance(message, str):
            message = error if isinstance(error, str) else json.dumps(error, ensure_ascii=False)
        return cls(message, code)


AnswerEvent: TypeAlias = TextDelta | ToolCallDelta | ChoiceFinished | TokenUsage | AnswerFailed
