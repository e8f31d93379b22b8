"""Answers in the form of OpenAI's API: whole ones, and the pieces of streamed ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.http_api.answers import Answer
    from lmtool.http_api.tools.deltas import Delta
    from lmtool.types import TokenOutput, Usage

Route: TypeAlias = Literal["chat", "text"]


class Pieces(Protocol):
    """What is needed of a tokenizer to spell single tokens."""

    def piece(self, token_id: int) -> bytes:
        """The bytes that one token adds to a text; none for a special one."""

    def token(self, token_id: int) -> str | None:
        """What a token is called in the vocabulary."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What all parts of an answer have in common."""

    route: Route
    id: str
    created: int
    """Seconds since 1970."""
    model: str

    def whole(self, choices: Sequence[Answer], usage: Usage, pieces: Pieces | None) -> dict[str, Any]:
        """An answer in one piece. pieces: needed where there are logprobs."""
        kind = "chat.completion" if self.route == "chat" else "text_completion"
        warnings = [warning for choice in choices for warning in choice.warnings]
        return self._head(kind) | {
            "choices": [self._choice(choice, pieces) for choice in choices],
            "usage": usage_object(usage),
            **({"warnings": warnings} if warnings else {}),
        }

    def start(self, index: int) -> dict[str, Any]:
        """The first piece of a streamed chat answer: who speaks."""
        return self._piece(index, {"delta": {"role": "assistant", "content": ""}}, None, None)

    def echo(self, index: int, text: str, logprobs: object) -> dict[str, Any]:
        """The first piece of a streamed text that begins with its prompt."""
        return self._piece(index, {"text": text}, logprobs, None)

    def pieces(self, answer: Answer, added: Sequence[Delta], logprobs: object) -> list[dict[str, Any]]:
        """The pieces of a streamed answer that say what was added, none for nothing; the last one says how it ended.

        logprobs: of the tokens since the last piece, in the route's form, or None.
        """
        told = [self._said(answer, delta) for delta in added]
        reason = answer.finish_reason
        if not told and (logprobs or reason):
            told = [{"text": ""} if self.route == "text" else {"delta": {"content": ""} if not reason else {}}]
        pieces = [self._piece(answer.index, said, None, None) for said in told]
        if pieces:
            choice = pieces[-1]["choices"][0]
            choice["logprobs"], choice["finish_reason"] = logprobs, reason
            if reason and answer.stopped_by is not None:
                choice["stop_reason"] = answer.stopped_by
            if reason and answer.warnings:
                pieces[-1]["warnings"] = list(answer.warnings)
        return pieces

    def _said(self, answer: Answer, delta: Delta) -> dict[str, Any]:
        if self.route == "text":
            return {"text": delta.text}
        if delta.call is None:
            return {"delta": {"content": delta.text}}
        function: dict[str, object] = {"arguments": delta.arguments}
        call: dict[str, object] = {"index": delta.call, "function": function}
        if delta.name is not None:
            function["name"] = delta.name
            call |= {"id": answer.calls[delta.call].id, "type": "function"}
        return {"delta": {"tool_calls": [call]}}

    def usage(self, usage: Usage) -> dict[str, Any]:
        """The piece behind the last one, that counts tokens."""
        return self._head(self._kind) | {"choices": [], "usage": usage_object(usage)}

    @property
    def _kind(self) -> str:
        return "chat.completion.chunk" if self.route == "chat" else "text_completion"

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _piece(self, index: int, said: dict[str, Any], logprobs: object, reason: str | None) -> dict[str, Any]:
        choice = {"index": index, **said, "logprobs": logprobs, "finish_reason": reason}
        return self._head(self._kind) | {"choices": [choice]}

    def _choice(self, answer: Answer, pieces: Pieces | None) -> dict[str, Any]:
        logprobs = None
        if answer.logprobs is not None and pieces is not None:
            form = chat_logprobs if self.route == "chat" else text_logprobs
            logprobs = form(answer.outputs, pieces, answer.logprobs)
        said: dict[str, Any] = {"text": answer.text}
        if self.route == "chat":
            said = {"message": _message(answer)}
        stopped = {} if answer.stopped_by is None else {"stop_reason": answer.stopped_by}
        return {"index": answer.index, **said, "logprobs": logprobs, "finish_reason": answer.finish_reason, **stopped}


def _message(answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
    if answer.calls:
        message["content"] = answer.text or None
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in answer.calls
        ]
    return message


def usage_object(usage: Usage) -> dict[str, object]:
    """Token counts."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def chat_logprobs(outputs: Sequence[TokenOutput], pieces: Pieces, wanted: int) -> dict[str, Any]:
    """Logprobs as chat completions have them: an entry a token, with its bytes, which may be part of a character."""
    content = []
    for output in outputs:
        assert output.token is not None
        best = (output.top_logprobs or ())[:wanted]
        entry = _spelt(output.token, output.logprob, pieces)
        content.append(entry | {"top_logprobs": [_spelt(token, logprob, pieces) for token, logprob in best]})
    return {"content": content, "refusal": None}


def _bytes(token: int, pieces: Pieces) -> bytes:
    """What a token adds to a text, or what it is called where it adds nothing, such as `<|endoftext|>`."""
    return pieces.piece(token) or (pieces.token(token) or "").encode()


def _spelt(token: int, logprob: float | None, pieces: Pieces) -> dict[str, object]:
    spelling = _bytes(token, pieces)
    return {"token": spelling.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(spelling)}


def text_logprobs(outputs: Sequence[TokenOutput], pieces: Pieces, wanted: int, offset: int = 0) -> dict[str, Any]:
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
        tops.append(_best(output, pieces, wanted))
    return {
        "tokens": tokens,
        "token_logprobs": [output.logprob for output in outputs],
        "top_logprobs": tops if wanted else None,
        "text_offset": offsets,
    }


def _best(output: TokenOutput, pieces: Pieces, wanted: int) -> dict[str, float] | None:
    """The best tokens by their texts, and the chosen one, which may be one more."""
    if output.logprob is None or output.token is None or not wanted:
        return None
    best = dict((output.top_logprobs or ())[:wanted])
    best.setdefault(output.token, output.logprob)
    told: dict[str, float] = {}
    for token, logprob in best.items():
        told.setdefault(_spelling(token, pieces), logprob)  # of two tokens of one text the better one
    return told


def prompt_logprobs(outputs: Sequence[TokenOutput], pieces: Pieces, wanted: int) -> list[dict[str, Any] | None]:
    """Logprobs of a prompt as vLLM has them: by token id, the chosen one among the best; null for the first one.

    `rank` counts from 1 and is null for a token that is not among the best that were asked for.
    """
    told: list[dict[str, Any] | None] = []
    for output in outputs:
        if output.logprob is None or output.token is None:
            told.append(None)
            continue
        best = list((output.top_logprobs or ())[:wanted])
        ranked: list[tuple[int, float, int | None]] = [(*entry, rank) for rank, entry in enumerate(best, 1)]
        if output.token not in {token for token, _ in best}:
            ranked.append((output.token, output.logprob, None))
        told.append(
            {
                str(token): {"logprob": logprob, "rank": rank, "decoded_token": _spelling(token, pieces)}
                for token, logprob, rank in ranked
            }
        )
    return told


def _spelling(token: int, pieces: Pieces) -> str:
    spelling = _bytes(token, pieces)
    try:
        return spelling.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelling)
