"""Regular expressions for what certain texts are not."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_ANY = r"[\s\S]"
_LITERALS = re.compile(r"(\^?)(\(\?:|\()?((?:[\w ,:;@#%&=<>\"'/~!-]|\\[.$^*+?(){}\[\]|\\/-]|\|)*)(\)?)(\$?)")


@dataclass(slots=True)
class _Node:
    """A place in the tree of the texts' first characters."""

    ends: bool = False
    nexts: dict[str, _Node] = field(default_factory=dict)


def none_of(texts: Iterable[str]) -> str:
    """Return an anchored pattern of exactly the texts that are none of these."""
    return f"^(?:{_others(_tree(texts), prefixes=False)})$"


def no_prefix_of(texts: Iterable[str]) -> str:
    """Return an anchored pattern of exactly the texts that begin with none of these."""
    tree = _tree(texts)
    return r"^[^\s\S]$" if tree.ends else f"^(?:{_others(tree, prefixes=True)})$"


def literals(pattern: str) -> tuple[list[str], bool] | None:
    """Return the texts of a pattern that is nothing but texts, and whether it is a whole match (else a prefix).

    None for any other pattern, also for one that is not anchored at its start.
    """
    parts = _LITERALS.fullmatch(pattern)
    if parts is None:
        return None
    start, opening, body, closing, end = parts.groups()
    if not start or bool(opening) != bool(closing) or ("|" in re.sub(r"\\.", "", body) and not opening):
        return None
    texts = [re.sub(r"\\(.)", r"\1", text) for text in re.split(r"(?<!\\)\|", body)]
    return texts, bool(end)


def _tree(texts: Iterable[str]) -> _Node:
    root = _Node()
    for text in texts:
        node = root
        for character in text:
            node = node.nexts.setdefault(character, _Node())
        node.ends = True
    return root


def _others(node: _Node, *, prefixes: bool) -> str:
    """Return the alternatives of how a text goes on from here without becoming one of the tree's."""
    ways = [] if node.ends else [""]
    if not node.nexts:
        return "|".join([*ways, f"{_ANY}+"])
    ways.append(f"[^{''.join(map(_in_class, node.nexts))}]{_ANY}*")
    for character, after in node.nexts.items():
        if not (prefixes and after.ends):
            ways.append(f"{_escaped(character)}(?:{_others(after, prefixes=prefixes)})")
    return "|".join(ways)


def _escaped(character: str) -> str:
    return f"\\{character}" if character in r".^$*+?()[]{}|\/-" else _spelled(character)


def _in_class(character: str) -> str:
    return f"\\{character}" if character in r"\]^[-&~" else _spelled(character)


def _spelled(character: str) -> str:
    return character if character.isprintable() else f"\\x{{{ord(character):x}}}"
