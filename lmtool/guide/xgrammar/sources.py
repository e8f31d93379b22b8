"""From a constraint to what xgrammar compiles, and how it is refused where xgrammar cannot hold it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmtool.errors import ConstraintError
from lmtool.guide.schema.document import Schema, UnsupportedError
from lmtool.guide.schema.open_names import LISTED, OpenNames, open_names
from lmtool.guide.schema.rewriting import rewrite
from lmtool.guide.tag_parts import as_format, open_names_in
from lmtool.guide.xgrammar import matching, notation
from lmtool.guide.xgrammar.notation import Rules
from lmtool.guide.xgrammar.pattern import PatternError
from lmtool.guide.xgrammar.schema_writer import SchemaWriter
from lmtool.guide.xgrammar.tags import TagWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lmtool.types import Constraint

ELSEWHERE = "a server with --structured-backend llguidance holds it, or says what is wrong with it"
LENIENT = 'send "strict": false to have it ignored with a warning'


@dataclass(frozen=True, slots=True)
class Source:
    """A constraint as xgrammar takes it."""

    kind: str
    """`grammar`: EBNF that starts at `root`. `structural_tag`: JSON."""
    text: str
    warnings: tuple[str, ...] = ()
    """What of the constraint it does not hold, or more narrowly than it says."""
    names: OpenNames = LISTED
    """Of the JSON in it, whether names could come twice."""
    markers: tuple[bytes, ...] = (b"",)
    """Behind which texts this JSON begins, see `JsonCursor`."""


def source(constraint: Constraint) -> Source:
    """Return what xgrammar compiles for a constraint. Raises `ConstraintError`, which names what it cannot hold."""
    return _WRITERS[constraint.kind](constraint)


def _json_schema(constraint: Constraint) -> Source:
    schema = json.loads(constraint.text)
    text, warnings = _schema_grammar(schema, constraint, "the JSON Schema")
    return Source("grammar", text, warnings, open_names(schema))


def _schema_grammar(schema: Schema, constraint: Constraint, what: str) -> tuple[str, tuple[str, ...]]:
    """The grammar of a schema, and what it does not hold or more narrowly than the schema says."""
    narrowed: tuple[str, ...] = ()
    try:
        try:
            rewritten = rewrite(schema)
            schema, narrowed = rewritten.schema, rewritten.narrowed
        except UnsupportedError:
            if constraint.strict:
                raise
        rules = Rules()
        writer = SchemaWriter(schema, rules, strict=constraint.strict, any_whitespace=constraint.any_whitespace)
        root = writer.value(schema)
    except UnsupportedError as problem:
        hints = (ELSEWHERE, LENIENT) if constraint.kind == "json_schema" else (ELSEWHERE,)
        raise ConstraintError(f"{what} cannot be held by xgrammar: {problem}", *hints) from None
    if root is None:
        raise ConstraintError(f"no text matches {what}", "look for parts that exclude each other")
    return rules.written(root), (*narrowed, *writer.warnings)


def _pattern_grammar(pattern: str, what: str) -> str:
    try:
        written = matching.whole(pattern)
    except PatternError as problem:
        raise ConstraintError(f"{what} cannot be held by xgrammar: it has {problem}", ELSEWHERE) from None
    if written is None:
        raise ConstraintError(f"no text matches {what}", "look for parts that exclude each other")
    return Rules().written(written)


def _regex(constraint: Constraint) -> Source:
    return Source("grammar", _pattern_grammar(constraint.text, "the regular expression"))


def _choice(constraint: Constraint) -> Source:
    texts = [notation.text(text) for text in json.loads(constraint.text)]
    return Source("grammar", Rules().written(notation.choice(texts) or notation.NOTHING))


def _grammar(constraint: Constraint) -> Source:
    if not re.search(r"(?m)^\s*[\w-]+\s*::=", constraint.text):
        raise ConstraintError(
            "xgrammar takes grammars in GBNF (rules written with ::=), and this one looks like Lark",
            "write it as GBNF, with a rule named root",
            "a server with --structured-backend llguidance takes Lark",
        )
    return Source("grammar", constraint.text)


def _structural_tag(constraint: Constraint) -> Source:
    warnings: dict[str, None] = {}

    def schema(given: Schema, where: str) -> str:
        text, told = _schema_grammar(given, constraint, f"{where} of the structural tag")
        warnings.update(dict.fromkeys(told))
        return text

    def pattern(given: str, where: str) -> str:
        return _pattern_grammar(given, f"{where} of the structural tag")

    tag = json.loads(constraint.text)
    written = TagWriter(schema, pattern).written(tag)
    text = json.dumps(written, ensure_ascii=False)
    return Source("structural_tag", text, tuple(warnings), *open_names_in(as_format(tag)))


_WRITERS: Mapping[str, Callable[[Constraint], Source]] = {
    "json_schema": _json_schema,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "structural_tag": _structural_tag,
}
