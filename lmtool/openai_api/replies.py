"""Answers in the form of OpenAI's API: whole ones, and the pieces of streamed ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.types import TokenOutput, Usage

Route: TypeAlias = Literal["chat", "text"]


class Pieces(Protocol):
    """What is needed of a tokenizer to spell single tokens."""

    def piece(self, token_id: int) -> bytes:
        """The bytes of one token."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What all parts of an answer have in common."""

    route: Route
    id: str
    created: int
    """Seconds since 1970."""
    model: str

    def whole(self, choices: Sequence[Answer], usage: Usage, pieces: Pieces | None) -> dict[str, object]:
        """An answer in one piece. pieces: needed where there are logprobs."""
        kind = "chat.completion" if self.route == "chat" else "text_completion"
        warnings = [warning for choice in choices for warning in choice.warnings]
        return self._head(kind) | {
            "choices": [self._choice(choice, pieces) for choice in choices],
            "usage": usage_object(usage),
            **({"warnings": warnings} if warnings else {}),
        }

    def start(self, index: int) -> dict[str, object]:
        """The first piece of a streamed chat answer: who speaks."""
        return self._piece(index, {"delta": {"role": "assistant", "content": ""}}, None, None)

    def piece(
        self, index: int, text: str, outputs: Sequence[TokenOutput], logprobs: object, reason: str | None
    ) -> dict[str, object]:
        """A piece of a streamed answer. logprobs: of `outputs`, in the route's form, or None."""
        said: dict[str, object] = {"text": text}
        if self.route == "chat":
            said = {"delta": {"content": text} if text or not reason else {}}
        warnings = [warning for output in outputs for warning in output.warnings]
        return self._piece(index, said, logprobs, reason) | ({"warnings": warnings} if warnings else {})

    def usage(self, usage: Usage) -> dict[str, object]:
        """The piece behind the last one, that counts tokens."""
        return self._head(self._kind) | {"choices": [], "usage": usage_object(usage)}

    @property
    def _kind(self) -> str:
        return "chat.completion.chunk" if self.route == "chat" else "text_completion"

    def _head(self, kind: str) -> dict[str, object]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _piece(self, index: int, said: dict[str, object], logprobs: object, reason: str | None) -> dict[str, object]:
        choice = {"index": index, **said, "logprobs": logprobs, "finish_reason": reason}
        return self._head(self._kind) | {"choices": [choice]}

    def _choice(self, answer: Answer, pieces: Pieces | None) -> dict[str, object]:
        logprobs = None
        if answer.logprobs is not None and pieces is not None:
            form = chat_logprobs if self.route == "chat" else text_logprobs
            logprobs = form(answer.outputs, pieces, answer.logprobs)
        said: dict[str, object] = {"text": answer.text}
        if self.route == "chat":
            said = {"message": {"role": "assistant", "content": answer.text, "refusal": None}}
        return {"index": answer.index, **said, "logprobs": logprobs, "finish_reason": answer.finish_reason}


@dataclass(slots=True)
class Answer:
    """One choice while it grows."""

    index: int
    logprobs: int | None
    """How many alternatives are wanted; None: no logprobs."""
    text: str = ""
    outputs: list[TokenOutput] = field(default_factory=list)
    """Those with a token."""
    finish_reason: str | None = None
    usage: Usage | None = None
    warnings: tuple[str, ...] = ()

    def add(self, output: TokenOutput) -> None:
        """Take one more output."""
        self.text += output.text or ""
        if output.token is not None:
            self.outputs.append(output)
        if output.finish_reason is not None:
            self.finish_reason, self.usage, self.warnings = output.finish_reason, output.usage, output.warnings


def usage_object(usage: Usage) -> dict[str, object]:
    """Token counts."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def chat_logprobs(outputs: Sequence[TokenOutput], pieces: Pieces, wanted: int) -> dict[str, object]:
    """Logprobs as chat completions have them: an entry a token, with its bytes, which may be part of a character."""
    content = []
    for output in outputs:
        assert output.token is not None
        best = (output.top_logprobs or ())[:wanted]
        entry = _spelt(output.token, output.logprob, pieces)
        content.append(entry | {"top_logprobs": [_spelt(token, logprob, pieces) for token, logprob in best]})
    return {"content": content, "refusal": None}


def _spelt(token: int, logprob: float | None, pieces: Pieces) -> dict[str, object]:
    spelling = pieces.piece(token)
    return {"token": spelling.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(spelling)}


def text_logprobs(outputs: Sequence[TokenOutput], pieces: Pieces, wanted: int, offset: int = 0) -> dict[str, object]:
    """Logprobs as completions have them: four lists, an entry a token. offset: characters before the first one.

    The first token of an echoed prompt comes behind nothing: its `logprob` None is `null`.
    """
    tokens: list[str] = []
    tops: list[dict[str, float] | None] = []
    offsets: list[int] = []
    for output in outputs:
        assert output.token is not None
        spelling = _spelling(output.token, pieces)
        offsets.append(offset)
        offset += len(spelling)
        tokens.append(spelling)
        best = (output.top_logprobs or ())[:wanted] if output.logprob is not None else ()
        tops.append({_spelling(token, pieces): logprob for token, logprob in best} if best else None)
    return {
        "tokens": tokens,
        "token_logprobs": [output.logprob for output in outputs],
        "top_logprobs": tops if wanted else None,
        "text_offset": offsets,
    }


def _spelling(token: int, pieces: Pieces) -> str:
    spelling = pieces.piece(token)
    try:
        return spelling.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelling)
