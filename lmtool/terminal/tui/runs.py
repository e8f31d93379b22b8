"""Lines of text runs with names of styles, independent of a terminal."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from rich.cells import cell_len

from lmtool.settings.terminal import hidden_shown

if TYPE_CHECKING:
    from collections.abc import Iterable


class Run(NamedTuple):
    """A part of a line in one style."""

    text: str
    style: str = ""
    """Names of `styles.Styles`, with blanks between: `heat3 cursor`."""
    target: int | None = None
    """Value passed to its document on a click, such as the row of a token."""


Line: TypeAlias = "list[Run]"

_LONG = 64
"""Characters from which on results are not cached."""
_GAP = "  "


def width(text: str) -> int:
    """Width of a text in terminal columns."""
    if text.isascii():
        return len(text)
    return _width(text) if len(text) <= _LONG else cell_len(text)


_width = lru_cache(maxsize=65536)(cell_len)


def split(text: str, columns: int, at_least: int = 0) -> tuple[str, str]:
    """The part of a text that fits into these columns (or `at_least` characters), and the rest."""
    used = 0
    for i, character in enumerate(text):
        used += width(character)
        if used > columns and i >= at_least:
            return text[:i], text[i:]
    return text, ""


def cut(text: str, columns: int, more: str = "…") -> str:
    """The text, or its beginning and a sign that there is more, in at most this many columns."""
    if width(text) <= columns:
        return text
    return split(text, columns - len(more))[0] + more if columns >= len(more) else more[: max(0, columns)]


def cut_left(text: str, columns: int, more: str = "…") -> str:
    """The text, or a sign and its end."""
    if width(text) <= columns:
        return text
    return more + cut(text[::-1], columns - len(more), "")[::-1] if columns > len(more) else more[: max(0, columns)]


def pad(text: str, columns: int, *, right: bool = False) -> str:
    """The text, cut or with blanks, in exactly this many columns. right: blanks in front."""
    text = cut(text, columns)
    blanks = " " * (columns - width(text))
    return blanks + text if right else text + blanks


def fitted(line: Line, columns: int) -> Line:
    """A line cut to this many columns, with a sign."""
    out: Line = []
    left = columns
    for i, run in enumerate(line):
        size = width(run.text)
        if size > left or (size == left and any(r.text for r in line[i + 1 :])):
            rest = cut(run.text + "  ", left)
            out.append(run._replace(text=rest))
            return out
        out.append(run)
        left -= size
    return out


def length(line: Line) -> int:
    """Width of a line in columns."""
    return sum(width(run.text) for run in line)


def flow(phrases: Iterable[Run], columns: int) -> list[Line]:
    """Phrases in lines, two blanks apart; empty phrases are dropped."""
    lines: list[Line] = []
    used = 0
    for phrase in phrases:
        if not phrase.text:
            continue
        size = width(phrase.text)
        if lines and used + len(_GAP) + size <= columns:
            lines[-1] += [Run(_GAP), phrase]
            used += len(_GAP) + size
        else:
            lines.append(fitted([phrase], columns))
            used = size
    return lines


_NAMES = {"\n": "⏎", "\t": "→", " ": "·"}
_JOINERS = "\u200c\u200d\ufe0e\ufe0f"


def visible(text: str, *, blanks: bool = False) -> str:
    """Text that cannot steer a terminal: controls as `⟨1b⟩`, line feeds as `⏎`; blanks: spaces as `·` as well."""
    if text.isascii() and text.isprintable() and not blanks:
        return text
    return _visible(text, blanks) if len(text) <= _LONG else _visible.__wrapped__(text, blanks)


@lru_cache(maxsize=65536)
def _visible(text: str, blanks: bool) -> str:
    return "".join(_shown(c, blanks=blanks) for c in hidden_shown(text, keep="\n\t"))


def _shown(character: str, *, blanks: bool) -> str:
    if character == " ":
        return "·" if blanks else " "
    if character in _NAMES:
        return _NAMES[character]
    return character if character.isprintable() or character in _JOINERS else f"⟨{ord(character):02x}⟩"
