"""llguidance grammars for each kind of constraint, and readable errors for those that the library refuses."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import GbnfToLarkError, any_to_lark

from lmtool.core.errors import ConstraintError
from lmtool.inference.guide.dialects import Reading, in_2020_12
from lmtool.inference.guide.patterns import ecma_pattern, exact_patterns
from lmtool.inference.guide.schema.document import UnsupportedError
from lmtool.inference.guide.schema.mistakes import mistake_in, regex_error, regex_problem, without_unsupported_patterns
from lmtool.inference.guide.schema.open_names import LISTED, OpenNames, open_names
from lmtool.inference.guide.schema.rewriting import Rewritten, in_order, joined, rewrite
from lmtool.inference.guide.structural_tag import lark_string, open_names_in, tag_grammar
from lmtool.net.subprocesses.process import LONG

if TYPE_CHECKING:
    from lmtool.core.types import Constraint
    from lmtool.inference.guide.schema.document import Schema

_LENIENT_HINT = 'leave it out, or send "strict": false to have it ignored with a warning'
_JSON_START = "start: %json "
_JSON_PLACE = "at 1(8): failed to compile JSON schema: "
_OWN_PLACE = re.compile(r"^at 1\(8\): ")
"""Position in the grammar that lmtool wrote around a constraint, which the user never sees."""
_JSON_OPTIONS = '"x-guidance"'
_LARK_PART = re.compile(
    r'"(?:\\.|[^"\\])*"|(?:#|//)[^\n]*|/(?P<regex>(?:\\.|[^/\\])+)/(?P<flags>[imslux]*)|(?P<json>%json\s*)', re.DOTALL
)
"""A string, comment, regular expression or the start of a JSON Schema: only these may contain the others' marks."""
_PYTHON_END = re.compile(r"((?:^|[^\\])(?:\\\\)*)\\Z")


@dataclass(frozen=True, slots=True)
class Grammar:
    """One way to express a constraint."""

    text: str
    """Grammar in the form that `LLMatcher` takes."""
    warnings: tuple[str, ...] = ()
    """Differences between the constraint and this grammar."""
    names: OpenNames = LISTED
    """Open names of its JSON: where a name could occur twice."""
    markers: tuple[bytes, ...] = (b"",)
    """Texts after which its JSON begins, see `JsonCursor`."""
    wider: bool = False
    """Enforces less than the library could, because the library refused more exact grammars."""


Grammars: TypeAlias = Iterator[Grammar]
"""Grammars in order of preference; later ones are used if the library refuses the earlier ones."""


def grammars(constraint: Constraint) -> Grammars:
    """Yield the grammars of a constraint. Raises `ConstraintError` if there is none, or none after the last."""
    return _WRITERS[constraint.kind](constraint)


def first_grammar(constraint: Constraint) -> Grammar:
    """Preferred grammar of a constraint. Raises `ConstraintError` if there is none."""
    return next(grammars(constraint))


def is_quick(constraint: Constraint) -> bool:
    """True if `first_grammar` takes at most a millisecond."""
    return len(constraint.text) < LONG


def other_grammars(constraint: Constraint) -> tuple[list[Grammar], ConstraintError | None]:
    """Grammars after the first, and the error that ended them, if any."""
    ways = grammars(constraint)
    next(ways)
    found: list[Grammar] = []
    try:
        found.extend(ways)
    except ConstraintError as problem:
        return found, problem
    return found, None


def _json_schema(constraint: Constraint) -> Grammars:
    """Yield the schema unchanged, then rewritten; a lenient one also without the keywords that cannot be enforced.

    Raises `ConstraintError` with the keyword for a strict schema that cannot be rewritten.
    """
    text = _without_options("{}" if constraint.text == "true" else constraint.text)
    if text == "false":
        raise ConstraintError("no text matches the schema false", "send true, or a schema that allows something")
    given = json.loads(text)
    for schema, warnings in _readings(given):
        try:
            yield from _whole_schema(text, given, schema, warnings, constraint)
        except ConstraintError:
            if not warnings:
                raise
    if not constraint.strict:
        schema = in_2020_12(given)
        text, names = json.dumps(in_order(exact_patterns(schema)), ensure_ascii=False), open_names(schema)
        yield Grammar(_json_lark(text, constraint, coerce_one_of=True), (), names)
        yield Grammar(_json_lark(text, constraint, coerce_one_of=True, lenient=True), (), names)
        yield from _wider(given, constraint)


def _readings(given: Schema) -> Iterator[tuple[Schema, tuple[str, ...]]]:
    """Yield the schema with foreign keywords kept and a warning, if it has any; then by its own dialect alone."""
    reading = Reading(given, exact=False)
    if reading.added:
        keywords = ", ".join(map(repr, reading.added))
        yield reading.schema, (f"{keywords} is enforced, although the dialect that $schema names does not have it",)
    yield in_2020_12(given) if reading.added else reading.schema, ()


