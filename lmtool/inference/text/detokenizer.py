"""Detokenization: the text of single token ids, and streams of ids as text without partial characters.

`tokenizers.decoders.DecodeStream` is not used: it raises on bytes that are not UTF-8 once it has shown a character,
its time grows with the square of a run of such bytes, it is not told the end of a stream, and it takes no context.
"""

from __future__ import annotations

import codecs
import json
import re
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from tokenizers import Tokenizer


Piece: TypeAlias = bytes | str
"""UTF-8 bytes, possibly with partial characters at the ends, or whole characters."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Pieces(dict[int, Piece]):
    """Token id to the text it adds; empty for special and unknown ids.

    Filled on demand, at most one entry per id of the vocabulary.
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
        """Number of spaces dropped at the start of a text."""

    def __missing__(self, token_id: int) -> Piece:
        name = spelling(self._tokenizer, token_id)
        if name is None:
            return ""
        piece = "" if token_id in self._special else self._piece_of(name)
        self[token_id] = piece
        return piece


def spelling(tokenizer: Tokenizer, token_id: int) -> str | None:
    """Return an id's spelling in the vocabulary, such as `Ġthe` or `<0x0A>`; None for an unknown id."""
    return tokenizer.id_to_token(token_id) if 0 <= token_id < 2**32 else None


def pieces(tokenizer: Tokenizer, special: Collection[int]) -> Pieces | None:
    """Return the table for a tokenizer whose ids have fixed texts; None if they depend on their neighbours.

    special: ids that add no text.
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
    """Return the byte of each character in GPT-2's byte-level vocabularies.

    Visible Latin-1 characters represent themselves; the others are numbered from U+0100 (openai/gpt-2, encoder.py).
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


REPLACEMENT = "\ufffd"
"""Replacement for bytes that are not UTF-8."""

_UTF8 = codecs.getincrementaldecoder("utf-8")
_ESCAPED = re.compile("[\udc80-\udcff]")
_CONTEXT = 4
"""Number of visible context ids that are considered: a character has at most four bytes."""


class PieceDetokenizer:
    """A `Detokenizer` for ids with fixed bytes or texts (see `Pieces`).

    The pieces together are the text of context and stream without the text of the context; a character that is
    incomplete at the end of the context belongs to the stream that completes it.

    Bytes that are no UTF-8 become U+FFFD: one for each maximal part of a character in byte-level vocabularies, as the
    Unicode standard advises (section 3.9, U+FFFD substitution of maximal subparts), one for each byte in vocabularies
    with byte fallback, as SentencePiece does. Here `tokenizers` differs: one bad byte turns the whole run of byte
    tokens around it, sound characters too, into U+FFFD, which no stream can do that shows characters once complete.
    """

    __slots__ = ("_decoder", "_lead", "_owed", "_pieces")

    def __init__(self, pieces: Pieces, context: Sequence[int] = ()) -> None:
        self._pieces = pieces
        self._decoder = _UTF8(pieces.bad_bytes)
        self._lead = pieces.lead
        self._owed = 0
        recent, whole = _tail(context, lambda token: bool(pieces[token]))
        if not whole:
            self._lead = 0
        for token in recent:
            self.push(token)
        if still_open := self._decoder.getstate()[0]:
            self._owed = len(still_open.decode(errors=pieces.bad_bytes))
            self._lead = 0

    def push(self, token: int) -> str:
        """Take the next id; return the whole characters that it completes, possibly none."""
        piece = self._pieces[token]
        if not piece:
            return ""
        return self._clean(self._decoder.decode(piece) if isinstance(piece, bytes) else self._close() + piece)

    def finish(self) -> str:
        """Return the text held back, an incomplete character as U+FFFD. Nothing may be pushed afterwards."""
        return self._clean(self._close())

    def _close(self) -> str:
        return self._decoder.decode(b"", final=True)

    def _clean(self, text: str) -> str:
        if not text:
            return ""
        if not text.isascii():
            text = _ESCAPED.sub(REPLACEMENT, text)
        if self._owed:  # U+FFFD that the context's own text shows for the character open at its end
            text = _drop(text, REPLACEMENT, self._owed)
            self._owed = 0
        if self._lead:
            rest = _drop(text, " ", self._lead)
            self._lead -= self._lead if rest else len(text)
            text = rest
        return text


class WindowDetokenizer:
    """A `Detokenizer` for every other decoder, such as WordPiece: decodes the last few ids again at each push.

    Exact where an id's text depends on no more than the visible id before it. U+FFFD at the end is held back for at
    most three ids, for unknown chains of decoders that may join bytes.
    """

    __slots__ = ("_decode", "_held", "_shown", "_visible", "_window")

    def __init__(
        self, decode: Callable[[list[int]], str], visible: Callable[[int], bool], context: Sequence[int] = ()
    ) -> None:
        self._decode = decode
        self._visible = visible
        self._window, _ = _tail(context, visible)
        self._shown = len(decode(self._window))
        self._held = 0

    def push(self, token: int) -> str:
        """Take the next id; return the whole characters that it completes, possibly none."""
        if not self._visible(token):
            return ""
        self._window.append(token)
        text = self._decode(self._window)
        if text.endswith(REPLACEMENT) and self._held < _CONTEXT - 1:
            self._held += 1
            return ""
        fresh = text[self._shown :]
        self._held = 0
        self._window = self._window[-_CONTEXT:]
        self._shown = len(self._decode(self._window))
        return fresh

    def finish(self) -> str:
        """Return the text held back. Nothing may be pushed afterwards."""
        return self._decode(self._window)[self._shown :] if self._held else ""


def _drop(text: str, character: str, most: int) -> str:
    """Return the text without up to `most` leading occurrences of `character`."""
    return text[min(most, len(text) - len(text.lstrip(character))) :]


def _tail(context: Sequence[int], visible: Callable[[int], bool]) -> tuple[list[int], bool]:
    """Return the last visible ids of a context, and True if these are all."""
    found: Iterable[int] = (token for token in reversed(context) if visible(token))
    recent = list(islice(found, _CONTEXT + 1))
    return recent[:_CONTEXT][::-1], len(recent) <= _CONTEXT
