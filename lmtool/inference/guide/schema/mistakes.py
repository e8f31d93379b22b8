"""Mistakes in a JSON Schema or a regular expression, each with its place in the user's document."""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from llguidance import LLMatcher

from lmtool.inference.guide.dialects import LISTS, NAMED, SINGLE, Reading
from lmtool.inference.guide.patterns import PARTS, byte_tokenizer, exact_pattern
from lmtool.inference.guide.schema.document import is_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


_INDENT = 4
"""Spaces before the expression and its carets in the library's message."""
_EXCERPT = 20
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
    """A problem in a regular expression."""

    why: str
    advice: str
    place: int | None
    """Index of the character, from 0; None if unknown."""
    unsupported: bool = False
    """The expression is valid, but cannot be enforced."""

    def at(self, pattern: str) -> str:
        """Problem with its position, counted from 1."""
        if self.place is None or not 0 <= self.place < len(pattern):
            return self.why
        return f"{self.why}, at character {self.place + 1}: {pattern[self.place : self.place + _EXCERPT]}"


def regex_error(pattern: str) -> str:
    """Error of the library for a regular expression; empty if it is readable."""
    return LLMatcher(byte_tokenizer(), LLMatcher.grammar_from_regex(pattern), log_level=0).get_error()


def regex_problem(message: str, pattern: str) -> RegexProblem | None:
    """Problem that the library's message describes; None if the message is about something else."""
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
    """Position of an anchor at neither end, or None."""
    places = [part.start() for part in PARTS.finditer(pattern) if _INNER.fullmatch(part[0])]
    return next((place for place in places if 0 < place < len(pattern) - len(r"\b") + (pattern[place] != "\\")), None)


_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_MAPS = NAMED | {"$defs", "definitions"}
_SCHEMAS = SINGLE | {"items", "additionalItems"}
_SHOWN = 40
_MAX_PATTERNS = 200


@dataclass(frozen=True, slots=True)
class Mistake:
    """A mistake in a schema."""

    pointer: str
    """Its place, in the form of `$ref`: `#/properties/age/type`."""
    why: str
    advice: str = ""
    unsupported: bool = False
    """The schema is valid, but cannot be enforced."""


def mistake_in(schema: object) -> Mistake | None:
    """First malformed part or unsupported pattern of a schema, or None."""
    return next(_mistakes(schema, "#"), None) or next(_lost_references(schema), None)


def without_unsupported_patterns(schema: object) -> tuple[object, list[str]]:
    """Schema without the patterns that cannot be enforced, and a warning for each."""
    found = [mistake for mistake in _mistakes(schema, "#") if mistake.unsupported]
    places = {mistake.pointer for mistake in found}
    return _without(schema, "#", places), [f"{mistake.pointer} is ignored: {mistake.why}" for mistake in found]


def _without(value: object, pointer: str, places: set[str]) -> object:
    if isinstance(value, list):
        return [_without(part, f"{pointer}/{at}", places) for at, part in enumerate(value)]
    if not isinstance(value, dict):
        return value
    named = ((name, f"{pointer}/{_escaped(str(name))}", part) for name, part in value.items())
    return {name: _without(part, place, places) for name, place, part in named if place not in places}


def _lost_references(schema: object) -> Iterator[Mistake]:
    """Yield references that cannot be resolved."""
    lost = Reading(schema).lost if isinstance(schema, dict) else ()
    waiting: list[tuple[str, object]] = [("#", schema)] if lost else []
    while waiting:
        pointer, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [(f"{pointer}/{_escaped(str(name))}", part) for name, part in value.items()]
            if isinstance(reference := value.get("$ref"), str) and reference in lost:
                why = f"{_shown(reference)} is not within the schema, and nothing is fetched"
                yield Mistake(f"{pointer}/$ref", why, "put what it means under $defs")
        elif isinstance(value, list):
            waiting += [(f"{pointer}/{at}", part) for at, part in enumerate(value)]


