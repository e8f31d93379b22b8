"""Events of one answer in a form common to all APIs, readers of token logprobs, and the answer they add up to."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Literal, TypeAlias

from lmtool.core.reasoning import SignedThought
from lmtool.core.types import ToolCall
from lmtool.protocol.providers.json_values import count_of, list_of, logprob_of, object_of, text_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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


def read_logprobs(value: object) -> tuple[ChunkToken, ...]:
    """The tokens of a choice's `logprobs`, whichever form it has; empty for none."""
    members = object_of(value)
    if not isinstance(members.get("tokens"), list):
        return token_entries([*list_of(members.get("content")), *list_of(members.get("refusal"))])
    texts, values, tops = (list_of(members.get(name)) for name in ("tokens", "token_logprobs", "top_logprobs"))
    return tuple(
        [
            ChunkToken(
                piece_of(text),
                logprob_of(values[i]) if i < len(values) else None,
                tops[i] if i < len(tops) else None,
            )
            for i, text in enumerate(texts)
        ]
    )


def token_entries(value: object) -> tuple[ChunkToken, ...]:
    """The tokens of a list with an entry each: text, logprob, bytes, and those of alternatives (chat, responses)."""
    entries = [object_of(one) for one in list_of(value)]
    return tuple(
        [
            ChunkToken(
                piece_of(one.get("token"), one.get("bytes")), logprob_of(one.get("logprob")), one.get("top_logprobs")
            )
            for one in entries
        ]
    )


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
