"""What tokens mean: text by id from vocabularies, and the text of a stream in which every character is whole."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

from lmtool.tui.tokens import NO_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lmtool.tui.streams import Stream
    from lmtool.tui.tokens import TokenLog


class Texts:
    """Learns what ids mean; tells it for tokens of a log."""

    def __init__(self, tokens: TokenLog) -> None:
        self._tokens = tokens
        self._vocab: dict[int, str | bytes] = {}
        self._interned: dict[tuple[str | bytes, bool], int] = {}
        self._named: list[tuple[str | bytes, bool]] = []
        self._given: dict[int, str] = {}
        self._spellings: dict[int, _Spelling] = {}
        self.corrections = 0
        """How often a vocabulary told what had been shown as `⟨#7⟩` before: whoever keeps texts must ask again."""

    def learn(self, tokens: Mapping[int, str | bytes]) -> None:
        """Take a vocabulary, or a part of one."""
        self._vocab.update(tokens)
        for spelling in self._spellings.values():
            self.corrections += spelling.forget_guesses()

    def intern(self, text: str | bytes, *, piece: bool = False) -> int:
        """A number below `NO_ID` that stands for this text; piece: for text of unknown tokens."""
        place = self._interned.setdefault((text, piece), len(self._named))
        if place == len(self._named):
            self._named.append((text, piece))
        return NO_ID - 1 - place

    def is_piece(self, token: int) -> bool:
        """Whether it is text of tokens that nobody named, not a token."""
        return token < NO_ID and self._named[NO_ID - 1 - token][1]

    def give(self, row: int, text: str) -> None:
        """A server sent the text that a token of the log completes; a vocabulary that knows its id counts more."""
        if self._tokens.ids[row] not in self._vocab:
            self._given[row] = text

    def piece(self, token: int) -> str | bytes:
        """What an id means: text, or bytes inside a character; `⟨#7⟩` where nobody told."""
        if token < NO_ID:
            return self._named[NO_ID - 1 - token][0]
        return self._vocab.get(token, f"⟨#{token}⟩")

    def of_id(self, token: int) -> str:
        """What an id means, on its own: bytes inside a character as `⟨f0 9f⟩`, no text, as of eos, as `⟨#7⟩`."""
        piece = self.piece(token)
        return f"⟨{piece.hex(' ')}⟩" if isinstance(piece, bytes) and piece else piece or f"⟨#{token}⟩"

    def spelling(self, token: int) -> bytes | None:
        """The bytes that an id adds to a text; None where nobody told."""
        if token >= NO_ID and token not in self._vocab:
            return None
        piece = self.piece(token)
        return piece if isinstance(piece, bytes) else None if "\ufffd" in piece and token < NO_ID else piece.encode()

    def differences(self, spell: Callable[[int], bytes]) -> dict[int, bool]:
        """For each id that both spell whether it is otherwise; a special one, which adds no text, tells nothing."""
        pieces = {token: piece.encode() if isinstance(piece, str) else piece for token, piece in self._vocab.items()}
        return {token: other != piece for token, piece in pieces.items() if piece and (other := spell(token))}

    def quote(self, token: int) -> str:
        """What an id means, between quotes; what is no text, such as `⟨f0 9f⟩` and `⟨#7⟩`, stands without."""
        piece = self.piece(token)
        known = isinstance(piece, str) and piece and (token < NO_ID or token in self._vocab)
        return repr(piece) if known else self.of_id(token)

    def quote_row(self, row: int) -> str:
        """The same of a token of the log."""
        given = self._given.get(row)
        return repr(given) if given else self.quote(self._tokens.ids[row])

    def known(self, row: int) -> str | None:
        """The same of a token of the log; None where nobody told it."""
        token = self._tokens.ids[row]
        return self._given.get(row) or (self.of_id(token) if token < NO_ID or token in self._vocab else None)

    def of_row(self, row: int) -> str:
        """What a token of the log means on its own."""
        return self._given.get(row) or self.of_id(self._tokens.ids[row])

    def shown(self, stream: Stream, position: int) -> str:
        """The text that the token at this position completes: a character belongs to its last token.

        What a stream that is over left open is shown as U+FFFD at its last token.
        """
        spelling = self._spellings.get(stream.index)
        if spelling is None:
            spelling = self._spellings[stream.index] = _Spelling()
        while len(spelling.texts) <= position:
            row = stream.rows[len(spelling.texts)]
            token = self._tokens.ids[row]
            given = self._given.get(row)
            known = given is not None or token < NO_ID or token in self._vocab
            spelling.add(self.piece(token) if given is None else given, guessed=not known)
        text = spelling.texts[position]
        if position == len(stream.rows) - 1 and stream.ended is not None and spelling.open:
            return f"{text}\ufffd"
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

    def add(self, piece: str | bytes, *, guessed: bool) -> None:
        """Take the next token's piece. guessed: whether it only stands in for what is not known."""
        if guessed and self._guess is None:
            self._guess = len(self.texts), self._decoder.getstate()
        if isinstance(piece, str) and not self.open:
            self.texts.append(piece)
        else:
            self.texts.append(self._decoder.decode(piece if isinstance(piece, bytes) else piece.encode()))

    def forget_guesses(self) -> bool:
        """Drop what was told from the first guess on; whether there was one."""
        if self._guess is None:
            return False
        place, state = self._guess
        del self.texts[place:]
        self._decoder.setstate(state)
        self._guess = None
        return True
