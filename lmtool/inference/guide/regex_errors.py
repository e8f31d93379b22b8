"""What is wrong with a regular expression that the library refused: in words, with the place in the expression."""

from __future__ import annotations

import re
from dataclasses import dataclass

from llguidance import LLMatcher

from lmtool.inference.guide.byte_tokenizer import byte_tokenizer
from lmtool.inference.guide.regex_parts import PARTS

_INDENT = 4
"""Blanks before the expression and the carets under it, in the library's message."""
_SHOWN = 20
_WORDS = (
    ("look-around", "look-ahead and look-behind are not supported", "say what may stand there instead"),
    ("backreferences", "back-references are not supported", "repeat the group itself"),
    (
        "unrecognized flag",
        "there is no such group here; named back-references are not supported",
        "repeat the group itself",
    ),
)
_INNER = re.compile(r"\\[bB]|\^|\$")


@dataclass(frozen=True, slots=True)
class RegexProblem:
    """What is wrong."""

    why: str
    advice: str
    place: int | None
    """Character of the expression, counted from 0; None where that is not known."""
    unsupported: bool = False
    """Whether it is a good expression that cannot be enforced here."""

    def at(self, pattern: str) -> str:
        """The problem with its place, counted from 1 as people do."""
        if self.place is None or not 0 <= self.place < len(pattern):
            return self.why
        return f"{self.why}, at character {self.place + 1}: {pattern[self.place : self.place + _SHOWN]}"


def regex_error(pattern: str) -> str:
    """Why the library cannot read a regular expression; empty where it can."""
    return LLMatcher(byte_tokenizer(), LLMatcher.grammar_from_regex(pattern), log_level=0).get_error()


def regex_problem(message: str, pattern: str) -> RegexProblem | None:
    """What the library's message says of an expression; None where it is about something else."""
    if "lookarounds" in message:
        advice = r"drop ^, $ or \b: the whole text must match anyway"
        place = _inner_anchor(pattern)
        return RegexProblem(r"^, $ and \b are supported at the ends only", advice, place, unsupported=True)
    if "regex parse error" not in message:
        return None
    lines = message.splitlines()
    carets = next((line for line in lines if re.fullmatch(r" *\^+ *", line)), None)
    place = None if carets is None else len(carets) - len(carets.lstrip()) - _INDENT
    error = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), "it cannot be read")
    for sign, why, advice in _WORDS:
        if sign in error:
            return RegexProblem(why, advice, place, "support" in why)
    return RegexProblem(error, "write a backslash before a character that stands for itself", place)


def _inner_anchor(pattern: str) -> int | None:
    """Where an anchor stands that is at neither end."""
    places = [part.start() for part in PARTS.finditer(pattern) if _INNER.fullmatch(part[0])]
    return next((place for place in places if 0 < place < len(pattern) - len(r"\b") + (pattern[place] != "\\")), None)
