"""Answers of OpenAI-compatible servers, whole or streamed, as observations; what vLLM adds to them is read as well."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lmtool.measure.audit.evidence import Answer, Choice, Count, Token
from lmtool.protocol.providers import openai_completions
from lmtool.protocol.providers.answer_events import AnswerFailed, ChatAnswer, ChoiceFinished
from lmtool.protocol.providers.body_parts import EventStream, form_of
from lmtool.protocol.providers.json_values import count_of, list_of, load, logprob_of, object_of, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lmtool.measure.audit.evidence import Name, Question
    from lmtool.protocol.providers.answer_events import ChunkToken, Piece

IMPOSSIBLE = -9999.0
"""Nats: what OpenAI's API and vLLM write for a token that cannot come, in place of minus infinity."""
_ID = re.compile(r"token_id:(\d+)")


@dataclass(frozen=True, slots=True)
class HttpReply:
    """The answer to a POST, read to its end."""

    exchange: int
    """Its number in the trace."""
    status: int
    content_type: str
    body: bytes
    failure: str = ""
    """Why it is not complete; empty where it is."""
    retry_after: float = 1.0
    """Seconds after which a server that is busy wants to be asked again."""


@dataclass(slots=True)
class _Parts:
    """What an answer has beside what its events tell, each list by choice."""

    ids: dict[int, list[int]] = field(default_factory=dict)
    endings: dict[int, int] = field(default_factory=dict)
    ordered: dict[int, bool] = field(default_factory=dict)
    prompt_ids: tuple[int, ...] | None = None
    prompt: Sequence[object] = ()
    count: Count | None = None
    failure: str = ""


def read_answer(reply: HttpReply, question: Question) -> Answer:
    """The answer in a reply; one that is an error, or none at all, is a refusal in the server's words."""
    values = list(_values(reply))
    folded, parts = ChatAnswer(), _Parts()
    for value in values:
        failed = AnswerFailed.of(value)
        if failed is not None:
            parts.failure = parts.failure or failed.message
        events = list(openai_completions.read(value))
        folded.add(events)
        for event in events:
            if isinstance(event, ChoiceFinished):
                parts.endings[event.choice] = parts.endings.get(event.choice, 0) + 1
        _read_more(value, parts)
    if refusal := _refusal(reply, parts.failure, answered=bool(folded.choices)):
        return Answer(question, reply.exchange, refusal=refusal)
    choices = [
        Choice(
            tuple(_token(one, ordered=parts.ordered.get(number, False)) for one in choice.tokens),
            choice.content,
            choice.finish_reason,
            parts.endings.get(number, 0),
            tuple(parts.ids[number]) if number in parts.ids else None,
        )
        for number, choice in sorted(folded.choices.items())
    ]
    prompt = tuple(_prompt_token(entry, parts.prompt_ids, at) for at, entry in enumerate(parts.prompt))
    return Answer(question, reply.exchange, tuple(choices), prompt, parts.prompt_ids, parts.count)


def _values(reply: HttpReply) -> Iterator[Mapping[str, object]]:
    """The JSON objects of the body."""
    if form_of(reply.content_type) == "events":
        values = [load(event.data) for event in EventStream().events(reply.body)]
    else:
        values = [load(reply.body)]
    return (_named_by_id(value) for value in values if isinstance(value, dict))


def _named_by_id(value: dict[str, object]) -> dict[str, object]:
    """The same without the bytes of tokens that are named by their ids: these tell which of two alike it is."""
    for choice in list_of(value.get("choices")):
        for entry in list_of(object_of(object_of(choice).get("logprobs")).get("content")):
            for one in (entry, *list_of(object_of(entry).get("top_logprobs"))):
                if isinstance(one, dict) and _ID.fullmatch(text_of(one.get("token"))):
                    one.pop("bytes", None)
    return value


def _refusal(reply: HttpReply, failure: str, *, answered: bool) -> str:
    if reply.failure:
        return reply.failure
    if failure:
        return f"{failure[:300]} (HTTP {reply.status})" if reply.status != 200 else failure[:300]
    if reply.status != 200:
        text = " ".join(reply.body[:200].decode("utf-8", "replace").split())
        return f"HTTP {reply.status}{f': {text}' if text else ''}"
    return "" if answered else "the answer has no choices"


def _read_more(value: Mapping[str, object], parts: _Parts) -> None:
    """Take what the events of a chunk do not have: ids, the prompt's tokens, the total of the usage."""
    for place, entry in enumerate(list_of(value.get("choices"))):
        choice = object_of(entry)
        number = count_of(choice.get("index"))
        number = place if number is None else number
        if isinstance(ids := choice.get("token_ids"), list):
            parts.ids.setdefault(number, []).extend(one for one in ids if type(one) is int)
        logprobs = object_of(choice.get("logprobs"))
        parts.ordered[number] = parts.ordered.get(number, False) or isinstance(logprobs.get("content"), list)
        _read_prompt(choice, parts)
    _read_prompt(value, parts)
    usage = value.get("usage")
    if isinstance(usage, dict):
        names = ("prompt_tokens", "completion_tokens", "total_tokens")
        parts.count = Count(*(count_of(usage.get(name)) for name in names))


def _read_prompt(members: Mapping[str, object], parts: _Parts) -> None:
    if isinstance(ids := members.get("prompt_token_ids"), list):
        parts.prompt_ids = tuple(one for one in ids if type(one) is int)
    if isinstance(entries := members.get("prompt_logprobs"), list):
        parts.prompt = entries


def _token(token: ChunkToken, *, ordered: bool) -> Token:
    alternatives = tuple((_name(piece), value) for piece, value in token.alternatives_as_sent if value > IMPOSSIBLE)
    return Token(_name(token.piece), token.logprob, alternatives, ordered)


def _name(piece: Piece) -> Name:
    found = _ID.fullmatch(piece) if isinstance(piece, str) else None
    return piece if found is None else int(found[1])


def _prompt_token(entry: object, ids: tuple[int, ...] | None, at: int) -> Token | None:
    """A token of vLLM's `prompt_logprobs`, by id; without the prompt's ids the first entry is the token's own."""
    members = {name: object_of(one) for name, one in object_of(entry).items() if name.isdecimal()}
    if not members:
        return None
    own = str(ids[at]) if ids is not None and at < len(ids) else next(iter(members))
    values = {int(name): logprob_of(one.get("logprob")) for name, one in members.items()}
    known = tuple((name, value) for name, value in values.items() if value is not None)
    return Token(int(own), values.get(int(own)), known, ordered=False) if own in members else None


def model_names(body: bytes) -> list[str]:
    """The names in an answer of `/models`."""
    entries = list_of(object_of(load(body)).get("data"))
    return [name for entry in entries if (name := text_of(object_of(entry).get("id")))]
