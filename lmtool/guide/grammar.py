"""From a constraint to llguidance grammars: what each kind is written as, and how refusals are put into words."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import GbnfToLarkError, any_to_lark

from lmtool.errors import ConstraintError
from lmtool.guide.json_grammar import LENIENT_HINT, json_grammars, without_place
from lmtool.guide.schema.open_names import LISTED, OpenNames
from lmtool.guide.tag_format import quoted, tag_format
from lmtool.guide.tag_parts import as_format, open_names_in
from lmtool.subprocesses.pool import LONG

if TYPE_CHECKING:
    from lmtool.types import Constraint

_PYTHON_END = re.compile(r"((?:^|[^\\])(?:\\\\)*)\\Z")


@dataclass(frozen=True, slots=True)
class Grammar:
    """One way to write a constraint."""

    text: str
    """What `LLMatcher` takes."""
    warnings: tuple[str, ...] = ()
    """What of the constraint this way does not hold."""
    names: OpenNames = LISTED
    """Of the JSON in it, whether names could come twice."""
    markers: tuple[bytes, ...] = (b"",)
    """Behind which texts this JSON begins, see `JsonCursor`."""


Grammars: TypeAlias = Iterator[Grammar]
"""Ways in order of preference; later ones are taken when the library refuses the earlier ones."""


def grammars(constraint: Constraint) -> Grammars:
    """Yield the ways to write a constraint. Raises `ConstraintError` where there is none, or none after the last."""
    return _WRITERS[constraint.kind](constraint)


def first_grammar(constraint: Constraint) -> Grammar:
    """The way that is tried first. Raises `ConstraintError` where there is none."""
    return next(grammars(constraint))


def is_quick(constraint: Constraint) -> bool:
    """Whether `first_grammar` takes no more than a millisecond."""
    return len(constraint.text) < LONG


def other_grammars(constraint: Constraint) -> tuple[list[Grammar], ConstraintError | None]:
    """The ways behind the first, and why there are no more, or none at all."""
    ways = grammars(constraint)
    next(ways)
    found: list[Grammar] = []
    try:
        found.extend(ways)
    except ConstraintError as problem:
        return found, problem
    return found, None


def _json_schema(constraint: Constraint) -> Grammars:
    for text, warnings, names in json_grammars(constraint):
        yield Grammar(text, warnings, names)


def _regex(constraint: Constraint) -> Grammars:
    yield Grammar(LLMatcher.grammar_from_regex(_PYTHON_END.sub(r"\1\\z", constraint.text)))


def _choice(constraint: Constraint) -> Grammars:
    # One terminal: a rule for each text dies of 2000 alternatives (max_items_in_row), in the middle of the answer.
    texts = json.loads(constraint.text)
    terminal = " | ".join(quoted(text) for text in texts)
    yield Grammar(LLMatcher.grammar_from_lark(f"start: C\nC: {terminal}\n"))


def _grammar(constraint: Constraint) -> Grammars:
    try:
        lark = any_to_lark(constraint.text)
    except (GbnfToLarkError, ValueError, IndexError, RecursionError) as error:
        raise ConstraintError(f"the grammar is neither Lark nor GBNF: {error}") from None
    yield Grammar(LLMatcher.grammar_from_lark(lark))


def _structural_tag(constraint: Constraint) -> Grammars:
    form = as_format(json.loads(constraint.text))
    yield Grammar(LLMatcher.grammar_from_lark(tag_format(form)), (), *open_names_in(form))


_WRITERS: Mapping[str, Callable[[Constraint], Grammars]] = {
    "json_schema": _json_schema,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "structural_tag": _structural_tag,
}


_REGEX_ADVICE = (
    ("look-around", "look-ahead and look-behind are not supported", "say what may stand there instead"),
    (
        "lookarounds",
        r"^, $ and \b are supported at the ends only",
        r"drop ^, $ or \b: the whole text must match anyway",
    ),
    ("unrecognized flag", "named back-references are not supported", "repeat the group itself"),
    ("backreferences", "back-references are not supported", "repeat the group itself"),
)


_NOUNS = {
    "json_schema": "JSON Schema",
    "regex": "regular expression",
    "choice": "choice",
    "grammar": "grammar",
    "structural_tag": "structural tag",
}


def noun(constraint: Constraint) -> str:
    """Return what a constraint is called in a sentence."""
    return _NOUNS[constraint.kind]


def refusal(constraint: Constraint, message: str) -> ConstraintError:
    """Return the error for a constraint that the library refused with this message."""
    what, message = noun(constraint), without_place(message)
    for sign, why, advice in _REGEX_ADVICE:
        if sign in message:
            return ConstraintError(f"the {what} cannot be held: {why}", advice)
    return ConstraintError(f"the {what} cannot be held: {_short(message)}", *_hints(constraint))


def _hints(constraint: Constraint) -> tuple[str, ...]:
    if constraint.kind == "json_schema" and constraint.strict:
        return (LENIENT_HINT,)
    return ()


def _short(message: str) -> str:
    """Return the telling lines of a message, without the pictures between them."""
    lines = [line.strip() for line in message.splitlines()]
    telling = [line.removeprefix("error: ") for line in lines if line and not re.fullmatch(r"[\^~]+|\d+ \|.*", line)]
    return "; ".join(telling[:1] + telling[-1:] if len(telling) > 1 else telling)[:300]
