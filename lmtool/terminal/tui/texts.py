"""What tokens mean: text by id from vocabularies, and the text of a stream in which every character is whole."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, TypeVar

from lmtool.terminal.tui.columns import NO_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lmtool.terminal.tui.columns import TokenLog
    from lmtool.terminal.tui.streams import Stream

T = TypeVar("T", str, str | bytes)


class Texts:
    """Texts of ids and of tokens of a log, from vocabularies and from what servers sent."""

    def __init__(self, tokens: TokenLog) -> None:
        self._tokens = tokens
        self._vocab: dict[int, str | bytes] = {}
        self._interned: dict[tuple[str | bytes, bool], int] = {}
        self._without_id: list[tuple[str | bytes, bool]] = []
        self._row_texts: dict[int, str] = {}
        """By row, as the server sent them."""
        self._spellings: dict[int, _Spelling] = {}
        self.special_names: dict[int, str] = {}
        """What ids are called that add no text, such as `<|eos|>`."""
        self.corrections = 0
        """Grows when a vocabulary explains what was shown as `⟨#7⟩`: cached texts are outdated then."""

    def learn(self, tokens: Mapping[int, str | bytes]) -> None:
        """Add a vocabulary, or a part of one."""
        self._vocab.update(tokens)
        for spelling in self._spellings.values():
            self.corrections += spelling.forget_guesses()

    def intern(self, text: str | bytes, *, piece: bool = False) -> int:
        """A number below `NO_ID` that stands for this text; piece: for text of unknown tokens."""
        text = _encodable(text)
        place = self._interned.setdefault((text, piece), len(self._without_id))
        if place == len(self._without_id):
            self._without_id.append((text, piece))
        return NO_ID - 1 - place

    def is_piece(self, token: int) -> bool:
        """Whether it is text of tokens that the server did not name, not a token."""
        return token < NO_ID and self._without_id[NO_ID - 1 - token][1]

    def set_text(self, row: int, text: str) -> None:
        """Set the text that a token completes, as a server sent it; a vocabulary that has its id counts more."""
        if self._tokens.ids[row] not in self._vocab:
            self._row_texts[row] = _encodable(text)

    def piece(self, token: int) -> str | bytes:
        """What an id means: text, or bytes inside a character; `⟨#7⟩` where that is not known."""
        if token < NO_ID:
            return self._without_id[NO_ID - 1 - token][0]
        return self._vocab.get(token, f"⟨#{token}⟩")

    def meaning(self, token: int) -> str | bytes | None:
        """What a vocabulary says that an id means; None where none does."""
        return self._vocab.get(token)

    def special_name(self, token: int) -> str:
        """The name of an id that adds no text: `<|eos|>`, `⟨#7⟩` where it has none; empty for every other id."""
        known = token in self._vocab
        if (known and self._vocab[token]) or (not known and token not in self.special_names):
            return ""
        return self.special_names.get(token, f"⟨#{token}⟩")

    def of_id(self, token: int) -> str:
        """What an id means, on its own: bytes inside a character as `⟨f0 9f⟩`, no text by name: `<|eos|>`, `⟨#7⟩`."""
        piece = self.piece(token)
        name = self.special_name(token)
        return name or (f"⟨{piece.hex(' ')}⟩" if isinstance(piece, bytes) and piece else piece or f"⟨#{token}⟩")

    def spelling(self, token: int) -> bytes | None:
        """The bytes that an id adds to a text; None where they are not known."""
        if token >= NO_ID and token not in self._vocab:
            return None
        piece = self.piece(token)
        return piece if isinstance(piece, bytes) else None if "\ufffd" in piece and token < NO_ID else piece.encode()

    def differences(self, spell: Callable[[int], bytes]) -> dict[int, bool]:
        """For each id that both spell whether the bytes differ; a special one, which adds no text, is left out."""
        pieces = {token: piece.encode() if isinstance(piece, str) else piece for token, piece in self._vocab.items()}
        return {token: other != piece for token, piece in pieces.items() if piece and (other := spell(token))}

    def quote(self, token: int) -> str:
        """What an id means, between quotes; what is no text, such as `⟨f0 9f⟩` and `⟨#7⟩`, stands without."""
        piece = self.piece(token)
        is_text = isinstance(piece, str) and piece and (token < NO_ID or token in self._vocab)
        return repr(piece) if is_text else self.of_id(token)

    def quote_row(self, row: int) -> str:
        """The text of a token of the log."""
        text = self._row_texts.get(row)
        return repr(text) if text else self.quote(self._tokens.ids[row])

    def text_or_none(self, row: int) -> str | None:
        """What a token of the log means on its own; None where that is not known."""
        token = self._tokens.ids[row]
        return self._row_texts.get(row) or (self.of_id(token) if token < NO_ID or token in self._vocab else None)

    def of_row(self, row: int) -> str:
        """What a token of the log means on its own."""
        return self._row_texts.get(row) or self.of_id(self._tokens.ids[row])

    def text_at(self, stream: Stream, position: int) -> str:
        """The text that the token at this position completes: a character belongs to its last token.

        A character that a finished stream left open becomes U+FFFD at its last token.
        """
        spelling = self._spellings.get(stream.index)
        if spelling is None:
            spelling = self._spellings[stream.index] = _Spelling()
        while len(spelling.texts) <= position:
            row = stream.rows[len(spelling.texts)]
            token = self._tokens.ids[row]
            text = self._row_texts.get(row)
            guess = text is None and token >= NO_ID and token not in self._vocab
            spelling.add(self.piece(token) if text is None else text, guess=guess)
        shown = spelling.texts[position]
        if position == len(stream.rows) - 1 and stream.ended is not None and spelling.open:
            return f"{shown}\ufffd"
        return shown


def _encodable(text: T) -> T:
    """The same text; a server's halves of characters, of which no text can be made, become U+FFFD."""
    if isinstance(text, str) and not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


class _Spelling:
    """The text of one stream, token by token; characters come out whole."""

    __slots__ = ("_decoder", "_guess", "texts")

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._guess: tuple[int, tuple[bytes, int]] | None = None
        self.texts: list[str] = []

    @property
    def open(self) -> bool:
        """Whether the last token ends inside a character."""
        return bool(self._decoder.getstate()[0])

    def add(self, piece: str | bytes, *, guess: bool) -> None:
        """Add the next token's piece. guess: whether it only stands in for an unknown one."""
        if guess and self._guess is None:
            self._guess = len(self.texts), self._decoder.getstate()
        if isinstance(piece, str) and not self.open:
            self.texts.append(piece)
        else:
            self.texts.append(self._decoder.decode(piece if isinstance(piece, bytes) else piece.encode()))

    def forget_guesses(self) -> bool:
        """Drop everything from the first guess on; whether there was one."""
        if self._guess is None:
            return False
        place, state = self._guess
        del self.texts[place:]
        self._decoder.setstate(state)
        self._guess = None
        return True
