"""Regular expressions in xgrammar's notation, for a whole text or for one within JSON's quotes."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from lmtool.guide.xgrammar import characters, notation
from lmtool.guide.xgrammar.pattern import Anchor, Branch, Node, OneOf, PatternError, Repeat, Sequence, parse

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmtool.guide.xgrammar.characters import Characters

Spell: TypeAlias = "Callable[[Characters], str | None]"
"""Gives the expression of one of these characters, None where there is none."""

_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_CONTROLS = characters.of((0, 0x1F))
UNSPOKEN = characters.union(_CONTROLS, characters.of_text('"\\'))
"""Characters that JSON's strings cannot have as they are."""


def whole(pattern: str) -> str | None:
    """Return the expression of the texts that match as a whole; None where there is none. Raises `PatternError`."""
    return _written(parse(pattern), notation.characters, first=True, last=True)


def found_in_json(pattern: str) -> str | None:
    """Return the expression of what stands between the quotes of a JSON string in which the pattern is found.

    None where there is none. Raises `PatternError`.
    """
    return _found(parse(pattern))


@lru_cache(maxsize=512)
def json_character(allowed: Characters) -> str | None:
    """Return the expression of one character within a JSON string, escaped where that is needed."""
    plain = notation.characters(characters.without(allowed, UNSPOKEN))
    short = [notation.text(text) for sign, text in _ESCAPES.items() if _holds(allowed, sign)]
    if plain is not None or short:
        return notation.choice([plain, *short])
    controls = [code for code in range(0x20) if _holds(allowed, chr(code))]
    return notation.choice([notation.text(f"\\u{code:04x}") for code in controls])


def _holds(allowed: Characters, character: str) -> bool:
    return any(first <= ord(character) <= last for first, last in allowed)


def _found(node: Node) -> str | None:
    if isinstance(node, Branch):
        return notation.choice([_found(part) for part in node.parts])
    parts = node.parts if isinstance(node, Sequence) else (node,)
    start = bool(parts) and isinstance(parts[0], Anchor)
    end = bool(parts) and isinstance(parts[-1], Anchor)
    anything = notation.repeated(json_character(characters.ALL), 0, None)
    held = _written(node, json_character, first=start, last=end)
    return notation.sequence([*([] if start else [anything]), held, *([] if end else [anything])])


def _written(node: Node, spell: Spell, *, first: bool, last: bool) -> str | None:
    """The expression of a part. first, last: whether nothing but anchors stands before (behind) it."""
    match node:
        case OneOf():
            return spell(node.inner)
        case Anchor():
            if not (first if node.start else last):
                raise PatternError("^, $, \\A or \\Z in the middle")
            return notation.NOTHING
        case Branch():
            return notation.choice([_written(part, spell, first=first, last=last) for part in node.parts])
        case Repeat():
            part = _written(node.part, spell, first=False, last=False)
            return notation.repeated(part, node.least, node.most)
        case Sequence():
            return _in_order(node, spell, first=first, last=last)


def _in_order(node: Sequence, spell: Spell, *, first: bool, last: bool) -> str | None:
    real = [at for at, part in enumerate(node.parts) if not isinstance(part, Anchor)]
    earliest, latest = (real[0], real[-1]) if real else (len(node.parts), -1)
    return notation.sequence(
        [
            _written(part, spell, first=first and at <= earliest, last=last and at >= latest)
            for at, part in enumerate(node.parts)
        ]
    )
