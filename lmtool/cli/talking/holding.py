"""What the options of `lmtool chat` hold an answer to: a constraint, and logits processors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lmtool import constraint
from lmtool.errors import ConstraintError, FileError, RequestError, UsageError
from lmtool.logits_processors import processors_from
from lmtool.types import Constraint, NamedProcessor


@dataclass(frozen=True, slots=True)
class Holding:
    """What the answer shall be held to, as typed; at most one of them."""

    json_schema: str | None = None
    """A file with a JSON Schema."""
    regex: str | None = None
    choice: Sequence[str] = ()
    grammar: str | None = None
    """A file with a grammar in Lark's or GBNF's notation."""


def constraint_of(holding: Holding) -> Constraint | None:
    """Return the constraint that is asked for.

    Raises `UsageError` for more than one or one that a glance can refuse, `FileError` for a file that cannot be read.
    """
    asked = {
        "--json-schema": holding.json_schema,
        "--regex": holding.regex,
        "--choice": holding.choice or None,
        "--grammar": holding.grammar,
    }
    given = [option for option, value in asked.items() if value is not None]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} hold an answer to two things at once", "give one of them")
    try:
        if holding.json_schema is not None:
            return constraint.json_schema(_text(holding.json_schema), where=holding.json_schema)
        if holding.regex is not None:
            return constraint.regex(holding.regex, where="--regex")
        if holding.choice:
            return constraint.choice(list(holding.choice), where="--choice")
        if holding.grammar is not None:
            return constraint.grammar(_text(holding.grammar), where=holding.grammar)
    except ConstraintError as error:
        raise UsageError(error.message, *error.hints) from None
    return None


def processors_of(words: Sequence[str]) -> tuple[NamedProcessor, ...]:
    """Return the logits processors of `NAME` or `NAME={"argument": ...}` each. Raises `UsageError`."""
    try:
        return processors_from([_processor(word) for word in words], where="--logits-processor")
    except RequestError as error:
        raise UsageError(error.message, *error.hints) from None


def _processor(word: str) -> dict[str, object]:
    name, equals, arguments = word.partition("=")
    try:
        return {"name": name, "args": json.loads(arguments) if equals else {}}
    except (ValueError, RecursionError) as error:
        problem = f"--logits-processor {word!r} has no JSON behind the =: {error}"
        raise UsageError(problem, """such as --logits-processor NAME='{"strength": 2}'""") from None


def _text(file: str) -> str:
    try:
        with Path(file).open("rb") as opened:
            return opened.read(constraint.MAX_BYTES + 1).decode()
    except OSError as error:
        raise FileError(f"cannot read {file}: {error.strerror}", "check the path") from error
    except UnicodeDecodeError as error:
        raise FileError(f"{file} is not UTF-8: byte {error.start}", "convert it first") from None
