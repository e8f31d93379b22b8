"""The rules of JSON itself, without a schema."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from lmtool.guide.xgrammar import characters, notation
from lmtool.guide.xgrammar.matching import UNSPOKEN
from lmtool.guide.xgrammar.numbers import NUMBER

if TYPE_CHECKING:
    from lmtool.guide.xgrammar.notation import Rules

_PLAIN = notation.characters(characters.without(characters.ALL, UNSPOKEN))
_ESCAPE = r'"\\" (["\\/bfnrt] | "u" ([0-9A-CE-Fa-ce-f] [0-9A-Fa-f]{3} | [Dd] [0-7] [0-9A-Fa-f]{2}))'
"""Every escape but halves of surrogate pairs, which are no characters by themselves."""


class JsonRules:
    """JSON's rules in a grammar, each written when it is first used."""

    def __init__(self, rules: Rules, *, any_whitespace: bool) -> None:
        """any_whitespace: blanks may stand between tokens."""
        self.rules = rules
        self.blank = self.rules.new(r"[ \n\t]*", "blank") if any_whitespace else notation.NOTHING
        self._known: dict[str, str] = {}

    @property
    def character(self) -> str:
        """One character within quotes."""
        return self._rule("character", f"{_PLAIN} | {_ESCAPE}")

    @property
    def string(self) -> str:
        """Any string."""
        return self._rule("string", f'"\\"" {self.character}* "\\""')

    @property
    def anything(self) -> str:
        """Any value."""
        if "value" not in self._known:
            name = self._known["value"] = self.rules.reserve("value")
            number = self._rule("number", NUMBER)
            member = notation.sequence([self.string, self.between(":"), name])
            holders = [self.enclosed("[", name, "]"), self.enclosed("{", member, "}")]
            ways = [self.string, number, *map(literal, (True, False, None)), *holders]
            self.rules.fill(name, notation.choice(ways))
        return self._known["value"]

    def between(self, sign: str) -> str | None:
        """A comma or a colon, with the blanks around it."""
        return notation.sequence([self.blank, notation.text(sign), self.blank])

    def enclosed(self, opening: str, part: str | None, closing: str) -> str | None:
        """Any number of parts in brackets."""
        more = notation.repeated(notation.sequence([self.between(","), part]), 0, None)
        return self.bracketed(opening, notation.choice([notation.NOTHING, notation.sequence([part, more])]), closing)

    def bracketed(self, opening: str, inner: str | None, closing: str) -> str | None:
        """An expression in brackets; None where it has no text."""
        return notation.sequence([notation.text(opening), self.blank, inner, self.blank, notation.text(closing)])

    def _rule(self, name: str, body: str) -> str:
        if name not in self._known:
            self._known[name] = self.rules.new(body, name) or ""
        return self._known[name]


def literal(value: object) -> str:
    """Return the expression of exactly this value."""
    return notation.text(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
