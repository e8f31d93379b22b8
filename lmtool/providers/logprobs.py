"""Tokens with logprobs, in the two forms that HTTP APIs have for them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lmtool.providers.answer_events import ChunkToken
from lmtool.providers.json_values import list_of, logprob_of, object_of, text_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lmtool.providers.answer_events import Alternative

_SPELLED_BYTES = re.compile(r"bytes:(?:\\x[0-9a-fA-F]{2})+")


def read_logprobs(value: object) -> tuple[ChunkToken, ...]:
    """The tokens of a choice's `logprobs`, whichever form it has; empty for none."""
    members = object_of(value)
    if isinstance(members.get("tokens"), list):
        return _columns(members)
    entries = [*list_of(members.get("content")), *list_of(members.get("refusal"))]
    return token_entries(entries)


def token_entries(value: object) -> tuple[ChunkToken, ...]:
    """The tokens of a list with an entry each: text, logprob, bytes, and the same of alternatives (chat, responses)."""
    return tuple([_entry(object_of(one)) for one in list_of(value)])


def _entry(one: Mapping[str, object]) -> ChunkToken:
    token = ChunkToken(text_of(one.get("token")), logprob_of(one.get("logprob")), _bytes(one.get("bytes")))
    listed = [object_of(other) for other in list_of(one.get("top_logprobs"))]
    if not listed:
        return token
    named = [
        (ChunkToken(text_of(other.get("token")), None, _bytes(other.get("bytes"))).piece, other.get("logprob"))
        for other in listed
    ]
    return ChunkToken(token.text, token.logprob, token.data, _best_first(named))


def _bytes(value: object) -> bytes | None:
    try:
        return bytes(value) if isinstance(value, list) else None
    except (TypeError, ValueError):  # no list of numbers below 256
        return None


def _columns(members: Mapping[str, object]) -> tuple[ChunkToken, ...]:
    """Four lists with an element a token: the form of completions."""
    texts, values, tops = (list_of(members.get(name)) for name in ("tokens", "token_logprobs", "top_logprobs"))
    tokens = []
    for i, text in enumerate(texts):
        named = [(_piece(name), value) for name, value in object_of(tops[i] if i < len(tops) else None).items()]
        piece = _piece(text_of(text))
        data = piece if isinstance(piece, bytes) else None
        logprob = logprob_of(values[i]) if i < len(values) else None
        tokens.append(ChunkToken(text_of(text), logprob, data, _best_first(named)))
    return tuple(tokens)


def _piece(text: str) -> str | bytes:
    r"""The token that a text spells: one that is no whole characters is `bytes:\xf0\x9f`."""
    return bytes.fromhex(text[6:].replace("\\x", "")) if _SPELLED_BYTES.fullmatch(text) else text


def _best_first(named: Iterable[tuple[str | bytes, object]]) -> tuple[Alternative, ...]:
    known = [(name, logprob) for name, value in named if (logprob := logprob_of(value)) is not None]
    return tuple(sorted(known, key=lambda one: -one[1]))