def _whole_schema(
    text: str, given: Schema, schema: Schema, warnings: tuple[str, ...], constraint: Constraint
) -> Grammars:
    """Yield a schema with every keyword: unchanged, rewritten, and with its references joined."""
    names, ordered = open_names(schema), in_order(exact_patterns(schema))
    if not names.too_few and schema is not False:
        text = text if ordered is given else json.dumps(ordered, ensure_ascii=False)
        yield Grammar(_json_lark(text, constraint), warnings, names)
    if (rewritten := _rewritten(schema, constraint)) is None:
        return
    plain = {} if rewritten.schema is True else in_order(rewritten.schema)
    lark, left = _json_lark(_text(plain), constraint), open_names(plain)
    if constraint.strict or not (
        left.unique_items and left.may_run_out
    ):  # a lenient answer would fail once no unused string is left
        yield Grammar(lark, (*warnings, *rewritten.narrowed), left)
        with contextlib.suppress(UnsupportedError):  # references that cannot be joined
            lark = _json_lark(_text(joined(plain)), constraint)
            yield Grammar(lark, (*warnings, *rewritten.narrowed), left)


def _wider(schema: Schema, constraint: Constraint) -> Grammars:
    """Yield the schema without unenforceable patterns, then its root type alone. Nothing for a malformed schema."""
    mistake = mistake_in(schema)
    if mistake is not None and not mistake.unsupported:
        return
    wider, warnings = without_unsupported_patterns(schema)
    if warnings and isinstance(wider, dict):
        wider = in_2020_12(wider)
        text = _text(wider)
        lark = _json_lark(text, constraint, coerce_one_of=True, lenient=True)
        yield Grammar(lark, tuple(warnings), open_names(wider), wider=True)
    kind: dict[str, object] = {} if isinstance(schema, bool) or "type" not in schema else {"type": schema["type"]}
    warning = "the JSON Schema cannot be enforced, and only the type of its root is"
    yield Grammar(_json_lark(json.dumps(kind), constraint), (warning,), open_names(kind), wider=True)


def _rewritten(schema: Schema, constraint: Constraint) -> Rewritten | None:
    """Rewrite a schema for the library; None if a lenient one cannot be rewritten.

    Raises `ConstraintError` if a strict one cannot be rewritten, or nothing matches it.
    """
    try:
        rewritten = rewrite(schema)
    except UnsupportedError as problem:
        if constraint.strict:
            raise ConstraintError(f"the JSON Schema cannot be enforced: {problem}", _LENIENT_HINT) from None
        return None
    if rewritten.schema is not False:
        return rewritten
    if not rewritten.narrowed:
        hints = rewritten.impossible or ("look for parts that exclude each other",)
        raise ConstraintError("no text matches the JSON Schema", *hints[:1])
    if constraint.strict:
        raise ConstraintError(f"the JSON Schema cannot be enforced: {rewritten.narrowed[0]}", _LENIENT_HINT)
    return None


def _text(schema: object) -> str:
    return json.dumps(exact_patterns(schema), ensure_ascii=False)


def _without_options(text: str) -> str:
    """Remove the library's own options from a schema; lmtool chooses them."""
    if _JSON_OPTIONS not in text:
        return text
    schema = json.loads(text)
    schema.pop("x-guidance", None)
    return json.dumps(schema, ensure_ascii=False)


def _json_lark(schema: str, constraint: Constraint, *, coerce_one_of: bool = False, lenient: bool = False) -> str:
    """Lark grammar around the text of a schema, which must be an object.

    `LLMatcher.grammar_from_json_schema` would read and write the schema under the interpreter's lock, and `LLMatcher`
    would parse the resulting JSON: half a megabyte blocks all other threads for 30 ms. This only copies the text, and
    the library parses Lark without the lock.
    """
    options = {
        "whitespace_flexible": constraint.any_whitespace,
        "coerce_one_of": coerce_one_of,
        "lenient": lenient,
    }
    members = [f"{_JSON_OPTIONS}:{json.dumps(options)}", schema[1:-1]]
    return f"{_JSON_START}{{{','.join(filter(None, members))}}}\n"


def _regex(constraint: Constraint) -> Grammars:
    yield Grammar(LLMatcher.grammar_from_regex(ecma_pattern(_PYTHON_END.sub(r"\1\\z", constraint.text))))


def _choice(constraint: Constraint) -> Grammars:
    # One terminal: with a rule per text, 2000 alternatives exceed max_items_in_row in the middle of the answer.
    texts = json.loads(constraint.text)
    terminal = " | ".join(lark_string(text) for text in texts)
    yield Grammar(LLMatcher.grammar_from_lark(f"start: C\nC: {terminal}\n"))


def _grammar(constraint: Constraint) -> Grammars:
    try:
        lark = any_to_lark(constraint.text)
    except (GbnfToLarkError, ValueError, IndexError, RecursionError) as error:
        raise ConstraintError(f"the grammar is neither Lark nor GBNF: {error}") from None
    yield Grammar(LLMatcher.grammar_from_lark(lark if lark != constraint.text else "".join(_lark_parts(lark))))


