"""Blocks of what an assistant thought: signed by the API that made them, or in our own way."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from lmtool.core.reasoning import SignedThought, ThoughtSignature

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

THINKING, REDACTED = "thinking", "redacted_thinking"
KINDS = frozenset({THINKING, REDACTED})
"""The second one cannot be read."""


def own_signature(text: str) -> str:
    """Of a thought that nobody has signed: clients take one without for broken. Nobody checks it."""
    return hashlib.sha256(text.encode()).hexdigest()


def signed_thought(block: Mapping[str, object]) -> SignedThought | None:
    """The thought of a block as its API wants to have it back; None where none has signed it."""
    if block.get("type") == REDACTED:
        data = block.get("data")
        return SignedThought("", ThoughtSignature(data, is_redacted=True)) if isinstance(data, str) and data else None
    text, signature = block.get("thinking"), block.get("signature")
    if not isinstance(text, str) or not isinstance(signature, str) or signature in ("", own_signature(text)):
        return None
    return SignedThought(text, ThoughtSignature(signature))


def block_of(part: SignedThought) -> dict[str, Any]:
    """The block of a signed thought."""
    if part.signature.is_redacted:
        return {"type": REDACTED, "data": part.signature.value}
    return {"type": THINKING, "thinking": part.text, "signature": part.signature.value}


def blocks_of(reasoning: str, signed_thoughts: Sequence[SignedThought]) -> Iterator[dict[str, Any]]:
    """The blocks of a whole thought, of which some parts are signed."""
    yield from map(block_of, signed_thoughts)
    if rest := reasoning[sum(len(one.text) for one in signed_thoughts) :]:
        yield block_of(SignedThought(rest, ThoughtSignature(own_signature(rest))))
