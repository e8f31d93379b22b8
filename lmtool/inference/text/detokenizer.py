"""How the ids of one stream become text as they come, never half a character.

`tokenizers.decoders.DecodeStream` is not used: it raises on bytes that are no UTF-8 after a character was shown, its
time grows with the square of a run of such bytes, it does not learn that a stream ends, and it knows no context.
"""

from __future__ import annotations

import codecs
import re
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lmtool.inference.text.pieces import Pieces

REPLACEMENT = "\ufffd"
"""Stands for bytes that are no UTF-8."""

_UTF8 = codecs.getincrementaldecoder("utf-8")
_ESCAPED = re.compile("[\udc80-\udcff]")
_CONTEXT = 4
"""Visible ids of the context that are looked at: a character has at most four bytes."""


class PieceDetokenizer:
    """A `Detokenizer` for ids that stand for bytes or fixed texts, whatever their neighbours (see `Pieces`).

    The pieces together are the text of all ids of context and stream, less the text of the context; a character that
    is open at the context's end belongs to the stream that completes it.

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
        """Return what is still held back, an open character as U+FFFD. Nothing may be pushed afterwards."""
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
    most three ids, for chains of decoders that this room does not know and that may join bytes.
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
        """Return what is still held back. Nothing may be pushed afterwards."""
        return self._decode(self._window)[self._shown :] if self._held else ""


def _drop(text: str, character: str, most: int) -> str:
    """Return the text without its first characters, at most so many, that are `character`."""
    return text[min(most, len(text) - len(text.lstrip(character))) :]


def _tail(context: Sequence[int], visible: Callable[[int], bool]) -> tuple[list[int], bool]:
    """Return the last visible ids of a context, and whether there are no others."""
    found: Iterable[int] = (token for token in reversed(context) if visible(token))
    recent = list(islice(found, _CONTEXT + 1))
    return recent[:_CONTEXT][::-1], len(recent) <= _CONTEXT
