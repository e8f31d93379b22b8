"""Reads the notation that is written here, as a pattern of Python's `re`: a second opinion without the library."""

from __future__ import annotations

import re

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|\{[\d,]+\}|[()|*+?]|[\w-]+|\s+')
_MOST_DEEP = 40


def matches(grammar: str, text: str) -> bool:
    """Whether a text is one of a grammar's; rules that hold themselves are followed a few levels down only."""
    return re.fullmatch(as_pattern(grammar), text) is not None


def as_pattern(grammar: str) -> str:
    """A grammar's root as one pattern."""
    rules = dict(line.split(" ::= ", 1) for line in grammar.splitlines())
    return _expanded("root", rules, ())


def _expanded(name: str, rules: dict[str, str], above: tuple[str, ...]) -> str:
    if above.count(name) > 2 or len(above) > _MOST_DEEP:
        return "[^\\s\\S]"
    return "(?:" + "".join(_token(word, rules, (*above, name)) for word in _TOKEN.findall(rules[name])) + ")"


def _token(word: str, rules: dict[str, str], above: tuple[str, ...]) -> str:
    if word in rules:
        return _expanded(word, rules, above)
    if word.startswith('"'):
        return f"(?:{re.escape(_plain(word[1:-1]))})" if word != '""' else ""
    if word.startswith("["):
        return word
    return "(?:" if word == "(" else word.strip()


def _plain(word: str) -> str:
    coded = re.compile(r'\\(?:u([0-9a-f]{4})|U([0-9a-f]{8})|(["\\]))')
    return coded.sub(lambda found: found[3] or chr(int(found[1] or found[2], 16)), word)
