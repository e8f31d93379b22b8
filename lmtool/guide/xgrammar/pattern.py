"""Regular expressions as trees: what Python, Rust and ECMAScript agree on, and less where they do not."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from lmtool.guide.xgrammar import characters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.guide.xgrammar.characters import Characters

_MAX_DEPTH = 100


class PatternError(Exception):
    """A part of a regular expression that is not supported, in words."""


@dataclass(frozen=True, slots=True)
class OneOf:
    """One character of a set."""

    inner: Characters
    """Under every dialect."""
    outer: Characters
    """Under any dialect."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """The start (or the end) of the text."""

    start: bool


@dataclass(frozen=True, slots=True)
class Sequence:
    """Parts one after the other."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Branch:
    """Any of several parts."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A part so many times."""

    part: Node
    least: int
    most: int | None


Node: TypeAlias = "OneOf | Anchor | Sequence | Branch | Repeat"

_CLASSES: Mapping[str, OneOf] = {
    "d": OneOf(characters.DIGITS, characters.complement(characters.NO_DIGIT)),
    "w": OneOf(characters.WORD, characters.complement(characters.NO_WORD)),
    "s": OneOf(characters.SPACES, characters.complement(characters.NO_SPACE)),
    "D": OneOf(characters.NO_DIGIT, characters.complement(characters.DIGITS)),
    "W": OneOf(characters.NO_WORD, characters.complement(characters.WORD)),
    "S": OneOf(characters.NO_SPACE, characters.complement(characters.SPACES)),
}
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a", "0": "\0"}
_HEX = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|[xu]\{([0-9A-Fa-f]{1,6})\}")
_COUNTS = re.compile(r"\{(\d{1,9})(,(\d{1,9})?)?\}")
_GROUP = re.compile(r"\?:|\?P?<[A-Za-z_]\w*>")
_ANCHORS = {"A": True, "z": False, "Z": False}
_EACH = OneOf(characters.LINE, characters.ALL)


def parse(pattern: str) -> Node:
    """Return the tree of a regular expression. Raises `PatternError`, which names the part that is not supported."""
    reader = _Reader(pattern)
    found = reader.branch(0)
    if reader.left:
        raise PatternError("a ) without its (")
    return found


class _Reader:
    """Reads a pattern from the left."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    @property
    def left(self) -> str:
        """The first character not read yet."""
        return self._pattern[self._at : self._at + 1]

    def branch(self, depth: int) -> Node:
        if depth > _MAX_DEPTH:
            raise PatternError(f"groups nested more than {_MAX_DEPTH} deep")
        ways = [self._sequence(depth)]
        while self._next("|"):
            ways.append(self._sequence(depth))
        return ways[0] if len(ways) == 1 else Branch(tuple(ways))

    def _sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while self.left and self.left not in "|)":
            parts.append(self._counted(self._atom(depth)))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _atom(self, depth: int) -> Node:
        if self._next("("):
            return self._group(depth)
        if self._next("["):
            return self._class()
        if self._next("\\"):
            return self._escape()
        if self._next("."):
            return _EACH
        if self.left in "^$":
            return Anchor(start=self._take() == "^")
        if self.left in "*+?{":
            raise PatternError(f"{self.left} where nothing stands that it could repeat")
        return _single(self._take())

    def _group(self, depth: int) -> Node:
        if self.left == "?":
            opening = _GROUP.match(self._pattern, self._at)
            if opening is None:
                raise PatternError(f"({self._pattern[self._at : self._at + 3]}: look-around, flags and other marks")
            self._at = opening.end()
        inner = self.branch(depth + 1)
        if not self._next(")"):
            raise PatternError("an unclosed group")
        return inner

    def _counted(self, part: Node) -> Node:
        counts = self._counts()
        if counts is None:
            return part
        self._next("?")  # a lazy repetition allows the same texts
        if self._counts() is not None:
            raise PatternError("two repetitions of the same part")
        if isinstance(part, Anchor):
            raise PatternError("a repeated anchor")
        return Repeat(part, *counts)

    def _counts(self) -> tuple[int, int | None] | None:
        for sign, counts in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._next(sign):
                return counts
        if self.left != "{":
            return None
        found = _COUNTS.match(self._pattern, self._at)
        if found is None:
            raise PatternError("{ without a count behind it; write \\{ for the character")
        self._at = found.end()
        least = int(found[1])
        most = least if found[2] is None else None if found[3] is None else int(found[3])
        if most is not None and most < least:
            raise PatternError(f"{found[0]}, which is no count")
        return least, most

    def _class(self) -> OneOf:
        negated = self._next("^")
        parts: list[OneOf] = []
        while not self._next("]"):
            parts.append(self._member())
        if not parts:
            raise PatternError("an empty class")
        if any(_CLASSES[letter] in parts and _CLASSES[letter.upper()] in parts for letter in "dws"):
            parts = [_set(characters.ALL)]  # under each dialect the one is what the other is not
        inner = characters.union(*(part.inner for part in parts))
        outer = characters.union(*(part.outer for part in parts))
        return OneOf(characters.complement(outer), characters.complement(inner)) if negated else OneOf(inner, outer)

    def _member(self) -> OneOf:
        first = self._class_character()
        if self.left != "-" or self._pattern[self._at + 1 : self._at + 2] in {"]", ""}:
            return first
        self._take()
        last = self._class_character()
        ends = [part.inner for part in (first, last)]
        if any(len(end) != 1 or end[0][0] != end[0][1] for end in ends) or ends[0] > ends[1]:
            raise PatternError("a range in a class that does not go from one character to a later one")
        return _set(characters.of((ends[0][0][0], ends[1][0][0])))

    def _class_character(self) -> OneOf:
        if not self.left:
            raise PatternError("an unclosed class")
        if self._next("\\"):
            if self._next("b"):
                return _single("\b")
            found = self._escape()
            if not isinstance(found, OneOf):
                raise PatternError("an anchor in a class")
            return found
        character = self._take()
        if character == "[" or (character in "&~-" and self.left == character):
            raise PatternError(f"{character} in a class, which dialects read differently; write \\{character}")
        return _single(character)

    def _escape(self) -> Node:
        coded = _HEX.match(self._pattern, self._at)
        if coded is not None:
            self._at = coded.end()
            code = int(next(group for group in coded.groups() if group), 16)
            if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
                raise PatternError(f"\\{coded[0]}, which is no character")
            return _single(chr(code))
        letter = self._take()
        if letter in _CLASSES:
            return _CLASSES[letter]
        if letter in _ANCHORS:
            return Anchor(start=_ANCHORS[letter])
        if letter in _CONTROLS and not (letter == "0" and self.left.isdigit()):
            return _single(_CONTROLS[letter])
        if not letter or letter.isalnum():
            raise PatternError(f"\\{letter}")
        return _single(letter)

    def _take(self) -> str:
        self._at += 1
        return self._pattern[self._at - 1 : self._at]

    def _next(self, expected: str) -> bool:
        if self.left != expected:
            return False
        self._at += 1
        return True


def _single(character: str) -> OneOf:
    return _set(characters.of_text(character))


def _set(allowed: Characters) -> OneOf:
    return OneOf(allowed, allowed)
