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
"""Text of a token, or its bytes if they are not valid UTF-8 on their own (part of a character)."""
_SPELLED_BYTES = re.compile(r"bytes:(?:\\x[0-9a-fA-F]{2})+")


@dataclass(frozen=True, slots=True)
class ChunkToken:
    """One token of an answer with its logprob. HTTP APIs send no token ids here."""

    piece: Piece
    logprob: float | None = None
    """Nats; None if not sent (first token of an echoed prompt) or not finite."""
    top: object = None
    """Raw alternatives; parsed by `alternatives` on demand, because most are never read."""

    @property
    def alternatives(self) -> tuple[tuple[Piece, float], ...]:
        """Alternative pieces with logprobs in nats, most likely first; may include the chosen token."""
        return tuple(sorted(self.alternatives_as_sent, key=lambda pair: -pair[1]))

    @property
    def alternatives_as_sent(self) -> tuple[tuple[Piece, float], ...]:
        """The alternatives in the order in which the server sent them."""
        if isinstance(self.top, dict):
            pairs = [(piece_of(name), logprob_of(value)) for name, value in self.top.items()]
        else:
            entries = map(object_of, list_of(self.top))
            pairs = [
                (piece_of(item.get("token"), item.get("bytes")), logprob_of(item.get("logprob"))) for item in entries
            ]
        return tuple((piece, logprob) for piece, logprob in pairs if logprob is not None)


def piece_of(text: object, data: object = None) -> Piece:
    r"""The piece for a token's text and, if the API sends it, its list of bytes.

    Completions spell a token that is not valid UTF-8 as `bytes:\xf0\x9f`.
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
    except (TypeError, ValueError):  # not a list of numbers below 256
        return name


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text added to a choice, with its tokens if the API sends logprobs.

    Text and tokens may differ: a token may end in the middle of a character, and text may be held back before a stop
    string.
    """

    choice: int
    text: str
    tokens: tuple[ChunkToken, ...] = ()
    """Empty unless logprobs were requested."""
    kind: TextKind = "text"
    signature: ThoughtSignature | None = None
    """Signature of the thought since the previous signature; the API expects it back with the next request."""


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """Start or continuation of a tool call."""

    choice: int
    index: int
    """Position of the call within the choice."""
    id: str | None = None
    """Set on the first delta of a call only, like `name`."""
    name: str | None = None
    arguments: str = ""
    """Next piece of the arguments' JSON text."""


def counted_tokens(event: TextDelta | ToolCallDelta, choices_with_tokens: set[int]) -> tuple[ChunkToken, ...]:
    """The tokens of an event: those sent with it, or its text as one piece of unknown token count.

    choices_with_tokens: choices that have sent tokens so far; updated in place. Text of such a choice without tokens
    belongs to tokens sent before, so it counts as none.
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
    """OpenAI's name if there is one (`stop`, `length`, `tool_calls`, `content_filter`), otherwise the API's own."""
    stop: str | None = None
    """Stop string that ended the choice, if the API reports it."""


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Token counts of the answer so far, all choices together; None if the API does not report a count."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    """Prompt tokens served from the prefix cache."""
    reasoning_tokens: int | None = None
    """Completion tokens spent on the thought."""

    @classmethod
    def of(cls, usage: Mapping[str, object], prompt: str, completion: str) -> TokenUsage:
        """Counts of a usage object; prompt, completion: names of its members."""
        details, written = (object_of(usage.get(f"{name}_details")) for name in (prompt, completion))
        counts = usage.get(prompt), usage.get(completion), details.get("cached_tokens"), written.get("reasoning_tokens")
        return cls(*map(count_of, counts))

    @classmethod
    def flat(cls, usage: Mapping[str, object]) -> TokenUsage:
        """Counts of an LMTP usage object (EXT-3), where all counts are at the top level."""
        return cls(*(count_of(usage.get(member.name)) for member in fields(cls)))

    def updated(self, later: TokenUsage) -> TokenUsage:
        """The larger of each count here and in a later event of the same answer."""
        pairs = ((getattr(self, member.name), getattr(later, member.name)) for member in fields(self))
        return TokenUsage(*(max(known) if (known := [n for n in pair if n is not None]) else None for pair in pairs))

    def __str__(self) -> str:
        """Text such as `17 read (12 cached), 5 written (2 of a thought)`; unknown counts are left out."""
        parts = (
            _counted(self.prompt_tokens, "read", self.cached_tokens, "cached"),
            _counted(self.completion_tokens, "written", self.reasoning_tokens, "of a thought"),
        )
        return ", ".join(part for part in parts if part)


def _counted(total: int | None, word: str, share: int | None, of_them: str) -> str:
    """Text such as `17 read (12 cached)`; empty if the total is unknown."""
    shared = f" ({share} {of_them})" if share else ""
    return "" if total is None else f"{total} {word}{shared}"


@dataclass(frozen=True, slots=True)
class AnswerFailed:
    """Error: the server refused the request or aborted the answer."""

    message: str
    code: str | None = None
    """Error code or type, as the API names it."""

    @classmethod
    def of(cls, value: Mapping[str, object]) -> AnswerFailed | None:
        """The error in a response body; None if it has none.

        Understands `error` as an object with type and message or as a text, vLLM's objects of kind `error` with a
        `message`, and FastAPI's `detail`.
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
        code = next((word for word in (members.get("code"), members.get("type")) if isinstance(word, str)), None)
        if not isinstance(message, str):
            message = error if isinstance(error, str) else json.dumps(error, ensure_ascii=False)
        return cls(message, code)


