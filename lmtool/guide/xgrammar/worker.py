"""What compiles with xgrammar, in a process that may hang or crash, and is killed then."""

from __future__ import annotations

import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmtool.errors import ResourceError

if TYPE_CHECKING:
    from collections.abc import Sequence

WALKS, STEPS = 3, 24
"""How often, and how many tokens far, a compiled constraint is tried."""


class SlowError(Exception):
    """A constraint whose masks take too long."""


class EmptyError(Exception):
    """A constraint that no text matches."""


class RefusedError(Exception):
    """A constraint that the library does not take, in its words."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a process is prepared for."""

    vocabulary: Sequence[bytes]
    """Bytes of each id, none for an id without text."""
    eos: Sequence[int]
    threads: int
    step_seconds: float
    """What a mask may take, except for fewer than `slow_steps` of them."""
    slow_steps: int
    memory_bytes: int
    """What the process may take beyond the vocabulary; only Linux bounds it."""


class _Compiler:
    """Compiles for one vocabulary, and tries what it compiled."""

    def __init__(self, settings: Settings) -> None:
        import numpy as np
        import xgrammar

        self._np, self._xgrammar = np, xgrammar
        self._settings = settings
        stops = list(settings.eos)
        info = xgrammar.TokenizerInfo(list(settings.vocabulary), xgrammar.VocabType.RAW, stop_token_ids=stops)
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=settings.threads, cache_enabled=False)
        self._mask = np.zeros((1, (len(settings.vocabulary) + 31) // 32), np.int32)

    def compile(self, kind: str, text: str) -> str:
        if kind == "structural_tag":
            compiled = self._compiler.compile_structural_tag(text)
        else:
            compiled = self._compiler.compile_grammar(text)
        self._try(compiled)
        return str(compiled.serialize_json())

    def _try(self, compiled: Any) -> None:  # noqa: ANN401  # the library's own, which is untyped here
        """Follow it along random tokens, as a model without a mind would."""
        slow = 0
        for seed in range(WALKS):
            rng = random.Random(seed)  # noqa: S311  # which tokens are tried is no secret
            matcher = self._xgrammar.GrammarMatcher(compiled)
            for step in range(STEPS):
                began = time.perf_counter()
                matcher.fill_next_token_bitmask(self._mask, 0)
                slow += time.perf_counter() - began > self._settings.step_seconds
                if slow >= self._settings.slow_steps:
                    raise SlowError
                bits = self._np.unpackbits(self._mask[0].view(self._np.uint8), bitorder="little")
                bits[list(self._settings.eos)] = 0
                further = self._np.flatnonzero(bits)
                if not step and not len(further) and not matcher.is_completed():
                    raise EmptyError
                if not len(further) or not matcher.accept_token(int(further[rng.randrange(len(further))])):
                    break


_compilers: list[_Compiler] = []
"""The one of this process, once it is prepared."""


def prepare(settings: Settings) -> None:
    """Import the library and read the vocabulary, which takes seconds. Raises `ResourceError`."""
    try:
        _compilers[:] = [_Compiler(settings)]
    except Exception as problem:  # noqa: BLE001  # the server tells it
        raise ResourceError(
            f"the process that compiles constraints cannot start: {type(problem).__name__}: {problem}",
            "check the installation, or serve with --structured-backend llguidance",
        ) from None
    _bound(settings.memory_bytes)


def compile_constraint(kind: str, text: str) -> str:
    """Return a constraint compiled, as text. Raises `SlowError`, `EmptyError` or `RefusedError`."""
    [compiler] = _compilers
    try:
        return compiler.compile(kind, text)
    except (SlowError, EmptyError):
        raise
    except Exception as problem:  # noqa: BLE001  # whatever the library raises is the constraint's own fault
        raise RefusedError(str(problem)) from None


def _bound(memory_bytes: int) -> None:
    if sys.platform == "linux":
        import resource

        held = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + memory_bytes, resource.RLIM_INFINITY))