def _mistakes(schema: object, pointer: str) -> Iterator[Mistake]:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        yield Mistake(pointer, f"{_shown(schema)} is no schema; expected an object, true or false")
        return
    for keyword, value in schema.items():
        place = f"{pointer}/{_escaped(str(keyword))}"
        if (check := _CHECKS.get(keyword)) is not None and (why := check(value)) is not None:
            yield Mistake(
                place, f"{_shown(value)} stands there; expected {why}", _near(value) if keyword == "type" else ""
            )
        elif keyword in {"pattern", "patternProperties"}:
            yield from _patterns(value, place)
        yield from _within(keyword, value, place)


def _within(keyword: str, value: object, place: str) -> Iterator[Mistake]:
    """Yield mistakes in the subschemas of a keyword."""
    if keyword in _MAPS and isinstance(value, dict):
        for name, part in value.items():
            yield from _mistakes(part, f"{place}/{_escaped(str(name))}")
    elif (keyword in LISTS or keyword == "items") and isinstance(value, list):
        for at, part in enumerate(value):
            yield from _mistakes(part, f"{place}/{at}")
    elif keyword in _SCHEMAS:
        yield from _mistakes(value, place)


def _patterns(value: object, place: str) -> Iterator[Mistake]:
    """Yield regular expressions that the library cannot read."""
    patterns = [(value, place)] if isinstance(value, str) else []
    if isinstance(value, dict):
        patterns = [(str(name), f"{place}/{_escaped(str(name))}") for name in value]
    for pattern, where in patterns[:_MAX_PATTERNS]:
        inner = pattern.removeprefix("^")
        error = regex_error(exact_pattern(inner))
        error = error and (regex_error(inner) or error)  # positions in the former are those of the pattern
        if error and (problem := regex_problem(error, inner)) is not None:
            moved = replace(problem, place=None if problem.place is None else problem.place + len(pattern) - len(inner))
            yield Mistake(where, moved.at(pattern), problem.advice, problem.unsupported)


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _type(value: object) -> str | None:
    kinds = value if isinstance(value, list) else [value]
    known = bool(kinds) and all(isinstance(kind, str) and kind in _TYPES for kind in kinds)
    return None if known else f"one of {', '.join(_TYPES)}, or a list of them"


def _near(value: object) -> str:
    """Suggestion for a misspelled type; empty without one."""
    kinds = [kind for kind in (value if isinstance(value, list) else [value]) if isinstance(kind, str)]
    near = [name for kind in kinds if kind not in _TYPES for name in difflib.get_close_matches(kind, _TYPES, n=1)]
    return f"did you mean {near[0]}?" if near else ""


def _a(kind: type | tuple[type, ...], what: str) -> Callable[[object], str | None]:
    return lambda value: None if isinstance(value, kind) and not isinstance(value, bool) else what


def _number(value: object) -> str | None:
    return None if _is_number(value) else "a number"


def _unit(value: object) -> str | None:
    return None if isinstance(value, int | float) and _is_number(value) and value > 0 else "a number above 0"


def _count(value: object) -> str | None:
    good = isinstance(value, int | float) and _is_number(value) and value >= 0 and is_whole(value)
    return None if good else "a whole number from 0"


def _limit(value: object) -> str | None:
    return None if isinstance(value, bool) or _is_number(value) else "a number"  # booleans in draft 4


def _names(value: object) -> str | None:
    good = isinstance(value, list) and all(isinstance(name, str) for name in value)
    return None if good or isinstance(value, bool) else "a list of names"  # booleans in draft 3


_CHECKS: Mapping[str, Callable[[object], str | None]] = {
    "type": _type,
    "enum": _a(list, "a list of values"),
    "required": _names,
    "$ref": _a(str, "a text such as #/$defs/name"),
    "pattern": _a(str, "a regular expression"),
    "format": _a(str, "the name of a format"),
    "minimum": _number,
    "maximum": _number,
    "exclusiveMinimum": _limit,
    "exclusiveMaximum": _limit,
    "multipleOf": _unit,
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _count),
    **dict.fromkeys(sorted(_MAPS), _a(dict, "an object of schemas by name")),
    **dict.fromkeys(sorted(LISTS), _a(list, "a list of schemas")),
}