AnswerEvent: TypeAlias = TextDelta | ToolCallDelta | ChoiceFinished | TokenUsage | AnswerFailed


def read_logprobs(value: object) -> tuple[ChunkToken, ...]:
    """Tokens of a choice's `logprobs`, in the form of chats or of completions; empty if it has none."""
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
    """Tokens of a list with one object per token: text, logprob, bytes and alternatives (chat, responses)."""
    return tuple(
        [
            ChunkToken(
                piece_of(item.get("token"), item.get("bytes")),
                logprob_of(item.get("logprob")),
                item.get("top_logprobs"),
            )
            for item in map(object_of, list_of(value))
        ]
    )


ROLE = "assistant"
"""Role of every answer, whatever name its API uses."""


@dataclass(slots=True)
class _CallInProgress:
    id: str | None = None
    name: str = ""
    arguments: list[str] = field(default_factory=list)


@dataclass(slots=True)
class AnswerChoice:
    """One choice of an answer, collected from its events."""

    texts: list[str] = field(default_factory=list)
    """Pieces of the visible text, refusals included."""
    reasoning: list[str] = field(default_factory=list)
    signed_thoughts: list[SignedThought] = field(default_factory=list)
    """Parts of the reasoning that the API signed."""
    tokens: list[ChunkToken] = field(default_factory=list)
    """Tokens that the API sent, those of the reasoning included."""
    finish_reason: str | None = None
    """None while unfinished; `tool_calls` if it has calls and the API reports `stop`."""
    stop: str | None = None
    """Stop string that ended the choice, if the API reports it."""
    _calls: dict[int, _CallInProgress] = field(default_factory=dict)

    @property
    def content(self) -> str:
        """The complete text."""
        return "".join(self.texts)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls in order; calls without an id from the API are named `call_0`, `call_1` and so on."""
        return tuple(
            ToolCall(call.id or f"call_{number}", call.name, "".join(call.arguments) or "{}")
            for number, (_, call) in enumerate(sorted(self._calls.items()))
        )

    @property
    def empty(self) -> bool:
        """True if the choice has neither text nor a call."""
        return not (self.texts or self.reasoning or self.signed_thoughts or self._calls)

    def add(self, event: TextDelta | ToolCallDelta | ChoiceFinished) -> None:
        """Add one event of this choice."""
        if isinstance(event, TextDelta):
            self.tokens += event.tokens
            if event.text:
                (self.reasoning if event.kind == "reasoning" else self.texts).append(event.text)
            if event.signature is not None:
                thought = SignedThought.of("".join(self.reasoning), self.signed_thoughts, event.signature)
                self.signed_thoughts.append(thought)
        elif isinstance(event, ToolCallDelta):
            call = self._calls.setdefault(event.index, _CallInProgress())
            call.id = call.id or event.id
            call.name = call.name or event.name or ""
            call.arguments.append(event.arguments)
        else:
            has_calls = self._calls and event.reason == "stop"
            self.finish_reason, self.stop = "tool_calls" if has_calls else event.reason, event.stop


@dataclass(slots=True)
class ChatAnswer:
    """One answer with all its choices, complete or so far."""

    choices: dict[int, AnswerChoice] = field(default_factory=dict)
    """Choices by index."""
    usage: TokenUsage = field(default_factory=TokenUsage)
    failure: AnswerFailed | None = None
    """Error that ended it, in the server's words; do not pass them on to the client."""

    def add(self, events: Iterable[AnswerEvent]) -> None:
        """Add these events, in order."""
        for event in events:
            if isinstance(event, AnswerFailed):
                self.failure = self.failure or event
            elif isinstance(event, TokenUsage):
                self.usage = newer_usage(self.usage, event)
            else:
                self.choices.setdefault(event.choice, AnswerChoice()).add(event)

    @property
    def empty(self) -> bool:
        """True if no choice has text or a call."""
        return all(choice.empty for choice in self.choices.values())

    @property
    def finished(self) -> bool:
        """True if there is a choice and all choices have ended."""
        return bool(self.choices) and all(choice.finish_reason is not None for choice in self.choices.values())


def newer_usage(old: TokenUsage, new: TokenUsage) -> TokenUsage:
    """Counts of two events of one answer: those of the later event if it has them, otherwise those of the earlier."""
    pairs = ((getattr(old, member.name), getattr(new, member.name)) for member in fields(TokenUsage))
    return TokenUsage(*(older if newer is None else newer for older, newer in pairs))
