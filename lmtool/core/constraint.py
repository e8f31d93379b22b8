"""A `Constraint` from each of the spellings in use; what is malformed or too large is refused without a library."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, TypeGuard

from lmtool.core.errors import ConstraintError
from lmtool.core.types import Constraint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MAX_BYTES = 512 * 1024
"""Most bytes of a schema, or of all choices together."""
MAX_GRAMMAR_BYTES = 128 * 1024
"""Most bytes of a grammar: each rule takes some kilobytes of stack where it is compiled."""
MAX_NESTING = 64
"""Deepest nesting of a schema's objects and arrays."""
MAX_CHOICES = 50_000
MAX_REGEX_CHARACTERS = 20_000
MAX_REPEATS = 100_000
"""Highest count that a regular expression may repeat something."""

_SHOWN_CHARACTERS = 60
_REPEAT = re.compile(r"\{\s*(\d+)?\s*(?:,\s*(\d+)?\s*)?\}")


def constraint_from(value: object, *, where: str = "constraint") -> Constraint:
    """Return the constraint of an object that names it: LMTP's `constraint`, OpenAI servers' `structured_outputs`.

    value: one of `json` (a schema, or its text), `regex`, `choice` (texts), `grammar` (Lark or GBNF), `json_object`
    (true) and `structural_tag`; beside it `strict` (true) and `disable_any_whitespace` (true). Members that are null
    count as absent. Raises `ConstraintError`, which names the member under `where`.
    """
    if not _is_object(value):
        raise ConstraintError(f"{where} is {_shown(value)}; expected an object with one of {', '.join(_READERS)}")
    members = {name: member for name, member in value.items() if member is not None}
    unknown = sorted(members.keys() - _READERS.keys() - set(_SWITCHES))
    if unknown:
        raise ConstraintError(
            f"{where} has {_shown(unknown[0])}; expected one of {', '.join(_READERS)}, beside {', '.join(_SWITCHES)}"
        )
    switches = {name: _switch(members.pop(name, True), f"{where}.{name}") for name in _SWITCHES}
    if members.get("json_object") is False:
        del members["json_object"]
    if len(members) != 1:
        raise ConstraintError(
            f"{where} has {' and '.join(members) or 'no constraint'}; expected exactly one of {', '.join(_READERS)}"
        )
    [(name, value)] = members.items()
    return _READERS[name](value, f"{where}.{name}", switches["strict"], not switches["disable_any_whitespace"])


def of_response_format(value: object, *, where: str = "response_format") -> dict[str, object] | None:
    """OpenAI's `response_format` as `constraint_from` reads it; None for any text. Raises `ConstraintError`."""
    members = {name: member for name, member in value.items() if member is not None} if _is_object(value) else {}
    match members:
        case {"type": "text"}:
            return None
        case {"type": "json_object", "schema": schema}:
            return {"json": schema, "strict": False}
        case {"type": "json_object"}:
            return {"json_object": True}
        case {"type": "json_schema", "json_schema": {"schema": schema, **named}} if schema is not None:
            return {"json": schema, "strict": named.get("strict") or False}
        case {"type": "structural_tag"}:
            parts = {name: members.get(name) for name in ("structures", "triggers")}
            return {"structural_tag": {"format": members["format"]} if "format" in members else parts}
    raise ConstraintError(
        f"{where} is {_shown(value)}; expected a type: text, json_object, json_schema with a schema, structural_tag"
    )


def json_schema(
    schema: object, *, where: str = "schema", strict: bool = True, any_whitespace: bool = False
) -> Constraint:
    """Return the constraint to JSON that a schema allows. schema: an object, a boolean, or the text of one.

    Raises `ConstraintError` for what is no JSON Schema, too long or nested too deeply.
    """
    value = _parsed(schema, where) if isinstance(schema, str) else schema
    if not isinstance(value, bool) and not _is_object(value):
        raise ConstraintError(f"{where} is {_shown(value)}; expected a JSON Schema: an object or a boolean")
    return Constraint("json_schema", _canonical(value, where), strict, any_whitespace)


def regex(pattern: object, *, where: str = "regex") -> Constraint:
    """Return the constraint to texts that match a regular expression as a whole. Raises `ConstraintError`."""
    text = _text(pattern, where, "a regular expression")
    if len(text) > MAX_REGEX_CHARACTERS:
        raise ConstraintError(f"{where} has {len(text)} characters; expected at most {MAX_REGEX_CHARACTERS}")
    for counts in _REPEAT.findall(text):
        if any(len(count) > 9 or int(count) > MAX_REPEATS for count in counts if count):
            raise ConstraintError(f"{where} repeats something more than {MAX_REPEATS} times", "use * or + for no limit")
    return Constraint("regex", text)


