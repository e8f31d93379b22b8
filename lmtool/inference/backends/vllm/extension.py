"""Compiles constraints in vLLM's engine process, off its thread; mixed into vLLM's own worker, which answers calls."""

from __future__ import annotations

import json
from concurrent.futures import Future
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from lmtool.core.constraint import constraint_from
from lmtool.core.errors import ConstraintError, LmtoolError
from lmtool.core.reasoning import ThoughtMarks
from lmtool.inference.backends.vllm.shared_directory import EngineSettings
from lmtool.inference.backends.vllm.step_channel import error_parts
from lmtool.inference.backends.vllm.translation import MARKS

if TYPE_CHECKING:
    from lmtool.core.interfaces import Guide
    from lmtool.inference.guide.compiler import MatcherCompiler

_MAX_PENDING = 1024
_pending: dict[str, Future[Guide]] = {}
_settings: list[EngineSettings] = []
"""Of this process, which has one model; empty until the worker has sent them."""


def engine_settings() -> EngineSettings:
    """What the worker has sent to this process, before its first request."""
    return _settings[0]


@lru_cache(maxsize=1)
def guide_compiler() -> MatcherCompiler | None:
    """The one compiler of this process; None for a model without a tokenizer."""
    from lmtool.inference.guide.compiler import MatcherCompiler

    settings = engine_settings()
    if settings.tokenizer is None:
        return None
    return MatcherCompiler(settings.tokenizer, settings.vocab_size, settings.eos_ids)


def compile_constraint(constraint: str) -> Future[Guide]:
    """Start compiling a constraint, given as JSON; done at once where it is in the compiler's cache."""
    compiler = guide_compiler()
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
    """Methods mixed into vLLM's worker, on whatever machine it is; none blocks."""

    def lmtool_describe(self, settings: str) -> None:
        """Keep the model's settings, as `EngineSettings.to_json` writes them."""
        _settings[:] = [EngineSettings.from_json(settings)]

    def lmtool_compile(self, constraint: str) -> dict[str, list[str]] | None:
        """The outcome, `warnings` or the parts of an `error`; None while it compiles: call again."""
        if len(_pending) > _MAX_PENDING:
            for text in [text for text, future in _pending.items() if future.done()]:
                del _pending[text]
        future = _pending.get(constraint)
        if future is None:
            future = _pending[constraint] = compile_constraint(constraint)
        if not future.done():
            return None
        del _pending[constraint]
        problem = future.exception()
        if problem is None:
            return {"warnings": list(future.result().warnings)}
        assert isinstance(problem, LmtoolError)
        return {"error": list(error_parts(problem))}
