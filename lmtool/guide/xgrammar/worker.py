"""The program of a process that compiles with xgrammar; it may hang or crash, and is killed then.

It stands alone: nothing of this package is imported, and it is run by its path. On stdin come lines of JSON, the first
one the settings; on stdout goes one answer each: a line of JSON, and behind it as many bytes as its `bytes` says.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from typing import Any

WALKS, STEPS = 3, 24
"""How often, and how many tokens far, a compiled constraint is tried."""


class SlowError(Exception):
    """A constraint whose masks take too long."""


class EmptyError(Exception):
    """A constraint that no text matches."""


class Compiler:
    """Compiles for one vocabulary, and tries what it compiled."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """Import the library and read the vocabulary.

        settings: `vocabulary`, one character a byte, empty for an id without text; `eos`; `threads`; `step_seconds`
        that a mask may take, except for fewer than `slow_steps` of them.
        """
        import numpy as np
        import xgrammar

        self._np, self._xgrammar = np, xgrammar
        vocabulary = [token.encode("latin-1") for token in settings["vocabulary"]]
        self._eos = settings["eos"]
        info = xgrammar.TokenizerInfo(vocabulary, xgrammar.VocabType.RAW, stop_token_ids=self._eos)
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=settings["threads"], cache_enabled=False)
        self._mask = np.zeros((1, (len(vocabulary) + 31) // 32), np.int32)
        self._step_seconds, self._slow_steps = settings["step_seconds"], settings["slow_steps"]

    def compile(self, kind: str, text: str) -> bytes:
        """Return a constraint compiled, as text. Raises `SlowError`, `EmptyError`, or what the library raises."""
        if kind == "structural_tag":
            compiled = self._compiler.compile_structural_tag(text)
        else:
            compiled = self._compiler.compile_grammar(text)
        self._try(compiled)
        return str(compiled.serialize_json()).encode()

    def _try(self, compiled: Any) -> None:  # noqa: ANN401  # the library's own, which is untyped here
        """Follow it along random tokens, as a model without a mind would."""
        slow = 0
        for seed in range(WALKS):
            rng = random.Random(seed)  # noqa: S311  # which tokens are tried is no secret
            matcher = self._xgrammar.GrammarMatcher(compiled)
            for step in range(STEPS):
                began = time.perf_counter()
                matcher.fill_next_token_bitmask(self._mask, 0)
                slow += time.perf_counter() - began > self._step_seconds
                if slow >= self._slow_steps:
                    raise SlowError
                bits = self._np.unpackbits(self._mask[0].view(self._np.uint8), bitorder="little")
                bits[self._eos] = 0
                further = self._np.flatnonzero(bits)
                if not step and not len(further) and not matcher.is_completed():
                    raise EmptyError
                if not len(further) or not matcher.accept_token(int(further[rng.randrange(len(further))])):
                    break


def main() -> None:
    """Answer until stdin ends."""
    wire = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the library prints is no answer
    settings = json.loads(sys.stdin.readline())
    try:
        compiler = Compiler(settings)
    except Exception as problem:  # noqa: BLE001  # the server tells it
        _answer(wire, {"error": "start", "message": f"{type(problem).__name__}: {problem}"})
        return
    _step_back(settings["niceness"], settings["memory_bytes"])
    _answer(wire, {})
    for line in sys.stdin:
        asked = json.loads(line)
        _give_up_after(asked["seconds"])
        header, body = _compiled(compiler, asked["kind"], asked["text"])
        _give_up_after(0)
        _answer(wire, header, body)


def _compiled(compiler: Compiler, kind: str, text: str) -> tuple[dict[str, Any], bytes]:
    try:
        return {}, compiler.compile(kind, text)
    except SlowError:
        return {"error": "slow"}, b""
    except EmptyError:
        return {"error": "empty"}, b""
    except Exception as problem:  # noqa: BLE001  # whatever the library raises is the constraint's own fault
        return {"error": "refused", "message": str(problem)}, b""


def _answer(wire: Any, header: dict[str, Any], body: bytes = b"") -> None:  # noqa: ANN401  # a binary file
    wire.write(json.dumps({**header, "bytes": len(body)}).encode() + b"\n" + body)
    wire.flush()


def _give_up_after(seconds: float) -> None:
    """End this process then, even where the server that would kill it is gone and the library hangs; 0: never."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _step_back(niceness: int, memory_bytes: int) -> None:
    """Let others go before this process, and bound what it may take from now on; only Linux does both."""
    if sys.platform == "linux":
        import resource
        from pathlib import Path

        os.setpriority(os.PRIO_PROCESS, 0, max(niceness, os.getpriority(os.PRIO_PROCESS, 0)))
        held = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + memory_bytes, resource.RLIM_INFINITY))


if __name__ == "__main__":
    main()