def _lark_parts(lark: str) -> Iterator[str]:
    """Yield the parts of a grammar, with regular expressions and patterns of schemas translated from ECMA-262."""
    at = 0
    while (found := _LARK_PART.search(lark, at)) is not None:
        yield lark[at : found.start()]
        at = found.end()
        if found["regex"] is not None:
            yield f"/{ecma_pattern(found['regex'], dot_all='s' in found['flags'])}/{found['flags']}"
        elif found["json"] is None:
            yield found[0]
        else:
            try:
                schema, at = json.JSONDecoder().raw_decode(lark, at)
            except (ValueError, RecursionError):  # the library reports the error
                yield found[0]
                continue
            yield found[0] + json.dumps(exact_patterns(in_2020_12(schema)), ensure_ascii=False)
    yield lark[at:]


def _structural_tag(constraint: Constraint) -> Grammars:
    """Yield the tag unchanged, then with its schemas rewritten."""
    tag = json.loads(constraint.text)
    lark, parts = tag_grammar(tag)
    yield Grammar(LLMatcher.grammar_from_lark(lark), (), *open_names_in(parts))
    narrowed: list[str] = []

    def rewritten(schema: Schema) -> Schema:
        try:
            written = rewrite(in_2020_12(schema))
        except UnsupportedError as problem:
            raise ConstraintError(
                f"a JSON Schema of the structural tag cannot be enforced: {problem}", _LENIENT_HINT
            ) from None
        if written.schema is False:
            raise ConstraintError("no text matches a JSON Schema of the structural tag", *written.impossible[:1])
        narrowed.extend(written.narrowed)
        return written.schema

    lark, parts = tag_grammar(tag, rewritten)
    yield Grammar(LLMatcher.grammar_from_lark(lark), tuple(narrowed), *open_names_in(parts))


_WRITERS: Mapping[str, Callable[[Constraint], Grammars]] = {
    "json_schema": _json_schema,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "structural_tag": _structural_tag,
}


NOUNS = {
    "json_schema": "JSON Schema",
    "regex": "regular expression",
    "choice": "choice",
    "grammar": "grammar",
    "structural_tag": "structural tag",
}
"""Constraint kinds as they are called in a sentence."""

UNSATISFIABLE = "Unsatisfiable schema: "
"""Part of the library's message for a schema that no text matches."""
_FALSE = "schema is false"


def _fault(constraint: Constraint, message: str) -> ConstraintError | None:
    """Error with its place for a malformed constraint or an unsupported pattern; None for any other refusal."""
    if constraint.kind == "regex":
        problem = regex_problem(regex_error(constraint.text) or message, constraint.text)  # the former has positions
        if problem is None:
            return None
        what = "cannot be enforced" if problem.unsupported else "is malformed"
        return ConstraintError(f"the regular expression {what}: {problem.at(constraint.text)}", problem.advice)
    if constraint.kind != "json_schema" or not is_quick(constraint):
        return None
    if (mistake := mistake_in(json.loads(constraint.text))) is None:
        return None
    what = "cannot be enforced" if mistake.unsupported else "is malformed"
    advice = [mistake.advice] if mistake.advice else []
    return ConstraintError(f"the JSON Schema {what} at {mistake.pointer}: {mistake.why}", *advice)


def refusal(constraint: Constraint, message: str, narrowed: Sequence[str] = ()) -> ConstraintError:
    """Return the error for a constraint that the library refused with this message.

    narrowed: differences that make the refused grammar stricter than the constraint, so that more could match.
    """
    what = NOUNS[constraint.kind]
    # Cut the position and the line of our own grammar, which contains the whole schema.
    message = message.partition(f"\n   1 | {_JSON_START}")[0].removeprefix(_JSON_PLACE)
    if (problem := _fault(constraint, message)) is not None:
        return problem
    hints = [_LENIENT_HINT] if constraint.kind == "json_schema" and constraint.strict else []
    if UNSATISFIABLE in message:
        reason = _short(message.partition(UNSATISFIABLE)[2]).partition("; while processing")[0]
        if narrowed:
            return ConstraintError(f"the {what} cannot be enforced: {narrowed[0]}", *hints)
        if reason.startswith(_FALSE):
            return ConstraintError(f"no text matches the {what}", "look for parts that exclude each other")
        return ConstraintError(f"the {what} cannot be enforced: parts of it exclude each other: {reason}", *hints)
    return ConstraintError(f"the {what} cannot be enforced: {_short(message)}", *hints)


def _short(message: str) -> str:
    """Return the first and last line with content of a message, without its source excerpts."""
    lines = [line.strip() for line in message.splitlines()]
    telling = [
        _OWN_PLACE.sub("", line.removeprefix("error: "))
        for line in lines
        if line and not re.fullmatch(r"[\^~]+|\d+ \|.*", line)
    ]
    return "; ".join(telling[:1] + telling[-1:] if len(telling) > 1 else telling)[:300]