def choice(texts: object, *, where: str = "choice") -> Constraint:
    """Return the constraint to one of these texts. Raises `ConstraintError`."""
    if not _is_list(texts) or not texts or not all(isinstance(text, str) for text in texts):
        raise ConstraintError(f"{where} is {_shown(texts)}; expected an array of at least one string")
    if len(texts) > MAX_CHOICES:
        raise ConstraintError(f"{where} has {len(texts)} entries; expected at most {MAX_CHOICES}")
    return Constraint("choice", _canonical(list(dict.fromkeys(texts)), where))


def grammar(source: object, *, where: str = "grammar") -> Constraint:
    """Return the constraint to a context-free grammar in Lark's or GBNF's notation. Raises `ConstraintError`."""
    text = _text(source, where, "a grammar in Lark or GBNF notation")
    _check_size(text, where, MAX_GRAMMAR_BYTES)
    return Constraint("grammar", text)


def structural_tag(tag: object, *, where: str = "structural_tag") -> Constraint:
    """Return the constraint to free text with structured parts in it. tag: the object or its text.

    Raises `ConstraintError`.
    """
    value = _parsed(tag, where) if isinstance(tag, str) else tag
    if not _is_object(value):
        raise ConstraintError(f"{where} is {_shown(value)}; expected an object with structures and triggers")
    return Constraint("structural_tag", _canonical(value, where))


def written(constraint: Constraint) -> dict[str, object]:
    """Return the object that `constraint_from` reads as this constraint."""
    plain = constraint.kind in {"regex", "grammar"}
    name = "json" if constraint.kind == "json_schema" else constraint.kind
    spelled: dict[str, object] = {name: constraint.text if plain else json.loads(constraint.text)}
    if not constraint.strict:
        spelled["strict"] = False
    if constraint.any_whitespace:
        spelled["disable_any_whitespace"] = False
    return spelled


def _read_json_object(
    value: object, where: str, strict: bool, any_whitespace: bool
) -> Constraint:  # one row of _READERS
    if value is not True:
        raise ConstraintError(f"{where} is {_shown(value)}; expected true")
    return json_schema({"type": "object"}, where=where, strict=strict, any_whitespace=any_whitespace)


_READERS: Mapping[str, Callable[[object, str, bool, bool], Constraint]] = {
    "json": lambda value, where, strict, blanks: json_schema(value, where=where, strict=strict, any_whitespace=blanks),
    "regex": lambda value, where, *_: regex(value, where=where),
    "choice": lambda value, where, *_: choice(value, where=where),
    "grammar": lambda value, where, *_: grammar(value, where=where),
    "json_object": _read_json_object,
    "structural_tag": lambda value, where, *_: structural_tag(value, where=where),
}
_SWITCHES = ("strict", "disable_any_whitespace")


def _switch(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise ConstraintError(f"{where} is {_shown(value)}; expected true or false")
    return value


def _text(value: object, where: str, expected: str) -> str:
    if not isinstance(value, str) or not value:
        raise ConstraintError(f"{where} is {_shown(value)}; expected {expected}")
    if not value.isascii() and not _is_unicode(value):
        raise ConstraintError(f"{where} holds half a surrogate pair; expected Unicode")
    return value


def _parsed(text: str, where: str) -> object:
    _check_size(text, where)
    try:
        value: object = json.loads(text)
    except RecursionError:
        raise _too_deep(where) from None
    except ValueError as error:
        raise ConstraintError(f"{where} is {_shown(text)}, which is no JSON: {error}") from None
    return value


def _canonical(value: object, where: str) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except RecursionError:
        raise _too_deep(where) from None
    except (ValueError, TypeError) as error:
        raise ConstraintError(f"{where} cannot be written as JSON: {error}") from None
    if not _is_unicode(text):
        raise ConstraintError(f"{where} holds half a surrogate pair; expected Unicode")
    _check_size(text, where)
    _check_nesting(value, where)
    return text


def _check_size(text: str, where: str, most: int = MAX_BYTES) -> None:
    size = len(text.encode(errors="surrogatepass"))
    if size > most:
        raise ConstraintError(f"{where} has {size} bytes; expected at most {most}")


def _check_nesting(value: object, where: str) -> None:
    level = [value]
    for _ in range(MAX_NESTING + 1):
        level = [part for outer in level for part in _parts(outer)]
        if not level:
            return
    raise _too_deep(where)


def _parts(value: object) -> Sequence[object]:
    if _is_object(value):
        return list(value.values())
    return value if _is_list(value) else ()


def _too_deep(where: str) -> ConstraintError:
    return ConstraintError(f"{where} is nested more than {MAX_NESTING} deep", "name parts in $defs and use $ref")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_object(value: object) -> TypeGuard[dict[str, object]]:
    return isinstance(value, dict) and all(isinstance(name, str) for name in value)


def _is_list(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list)


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)[: 10 * _SHOWN_CHARACTERS]
    shown = ascii(text) if isinstance(value, str) else text
    return shown if len(shown) <= _SHOWN_CHARACTERS else shown[:_SHOWN_CHARACTERS] + "..."
