"""The few forms of xgrammar's EBNF that are written here: texts, characters, repetitions, rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.guide.xgrammar.characters import Characters

NOTHING = '""'
"""The empty text."""


def text(written: str) -> str:
    """Return the expression of exactly this text."""
    return '"' + "".join(_escaped(ord(character)) for character in written) + '"'


def characters(allowed: Characters) -> str | None:
    """Return the expression of one of these characters; None where there is none."""
    if not allowed:
        return None
    parts = (_escaped(first) if first == last else f"{_escaped(first)}-{_escaped(last)}" for first, last in allowed)
    return f"[{''.join(parts)}]"


def sequence(parts: Sequence[str | None]) -> str | None:
    """Return the expression of all parts one after the other; None where one of them has no text."""
    if any(part is None for part in parts):
        return None
    real = [part for part in parts if part is not None and part != NOTHING]
    return " ".join(real) or NOTHING


def choice(parts: Sequence[str | None]) -> str | None:
    """Return the expression of any of the parts; None where none of them has a text."""
    real = list(dict.fromkeys(part for part in parts if part is not None))
    if not real:
        return None
    return real[0] if len(real) == 1 else f"({' | '.join(real)})"


def repeated(part: str | None, least: int, most: int | None) -> str | None:
    """Return the expression of a part so many times; None where there is no text. most: None for no limit."""
    if most is not None and most < least:
        return None
    if part is None or most == 0 or part == NOTHING:
        return NOTHING if least == 0 or part == NOTHING else None
    if (least, most) == (1, 1):
        return part
    signs = {(0, None): "*", (1, None): "+", (0, 1): "?"}
    exact = f"{{{least}}}" if most == least else f"{{{least},{'' if most is None else most}}}"
    return f"({part}){signs.get((least, most), exact)}"


class Rules:
    """Rules by name, each written once, in order."""

    def __init__(self) -> None:
        self._bodies: dict[str, str] = {}

    def new(self, body: str | None, hint: str = "part") -> str | None:
        """Return the name of a rule of its own for an expression; None stays None."""
        if body is None:
            return None
        name = self.reserve(hint)
        self._bodies[name] = body
        return name

    def reserve(self, hint: str = "part") -> str:
        """Return a name whose rule is written later, by `fill`."""
        name = f"{hint}_{len(self._bodies)}"
        self._bodies[name] = ""
        return name

    def fill(self, name: str, body: str | None) -> None:
        """Write the rule of a name reserved. A body that has no text becomes a rule that never ends."""
        self._bodies[name] = name if body is None else body

    def written(self, root: str) -> str:
        """Return the whole grammar, with `root` as where it starts."""
        return "\n".join([f"root ::= {root}", *(f"{name} ::= {body}" for name, body in self._bodies.items()), ""])


def _escaped(code: int) -> str:
    """A character as strings and classes both take it: letters, digits and blanks as they are, all others as codes."""
    character = chr(code)
    if (character.isascii() and character.isalnum()) or character in " _":
        return character
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
