"""Validates finished answers with an implementation independent of the one that constrained them."""

from __future__ import annotations

import json
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from llguidance import LLMatcher

from lmtool.core.errors import ConstraintTooComplexError, InvalidAnswerError, LmtoolError, ServerError
from lmtool.core.interfaces import Verdict
from lmtool.inference.guide.json_validation import TooManyStepsError, UncheckedError, examine
from lmtool.inference.guide.patterns import byte_tokenizer
from lmtool.inference.guide.structural_tag import UnmarkedTextError, tag_grammar
from lmtool.net.subprocesses.process import LONG, CrashError, Pool, TimeOverError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lmtool.core.types import Constraint
    from lmtool.inference.guide.schema.document import Schema

    _Work = Callable[[Future[Verdict], Constraint, str], None]

SECONDS = 10.0
"""Timeout of validating one answer."""
_QUICK_STEPS = 2000
"""Most keyword evaluations in this process: 20 ms, during which other threads get the interpreter lock in turn."""
_ALL_STEPS = 1 << 60
_THREADS = 2


class JsonAnswerCheck:
    """An `AnswerCheck` by jsonschema. Long answers and slow schemas go to processes that are killed at a timeout."""

    def __init__(self, seconds: float = SECONDS) -> None:
        """seconds: timeout of validating one answer."""
        self._seconds = seconds
        self._quick = ThreadPoolExecutor(_THREADS, "lmtool-answers")
        self._slow = ThreadPoolExecutor(_THREADS, "lmtool-slow-answers")
        self._processes = Pool(_THREADS)

    def applies_to(self, constraint: Constraint) -> bool:
        """True if answers under this constraint contain JSON of a schema."""
        return constraint.kind in {"json_schema", "structural_tag"}

    def begin(self, constraint: Constraint, text: str, warnings: Sequence[str]) -> Future[Verdict]:
        """Start validating an answer; see `interfaces.AnswerCheck.begin`."""
        answer: Future[Verdict] = Future()
        if not constraint.strict and not warnings:  # llguidance enforces every keyword of these
            answer.set_result(Verdict())
            return answer
        short = len(text) + len(constraint.text) < LONG
        self._submit(
            *(self._quick, self._validate_here) if short else (self._slow, self._validate_in_subprocess),
            answer,
            constraint,
            text,
        )
        return answer

    def close(self) -> None:
        """Stop the threads and processes; running validations end with an error."""
        self._processes.close()
        self._quick.shutdown(wait=False)
        self._slow.shutdown(wait=False)

    def _submit(
        self, threads: ThreadPoolExecutor, work: _Work, answer: Future[Verdict], constraint: Constraint, text: str
    ) -> None:
        try:
            threads.submit(work, answer, constraint, text)
        except RuntimeError:  # the pool was shut down
            answer.set_result(Verdict(ServerError("the server stopped before the answer was validated")))

    def _validate_here(self, answer: Future[Verdict], constraint: Constraint, text: str) -> None:
        try:
            answer.set_result(validate(constraint, text, _QUICK_STEPS))
        except TooManyStepsError:
            self._submit(self._slow, self._validate_in_subprocess, answer, constraint, text)
        except BaseException as problem:  # noqa: BLE001  # raised by the future
            answer.set_exception(problem)

    def _validate_in_subprocess(self, answer: Future[Verdict], constraint: Constraint, text: str) -> None:
        try:
            answer.set_result(self._processes.call(self._seconds, validate, constraint, text, _ALL_STEPS))
        except TimeOverError:
            sentence = f"validating the answer takes more than {self._seconds:g} s"
            answer.set_result(_unvalidated(constraint, ConstraintTooComplexError(sentence, "make the schema simpler")))
        except (CrashError, ServerError) as problem:
            failed = ServerError(f"the process that validates answers failed: {problem}")
            answer.set_result(_unvalidated(constraint, failed))
        except BaseException as problem:  # noqa: BLE001  # raised by the future
            answer.set_exception(problem)


def validate(constraint: Constraint, text: str, steps: int) -> Verdict:
    """Verdict on a finished answer. Raises `TooManyStepsError` after `steps` keyword evaluations."""
    try:
        found = tuple(_violations(constraint, text, steps))
    except TooManyStepsError:
        raise
    except (UncheckedError, RecursionError) as problem:
        return Verdict(warnings=(f"the answer was not validated: {problem}",))
    if not constraint.strict:
        return Verdict(warnings=tuple(f"the answer is not valid: {sentence}" for sentence in found))
    if not found:
        return Verdict()
    hint = "do not use it; this is a bug of the server, please report it with the schema"
    return Verdict(InvalidAnswerError(f"the finished answer is not valid under its schema: {found[0]}", hint))


def _violations(constraint: Constraint, text: str, steps: int) -> Iterator[str]:
    if constraint.kind == "json_schema":
        yield from examine(constraint.text, text, steps)
        return
    try:
        values = _json_values(json.loads(constraint.text), text)
    except UnmarkedTextError:
        return  # the JSON cannot be located in the text
    if values is None:
        yield "the text does not have the form that the structural tag requires"
        return
    for value, schemas in values.items():
        if all(schema is not None for schema in schemas):
            # If several parts could have produced this value, it came from one of them.
            yield from min((examine(json.dumps(schema), value, steps) for schema in schemas), key=len)


def _json_values(tag: dict[str, object], text: str) -> dict[str, list[Schema | None]] | None:
    """JSON values in the text of a structural tag, each with its candidate schemas; None for a lenient schema.

    Returns None if the text does not match the tag.
    """
    lark, parts = tag_grammar(tag, captures=True)
    matcher = LLMatcher(byte_tokenizer(), LLMatcher.grammar_from_lark(lark), log_level=0)
    data = list(text.encode())
    if matcher.try_consume_tokens(data) < len(data) or not matcher.is_accepting():
        if (problem := matcher.get_error()) and "satisfy" not in problem:
            raise UncheckedError(problem.splitlines()[0])
        return None
    values: dict[str, list[Schema | None]] = {}
    for number, value in matcher.get_captures():
        part = parts[int(number)]
        values.setdefault(value.decode(), []).append(part.schema if part.strict else None)
    return values


def _unvalidated(constraint: Constraint, problem: LmtoolError) -> Verdict:
    return Verdict(problem) if constraint.strict else Verdict(warnings=(f"not validated: {problem.message}",))
