"""Tokens with logprobs, in the two forms that HTTP APIs have for them."""

from __future__ import annotations

from lmtool.protocol.providers.answer_events import ChunkToken, piece_of
from lmtool.protocol.providers.json_values import list_of, logprob_of, object_of


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
