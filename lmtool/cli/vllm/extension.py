"""Compiles constraints in vLLM's engine process, off its thread; mixed into vLLM's own worker, which answers calls."""

from __future__ import annotations

import json
from concurrent.futures import Future
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from lmtool.cli.vllm.scratch import KEY, settings_of
from lmtool.cli.vllm.told import parts_of
from lmtool.constraint import constraint_from
from lmtool.errors import ConstraintError, LmtoolError

if TYPE_CHECKING:
    from lmtool.guide.compiler import MatcherCompiler
    from lmtool.interfaces import Guide

_MOST_PENDING = 1024
_pending: dict[str, Future[Guide]] = {}


@lru_cache(maxsize=1)
def compiler(folder: str) -> MatcherCompiler | None:
    """The one compiler of this process; None for a model without a tokenizer. folder: the worker's scratch."""
    from lmtool.guide.compiler import MatcherCompiler

    settings = settings_of(folder)
    if settings.tokenizer is None:
        return None
    return MatcherCompiler(settings.tokenizer, settings.vocab_size, settings.eos_ids)


def begin(folder: str, constraint: str) -> Future[Guide]:
    """Begin to compile what is written as JSON; what was compiled lately is done at once."""
    guides = compiler(folder)
    if guides is None:
        failed: Future[Guide] = Future()
        failed.set_exception(ConstraintError("a model without a tokenizer cannot be held to a constraint"))
        return failed
    return guides.compile(constraint_from(json.loads(constraint)))


class GuideExtension:
    """Methods that vLLM's worker gets beside its own; none waits for anything."""

    vllm_config: Any

    def lmtool_compile(self, constraint: str) -> dict[str, list[str]] | None:
        """How compiling went: `warnings`, or the parts of an `error`; None while it goes on: ask again."""
        if len(_pending) > _MOST_PENDING:
            for text in [text for text, future in _pending.items() if future.done()]:
                del _pending[text]
        future = _pending.get(constraint)
        if future is None:
            future = _pending[constraint] = begin(self.vllm_config.additional_config[KEY], constraint)
        if not future.done():
            return None
        del _pending[constraint]
        problem = future.exception()
        if problem is None:
            return {"warnings": list(future.result().warnings)}
        assert isinstance(problem, LmtoolError)
        return {"error": list(parts_of(problem))}
