"""Options of `lmtool chat`: the form of the output, how one prompt is sent, and structured output."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from lmtool.core import constraint
from lmtool.core.errors import ConstraintError, FileError, RequestError, UsageError
from lmtool.core.logits_processors import processors_from
from lmtool.core.resuming import ResumeOptions
from lmtool.terminal.chat.json_place import line_of, pointer_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.core.errors import LmtoolError
    from lmtool.core.types import Constraint, NamedProcessor
    from lmtool.terminal.chat.heat import HeatMode

OutputForm: TypeAlias = Literal["text", "table", "json", "jsonl", "raw"]
"""Text; one row per token; one JSON object; one JSON object per token; the server's frames as they are."""


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """What is written to stdout and stderr."""

    form: OutputForm = "text"
    heat: HeatMode | None = None
    """What tokens are coloured by, if at all."""
    markdown: bool = False
    """True if Markdown is drawn, on a terminal, rather than shown as it is."""
    stats: bool = False
    """True if timings and perplexity go to stderr."""
    stream: bool = True
    """True if tokens are shown as they arrive, or all at the end."""
    echo: bool = False
    """True if the prompt is shown in front of the text."""


@dataclass(frozen=True, slots=True)
class OneShotOptions:
    """How a single prompt is sent."""

    n_streams: int = 1
    tokenizer: str | None = None
    """Tokenizer to use here, for servers that accept token ids only."""
    timeout: float | None = None
    """Seconds for everything."""
    dry_run: bool = False
    """Only print the frames that would be sent."""
    record: str | None = None
    """File that keeps the frames as a trace."""
    resume: ResumeOptions = field(default_factory=ResumeOptions)
    """When a stream that was cut is gone on with."""


def output_form(*, table: bool = False, json: bool = False, jsonl: bool = False, raw: bool = False) -> OutputForm:
    """The one form that was chosen, or text. Raises `UsageError` for two."""
    switches: dict[OutputForm, bool] = {"table": table, "json": json, "jsonl": jsonl, "raw": raw}
    chosen = [form for form, on in switches.items() if on]
    if len(chosen) > 1:
        raise UsageError(f"--{chosen[0]} and --{chosen[1]} are two forms of the same output", "choose one")
    return chosen[0] if chosen else "text"


def constraint_from_options(
    json_schema: str | None = None, regex: str | None = None, choice: Sequence[str] = (), grammar: str | None = None
) -> Constraint | None:
    """The constraint that the options ask for. json_schema, grammar: files.

    Raises `UsageError` for more than one, or one that is wrong at first sight; `FileError` for an unreadable file.
    """
    values = {"--json-schema": json_schema, "--regex": regex, "--choice": choice or None, "--grammar": grammar}
    options = [option for option, value in values.items() if value is not None]
    if len(options) > 1:
        raise UsageError(f"{' and '.join(options)} contradict each other", "choose one of them")
    try:
        if json_schema is not None:
            return constraint.json_schema(_text(json_schema), where=json_schema)
        if regex is not None:
            return constraint.regex(regex, where="--regex")
        if choice:
            return constraint.choice(list(choice), where="--choice")
        if grammar is not None:
            return constraint.grammar(_text(grammar), where=grammar)
    except ConstraintError as error:
        raise UsageError(error.message, *error.hints) from None
    return None


def constraint_origin(
    json_schema: str | None = None, regex: str | None = None, choice: Sequence[str] = (), grammar: str | None = None
) -> str:
    """Where the constraint was given: `--json-schema FILE`, `--grammar FILE`, `--regex` or `--choice`; or empty."""
    if json_schema is not None or grammar is not None:
        return f"--json-schema {json_schema}" if json_schema is not None else f"--grammar {grammar}"
    return "--regex" if regex is not None else "--choice" if choice else ""


def explained_constraint(error: LmtoolError, origin: str) -> LmtoolError:
    """A server's refusal of a constraint in the terms of the command line: its option, the file and the line."""
    option, _, file = origin.partition(" ")
    pointer = pointer_in(error.message)
    line = None if pointer is None or option != "--json-schema" else line_of(_text(file), pointer)
    place = f"{file}:{line}" if line is not None else origin
    kept = [hint for hint in error.hints if '"strict"' not in hint]
    advice = [] if kept or option != "--json-schema" else [f"correct it in {file}"]
    return type(error)(f"{place}: {error.message}", *kept, *advice)


def processors_from_options(words: Sequence[str]) -> tuple[NamedProcessor, ...]:
    """The logits processors `NAME` or `NAME={"argument": ...}`. Raises `UsageError`."""
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
