"""The ways to write a JSON Schema as a grammar: as it is, rewritten, and with what cannot be held left out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from llguidance import LLMatcher

from lmtool.errors import ConstraintError
from lmtool.guide.schema.document import UnsupportedError
from lmtool.guide.schema.rewriting import rewrite

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lmtool.types import Constraint


def json_grammars(constraint: Constraint) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield (grammar, warnings): the schema as it is, rewritten, and last, unless it is strict, with less held.

    Raises `ConstraintError`, which names the keyword, for a strict schema that cannot be rewritten.
    """
    schema = json.loads(constraint.text)
    if isinstance(schema, bool):
        if not schema:
            raise ConstraintError("no text matches the schema false", "send true, or a schema that allows something")
        schema = {}
    schema.pop("x-guidance", None)  # the library's own options are ours to choose
    yield _grammar(schema, constraint), ()
    try:
        rewritten = rewrite(schema)
    except UnsupportedError as problem:
        if constraint.strict:
            raise ConstraintError(f"the JSON Schema cannot be held: {problem}", LENIENT_HINT) from None
        rewritten = None
    if rewritten is not None and rewritten.schema is False:
        raise ConstraintError("no text matches the JSON Schema", "look for parts that exclude each other")
    if rewritten is not None:
        yield _grammar(rewritten.schema, constraint), rewritten.narrowed
    if not constraint.strict:
        yield _grammar(schema, constraint, coerce_one_of=True), ()
        yield _grammar(schema, constraint, coerce_one_of=True, lenient=True), ()


LENIENT_HINT = 'leave it out, or send "strict": false to have it ignored with a warning'


def _grammar(schema: object, constraint: Constraint, *, coerce_one_of: bool = False, lenient: bool = False) -> str:
    return LLMatcher.grammar_from_json_schema(
        json.dumps({} if schema is True else schema, ensure_ascii=False),
        overrides={
            "whitespace_flexible": constraint.any_whitespace,
            "coerce_one_of": coerce_one_of,
            "lenient": lenient,
        },
    )
