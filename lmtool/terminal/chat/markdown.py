"""Markdown drawn as it arrives: headings, emphasis, code, lists; marks that say no more than a style are left out.

What cannot be known before more arrives, such as a line's first characters, is held back, never more than a few
characters. Emphasis ends with its line: a lone asterisk does not change the rest of an answer. Tables, links and HTML
stay as they are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.core.types import TokenOutput
    from lmtool.terminal.chat.heat import Depth
    from lmtool.terminal.chat.interleave import Piece

CODE: Mapping[Depth, str] = {"256": "38;5;73", "16": "36", "attributes": "", "none": ""}
"""SGR parameters of code; where there are none its backticks are shown."""
_BLOCK = re.compile(
    r"(?P<indent> *)(?:(?P<heading>#{1,6}) +(?=\S)|(?P<fence>`{3,}|~{3,})|(?P<bullet>[-*+]) +(?=\S)|(?P<quote>>) ?)"
)
_RULE = re.compile(r" {0,3}(?:(?:- *){3,}|(?:\* *){3,}|(?:_ *){3,})")
_UNDECIDED = re.compile(r" *(?:#{1,6} *|[-*+] *|`+|~+|>|[-*_ ]+)?")
"""Beginnings of lines that may still become a block's mark."""
_INLINE = re.compile(r"\\[!-/:-@\[-`{-~]|`+|\*+|_+|[^\\`*_]+|\\")
_RULE_WIDTH = 24


@dataclass(slots=True)
class MarkdownStyler:
    """Turns the text of one answer into styled pieces, token by token."""

    depth: Depth
    _line: str = ""
    """What was received of the current line and is not drawn yet."""
    _begun: bool = False
    """True if the beginning of the current line is drawn."""
    _fence: str = ""
    """The mark that ends the block of code; empty outside one."""
    _opening: bool = False
    """True if the current line begins a block of code."""
    _block: str = ""
    """SGR parameters of the current line."""
    _marks: list[str] = field(default_factory=list)
    """Open `*`, `**`, `_`, `__` and runs of backticks of the current line."""
    _last: str = ""
    """The character before, of the current line."""

    def push(self, text: str) -> list[Piece]:
        """Take text; returns what can be drawn now."""
        pieces: list[Piece] = []
        while text:
            line, feed, text = text.partition("\n")
            self._line += line
            self._draw(pieces, whole=bool(feed))
            if feed:
                pieces.append(("\n", ""))
                self._begun, self._opening, self._block, self._last = False, False, "", ""
                self._marks.clear()
        return pieces

    def pieces(self, text: str, output: TokenOutput) -> list[Piece]:  # noqa: ARG002 - as `render.TextStyler`
        """See `push`."""
        return self.push(text)

    def close(self) -> list[Piece]:
        """The rest, once the answer has ended."""
        pieces: list[Piece] = []
        self._draw(pieces, whole=True)
        return pieces

    def _draw(self, pieces: list[Piece], *, whole: bool) -> None:
        """Draw the current line as far as it is certain. whole: nothing more comes of it."""
        if self._fence and not self._opening:
            self._draw_code(pieces, whole=whole)
            return
        if not self._begun and not self._begin(pieces, whole=whole):
            return
        if self._opening:
            pieces.append((self._take(len(self._line)), "2"))  # the language behind the mark
            return
        end = len(self._line) if whole else len(self._line.rstrip("`*_\\"))  # more may belong to what ends it
        for match in _INLINE.finditer(self._line, 0, end):
            following = self._line[match.end() : match.end() + 1]
            self._inline(match[0], following, pieces)
        self._take(end)

    def _begin(self, pieces: list[Piece], *, whole: bool) -> bool:
        """Draw the mark that a line begins with; False where it may still become one."""
        if whole and _RULE.fullmatch(self._line):
            self._line = ""
            pieces.append(("─" * _RULE_WIDTH, "2"))
            return True
        if not whole and _UNDECIDED.fullmatch(self._line):
            return False
        self._begun = True
        block = _BLOCK.match(self._line)
        if block is None:
            return True
        self._take(block.end())
        if block["heading"]:
            self._block = "1;4" if len(block["heading"]) == 1 else "1"
        elif block["fence"]:
            self._fence, self._opening = block["fence"], True
            pieces.append((block[0], "2"))
        elif block["bullet"]:
            pieces.append((f"{block['indent']}• ", ""))
        else:
            pieces.append((f"{block['indent']}│ ", "2"))
            self._block = "3"
        return True

    def _draw_code(self, pieces: list[Piece], *, whole: bool) -> None:
        stripped = self._line.strip()
        if not self._begun and not whole and (self._fence.startswith(stripped) or not stripped):
            return  # it may be the mark that ends the block
        ends = not self._begun and stripped.startswith(self._fence) and not stripped.strip(self._fence[0])
        if ends and not whole:
            return
        self._begun = True
        pieces.append((self._take(len(self._line)), "2" if ends else CODE[self.depth]))
        if ends:
            self._fence = ""

    def _take(self, count: int) -> str:
        taken, self._line = self._line[:count], self._line[count:]
        self._last = taken[-1:] or self._last
        return taken

    def _inline(self, part: str, following: str, pieces: list[Piece]) -> None:
        before, self._last = self._last, part[-1]
        code = next((mark for mark in self._marks if mark[0] == "`"), None)
        if part[0] == "`" and (part == code or code is None):
            self._toggle(part)
            if not CODE[self.depth]:
                pieces.append((part, self._style()))
        elif code is None and part[0] in "*_" and self._emphasis(part, before, following):
            self._toggle(part)
        else:
            text = part[1:] if part[0] == "\\" and len(part) > 1 and code is None else part
            pieces.append((text, self._style()))

    def _emphasis(self, mark: str, before: str, following: str) -> bool:
        """True if a run of marks begins or ends emphasis, rather than being a sign of multiplication or of a name."""
        if len(mark) > 3:
            return False
        if mark in self._marks:
            return not before.isspace() and not (mark[0] == "_" and following.isalnum())
        return bool(following) and not following.isspace() and not before.isalnum()

    def _toggle(self, mark: str) -> None:
        if mark in self._marks:
            self._marks.remove(mark)
        else:
            self._marks.append(mark)

    def _style(self) -> str:
        lengths = [len(mark) for mark in self._marks if mark[0] != "`"]
        code = CODE[self.depth] if len(lengths) < len(self._marks) else ""
        bold, italic = any(n in {2, 3} for n in lengths), any(n in {1, 3} for n in lengths)
        return ";".join(each for each in (self._block, "1" * bold, "3" * italic, code) if each)
