"""How the tokens of one stream break into lines of a width; extended as they come, kept until the width changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lmtool.tui.runs import visible, width

if TYPE_CHECKING:
    from lmtool.tui.state import State
    from lmtool.tui.streams import Stream


class Part(NamedTuple):
    """A token, or a part of it, on a line."""

    position: int
    """Of the token in its stream; -1: of the prompt."""
    text: str


class Layout:
    """Lines of parts. A token that does not fit goes to the next line whole, unless it is wider than a line."""

    def __init__(self, state: State, stream: Stream, columns: int, *, blanks: bool = False) -> None:
        """Begin with the prompt. columns: at least 2."""
        self._state = state
        self._stream = stream
        self.columns = max(2, columns)
        self.blanks = blanks
        self.corrections = state.texts.corrections
        """Of the texts that are laid out; after another one they are no longer what tokens mean."""
        self.lines: list[list[Part]] = [[]]
        self.line_of: list[int] = []
        """For each token the line that it begins on."""
        self._used = 0
        prompt = state.prompt_text(stream)
        if prompt:
            self._put(-1, prompt)

    def extend(self, count: int) -> None:
        """Take tokens until so many are laid out."""
        while len(self.line_of) < count:
            position = len(self.line_of)
            text = self._state.shown(self._stream, position)
            first = visible(text.partition("\n")[0], blanks=self.blanks)
            if self._used and self._used + width(first) > self.columns and width(first) <= self.columns:
                self._break()
            self.line_of.append(len(self.lines) - 1)
            self._put(position, text)

    def _put(self, position: int, text: str) -> None:
        if not text:
            self.lines[-1].append(Part(position, ""))
        pieces = text.split("\n")
        for i, piece in enumerate(pieces):
            shown = visible(piece, blanks=self.blanks)
            if i < len(pieces) - 1 and (self.blanks or not shown):
                shown += "⏎" if self.blanks else ""
            self._piece(position, shown)
            if i < len(pieces) - 1:
                self._break()

    def _piece(self, position: int, text: str) -> None:
        while text:
            left = self.columns - self._used
            part, text = _split(text, left) if width(text) > left else (text, "")
            if part:
                self.lines[-1].append(Part(position, part))
                self._used += width(part)
            if text:
                self._break()

    def _break(self) -> None:
        self.lines.append([])
        self._used = 0


def _split(text: str, columns: int) -> tuple[str, str]:
    used = 0
    for i, character in enumerate(text):
        used += width(character)
        if used > columns:
            return text[:i], text[i:]
    return text, ""
