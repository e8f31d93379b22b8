"""The ways to write a JSON Schema as a grammar: as it is, rewritten, and with what cannot be held left out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from lmtool.errors import ConstraintError
from lmtool.guide.schema.document import UnsupportedError
from lmtool.guide.schema.open_names import open_names
from lmtool.guide.schema.rewriting import rewrite

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lmtool.guide.schema.open_names import OpenNames
    from lmtool.types import Constraint


def json_grammars(constraint: Constraint) -> Iterator[tuple[str, tuple[str, ...], OpenNames]]:
    """Yield (grammar, warnings, names): the schema as it is, rewritten, and last, unless it is strict, with less held.

    Raises `ConstraintError`, which names the keyword, for a strict schema that cannot be rewritten.
    """
    text = _without_options("{}" if constraint.text == "true" else constraint.text)
    if text == "false":
        raise ConstraintError("no text matches the schema false", "send true, or a schema that allows something")
    schema = json.loads(text)
    names = open_names(schema)
    if not names.too_few:
        yield _grammar(text, constraint), (), names
    try:
        rewritten = rewrite(schema)
    except UnsupportedError as problem:
        if constraint.strict:
            raise ConstraintError(f"the JSON Schema cannot be held: {problem}", LENIENT_HINT) from None
        rewritten = None
    if rewritten is not None and rewritten.schema is False:
        hints = rewritten.impossible or ("look for parts that exclude each other",)
        raise ConstraintError("no text matches the JSON Schema", *hints[:1])
    if rewritten is not None:
        plain = {} if rewritten.schema is True else rewritten.schema
        yield _grammar(json.dumps(plain, ensure_ascii=False), constraint), rewritten.narrowed, open_names(plain)
    if not constraint.strict:
        yield _grammar(text, constraint, coerce_one_of=True), (), names
        yield _grammar(text, constraint, coerce_one_of=True, lenient=True), (), names


LENIENT_HINT = 'leave it out, or send "strict": false to have it ignored with a warning'


def without_place(message: str) -> str:
    """The library's message about one of these grammars, without the place and the line, which is the whole schema."""
    return message.partition(f"\n   1 | {_START}")[0].removeprefix(_PLACE)


def _without_options(text: str) -> str:
    """The schema's text without the library's own options, which are ours to choose."""
    if _OPTIONS not in text:
        return text
    schema = json.loads(text)
    schema.pop("x-guidance", None)
    return json.dumps(schema, ensure_ascii=False)


def _grammar(schema: str, constraint: Constraint, *, coerce_one_of: bool = False, lenient: bool = False) -> str:
    """Lark that takes the text of a schema that is an object.

    `LLMatcher.grammar_from_json_schema` would read and write the schema under the interpreter's lock, and `LLMatcher`
    would read the JSON that comes of it: half a megabyte stops all other threads for 30 ms. This copies it, and Lark is
    read without the lock.
    """
    options = {
        "whitespace_flexible": constraint.any_whitespace,
        "coerce_one_of": coerce_one_of,
        "lenient": lenient,
    }
    members = [f"{_OPTIONS}:{json.dumps(options)}", schema[1:-1]]
    return f"{_START}{{{','.join(filter(None, members))}}}\n"


_START = "start: %json "
_PLACE = "at 1(8): failed to compile JSON schema: "
_OPTIONS = '"x-guidance"'
