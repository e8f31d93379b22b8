"""What one token id adds to a text, for each family of tokenizer decoders."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from tokenizers import Tokenizer

Piece: TypeAlias = bytes | str
"""Bytes of UTF-8 that may begin or end inside a character, or whole characters."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Pieces(dict[int, Piece]):
    """Token id to what it adds to a text; nothing for special ids and ids that the tokenizer does not know.

    Filled as ids are asked for, never larger than the vocabulary.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        special: Collection[int],
        piece_of: Callable[[str], Piece],
        *,
        bad_bytes: str,
        lead: int,
    ) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._special = special
        self._piece_of = piece_of
        self.bad_bytes = bad_bytes
        """Error handler of `bytes.decode` for bytes that are no UTF-8."""
        self.lead = lead
        """How many blanks are dropped at the very start of a text."""

    def __missing__(self, token_id: int) -> Piece:
        name = spelling(self._tokenizer, token_id)
        if name is None:
            return ""
        piece = "" if token_id in self._special else self._piece_of(name)
        self[token_id] = piece
        return piece


def spelling(tokenizer: Tokenizer, token_id: int) -> str | None:
    """Return an id's text in the vocabulary, such as `Ġthe` or `<0x0A>`; None for an unknown id."""
    return tokenizer.id_to_token(token_id) if 0 <= token_id < 2**32 else None


def pieces(tokenizer: Tokenizer, special: Collection[int]) -> Pieces | None:
    """Return the table for tokenizers whose ids stand for bytes or fixed texts; None where ids depend on neighbours.

    special: ids that never show as text.
    """
    stages = _stages(tokenizer)
    kinds = [stage["type"] for stage in stages]
    if kinds == ["ByteLevel"]:
        return Pieces(tokenizer, special, _byte_level_piece, bad_bytes="replace", lead=0)
    if kinds in (["Replace", "ByteFallback", "Fuse"], ["Replace", "ByteFallback", "Fuse", "Strip"]):
        return _byte_fallback(tokenizer, special, stages)
    return None


def _stages(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    if tokenizer.decoder is None:
        return []
    decoder = json.loads(tokenizer.decoder.__getstate__())
    stages: list[dict[str, Any]] = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    return stages


def _byte_alphabet() -> dict[str, int]:
    """Return the character that stands for each byte in GPT-2's byte-level vocabularies.

    Visible Latin-1 characters stand for themselves; the others are counted up from U+0100 (openai/gpt-2, encoder.py).
    """
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(0x100 + i): byte for i, byte in enumerate(hidden)}


_BYTES = _byte_alphabet()


def _byte_level_piece(name: str) -> bytes:
    try:
        return bytes([_BYTES[character] for character in name])
    except KeyError:  # an added token, which is spelled as it reads
        return name.encode()


def _byte_fallback(tokenizer: Tokenizer, special: Collection[int], stages: list[dict[str, Any]]) -> Pieces | None:
    replace = stages[0]
    strip: dict[str, Any] = stages[3] if len(stages) > 3 else {"content": " ", "start": 0, "stop": 0}
    pattern = replace["pattern"].get("String")
    if pattern is None or strip["content"] != " " or strip["stop"]:
        return None

    def piece_of(name: str) -> Piece:
        text = name.replace(pattern, replace["content"])
        byte = _BYTE_TOKEN.fullmatch(text)
        return bytes([int(byte[1], 16)]) if byte else text

    return Pieces(tokenizer, special, piece_of, bad_bytes="surrogateescape", lead=strip["start"])
