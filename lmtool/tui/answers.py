"""What an event brings to streams, whatever the protocol: tokens, endings, alternatives."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from lmtool.lmtp import json_text
from lmtool.lmtp.json_text import JsonTextError
from lmtool.trace.entries import entries_of, objects_of
from lmtool.trace.events import Parsed, Piece

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lmtool.trace.events import Event

Alternative: TypeAlias = "tuple[int | str, float]"
"""Token id, or its text where the protocol has no ids, and its logprob in nats."""


@dataclass(frozen=True, slots=True)
class Brought:
    """One token of an OpenAI-compatible answer, or its ending."""

    choice: int
    text: str = ""
    logprob: float = math.nan
    top: tuple[Alternative, ...] = ()
    finish_reason: str | None = None
    error: str | None = None

    @property
    def token(self) -> bool:
        """Whether it is a token, or a piece of text of unknown tokens."""
        return bool(self.text) or not math.isnan(self.logprob)


def chunk(piece: Piece) -> list[Brought]:
    """What a server-sent event or a whole body of an OpenAI-compatible server brings; empty for anything else."""
    value = _object(_value(piece))
    brought: list[Brought] = []
    choices = value.get("choices")
    for choice in choices if isinstance(choices, list) else []:
        brought += _choice(_object(choice))
    if value.get("error") is not None:
        error = value["error"]
        brought.append(Brought(0, error=str(_object(error).get("message", error))))
    return brought


def _value(piece: Piece) -> object:
    """The JSON value of a piece, however it is spelled; None where there is none."""
    content = piece.content
    if isinstance(content, Parsed):
        return content.value
    if isinstance(content, bytes):
        return None
    if piece.kind == "sse":
        content = "\n".join(line[5:] for line in content.splitlines() if line.startswith("data:"))
    try:
        return json_text.load(content)
    except JsonTextError:
        return None


def _choice(choice: Mapping[str, object]) -> Iterator[Brought]:
    index = choice.get("index")
    number = index if type(index) is int and index >= 0 else 0
    message = _object(choice.get("delta", choice.get("message")))
    tokens = list(_tokens(number, _object(choice.get("logprobs"))))
    text = choice.get("text", message.get("content"))
    if not tokens and isinstance(text, str) and text:
        tokens = [Brought(number, text)]
    yield from tokens
    reason = choice.get("finish_reason")
    if reason is not None:
        yield Brought(number, finish_reason=str(reason))


def _tokens(number: int, logprobs: Mapping[str, object]) -> Iterator[Brought]:
    content = logprobs.get("content")
    if isinstance(content, list):  # chat completions
        for one in map(_object, content):
            listed = one.get("top_logprobs")
            others = map(_object, listed if isinstance(listed, list) else ())
            top = [(str(other.get("token")), _number(other.get("logprob"))) for other in others]
            yield Brought(number, str(one.get("token", "")), _number(one.get("logprob")), tuple(top))
        return
    texts, values, tops = (logprobs.get(name) for name in ("tokens", "token_logprobs", "top_logprobs"))
    for i, text in enumerate(texts if isinstance(texts, list) else ()):  # completions
        named = _object(tops[i]) if isinstance(tops, list) and i < len(tops) else {}
        value = values[i] if isinstance(values, list) and i < len(values) else None
        top = [(str(name), _number(p)) for name, p in named.items()]
        yield Brought(number, str(text), _number(value), tuple(top))


def tops(event: Event) -> list[object]:
    """For each token that an event brings, in order, what it came beside; `alternatives` reads it."""
    if isinstance(event, Piece):
        return [one.top for one in chunk(event) if one.token]
    pairs = zip(objects_of(event), entries_of(event), strict=True)
    return [one.get("top_logprobs") for one, entry in pairs if entry.token_or_text]


def alternatives(top: object) -> tuple[Alternative, ...]:
    """What a token came beside, best first."""
    found = top if isinstance(top, tuple) else _named(top)
    return tuple(sorted((one for one in found if not math.isnan(one[1])), key=lambda one: -one[1]))


def _named(top: object) -> Iterator[Alternative]:
    for name, logprob in top.items() if isinstance(top, dict) else ():
        if name.isascii() and name.isdigit() and len(name) < 10:
            yield int(name), _number(logprob)


def _number(value: object) -> float:
    """A finite number; nan for anything else."""
    return float(value) if type(value) in (int, float) and math.isfinite(value) else math.nan  # type: ignore[arg-type] # a number


def _object(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}
