"""Compiles constraints in vLLM's engine process, off its thread; mixed into vLLM's own worker, which answers calls."""

from __future__ import annotations

import json
from concurrent.futures import Future
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from lmtool.backends.vllm.shared_directory import KEY, read_settings
from lmtool.backends.vllm.step_channel import error_parts
from lmtool.backends.vllm.translation import MARKS
from lmtool.constraint import constraint_from
from lmtool.errors import ConstraintError, LmtoolError
from lmtool.reasoning import ThoughtMarks

if TYPE_CHECKING:
    from lmtool.guide.compiler import MatcherCompiler
    from lmtool.interfaces import Guide

_MAX_PENDING = 1024
_pending: dict[str, Future[Guide]] = {}


@lru_cache(maxsize=1)
def guide_compiler(directory: str) -> MatcherCompiler | None:
    """The one compiler of this process; None for a model without a tokenizer. directory: the shared one."""
    from lmtool.guide.compiler import MatcherCompiler

    settings = read_settings(directory)
    if settings.tokenizer is None:
        return None
    return MatcherCompiler(settings.tokenizer, settings.vocab_size, settings.eos_ids)


def compile_constraint(directory: str, constraint: str) -> Future[Guide]:
    """Start compiling a constraint, given as JSON; done at once where it is in the compiler's cache."""
    compiler = guide_compiler(directory)
    if compiler is None:
        failure: Future[Guide] = Future()
        failure.set_exception(ConstraintError("structured output needs a tokenizer, which this model lacks"))
        return failure
    members = json.loads(constraint)
    marks = members.pop(MARKS, None)
    return compiler.compile(
        constraint_from(members) if members else None, None if marks is None else msgspec.convert(marks, ThoughtMarks)
    )


class GuideExtension:
    """Methods mixed into vLLM's worker; none blocks."""

    vllm_config: Any

    def lmtool_compile(self, constraint: str) -> dict[str, list[str]] | None:
        """The outcome, `warnings` or the parts of an `error`; None while it compiles: call again."""
        if len(_pending) > _MAX_PENDING:
            for text in [text for text, future in _pending.items() if future.done()]:
                del _pending[text]
        future = _pending.get(constraint)
        if future is None:
            future = _pending[constraint] = compile_constraint(self.vllm_config.additional_config[KEY], constraint)
        if not future.done():
            return None
        del _pending[constraint]
        problem = future.exception()
        if problem is None:
            return {"warnings": list(future.result().warnings)}
        assert isinstance(problem, LmtoolError)
        return {"error": list(error_parts(problem))}
