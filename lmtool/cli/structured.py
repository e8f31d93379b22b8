"""Which library holds streams to constraints: by name, as `lmtool serve --structured-backend` takes it."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from lmtool.errors import ResourceError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.guide.compiler import MatcherCompiler

LLGUIDANCE = "llguidance"
XGRAMMAR = "xgrammar"
KNOWN = (LLGUIDANCE, XGRAMMAR)
INSTALL_XGRAMMAR = "pip install 'lmtool[xgrammar]'"
_XGRAMMAR_THREADS = 2
"""Constraints compiled at once: each needs a process that has the whole vocabulary in memory."""


def check(name: str) -> None:
    """Raise `UsageError` for an unknown name, and `ResourceError` where its package is missing."""
    if name not in KNOWN:
        raise UsageError(f"there is no structured backend {name!r}", f"known: {', '.join(KNOWN)}")
    if name == XGRAMMAR and importlib.util.find_spec(XGRAMMAR) is None:
        raise ResourceError(
            "--structured-backend xgrammar needs the package xgrammar", f"install it:  {INSTALL_XGRAMMAR}"
        )


def open_compiler(name: str, tokenizer_json: str, vocab_size: int, eos_ids: Sequence[int]) -> MatcherCompiler:
    """Return a compiler for one model; its library opens in a thread, and constraints wait for it.

    See `MatcherCompiler` for what is given.
    """
    from lmtool.guide.compiler import MatcherCompiler
    from lmtool.guide.config import GuideConfig

    if name == LLGUIDANCE:
        return MatcherCompiler(tokenizer_json, vocab_size, eos_ids)
    from lmtool.guide.xgrammar.templates import XgrammarTemplates

    config = GuideConfig(threads=_XGRAMMAR_THREADS)
    return MatcherCompiler(tokenizer_json, vocab_size, eos_ids, config, XgrammarTemplates)
