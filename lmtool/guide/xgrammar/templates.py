"""Constraints compiled by xgrammar in processes that can be killed, and read back here."""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from lmtool.errors import ConstraintError, ResourceError, ServerError
from lmtool.guide.grammar import noun
from lmtool.guide.held_guide import HeldGuide, too_complex
from lmtool.guide.templates import read_tokenizer
from lmtool.guide.unique_names import NameTokens
from lmtool.guide.xgrammar import worker
from lmtool.guide.xgrammar.guide import XgrammarGuide
from lmtool.guide.xgrammar.sources import source
from lmtool.guide.xgrammar.worker import EmptyError, RefusedError, SlowError
from lmtool.subprocesses.process import CrashError, Process, TimeOverError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from llguidance import LLTokenizer
    from numpy.typing import NDArray

    from lmtool.guide.config import GuideConfig
    from lmtool.guide.unique_names import UniqueNames
    from lmtool.types import Constraint

INSTALL = "pip install 'lmtool[xgrammar]'"
MEMORY_BYTES = 4 * 2**30
"""What one constraint may take in the process that compiles it."""
MAX_COMPILED_CHARACTERS = 64 * 2**20
"""Longest text of a compiled constraint that is read back: nothing bounds the time of that but its length."""


@dataclass(frozen=True, slots=True)
class XgrammarTemplate:
    """A `library.Template` of xgrammar's."""

    compiled: Any
    """A `CompiledGrammar`."""
    warnings: tuple[str, ...]
    size: int
    """Estimated bytes in memory."""
    vocab_size: int
    eos: frozenset[int]
    names: UniqueNames | None = None
    """None where no name can come twice."""

    def guide(self) -> XgrammarGuide:
        """Return a fresh guide at the constraint's start."""
        import xgrammar

        names = None if self.names is None else self.names.copy()
        return XgrammarGuide(xgrammar.GrammarMatcher(self.compiled), self.vocab_size, self.eos, self.warnings, names)


class XgrammarTemplates:
    """A `library.Library` over xgrammar; each thread that compiles has a process of its own."""

    def __init__(self, tokenizer_json: str, vocab_size: int, eos_ids: Sequence[int], config: GuideConfig) -> None:
        """Read the tokenizer and start the processes, which takes seconds. Raises `ResourceError` where that fails.

        config: its `threads` are the most that may ever call `make`.
        """
        try:
            import xgrammar
        except ImportError as error:
            raise ResourceError(f"xgrammar cannot be imported: {error}", f"install it:  {INSTALL}") from error
        tokenizer = read_tokenizer(tokenizer_json, vocab_size, eos_ids)
        vocabulary = _vocabulary(tokenizer, vocab_size, eos_ids)
        self._name_tokens = NameTokens(tokenizer, vocab_size)
        self._vocab_size = vocab_size
        self._eos = frozenset(eos_ids)
        self._config = config
        settings = worker.Settings(
            vocabulary,
            tuple(eos_ids),
            threads=max(1, (os.cpu_count() or 1) // 2),
            step_seconds=config.step_seconds,
            slow_steps=config.slow_steps,
            memory_bytes=MEMORY_BYTES,
        )
        self._info = xgrammar.TokenizerInfo(vocabulary, xgrammar.VocabType.RAW, stop_token_ids=list(eos_ids))
        self._deserialize = xgrammar.CompiledGrammar.deserialize_json
        self._batch = xgrammar.BatchGrammarMatcher(max_threads=config.fill_threads)
        self._mine = threading.local()
        self._processes = [Process(partial(worker.prepare, settings)) for _ in range(config.threads)]
        self._free = list(self._processes)
        for process in self._processes:
            process.start()
        for process in self._processes:
            process.ready()

    def ready(self) -> None:
        """Wait until this thread's process can be asked."""
        self._process().ready()

    def make(self, constraint: Constraint) -> XgrammarTemplate:
        """Compile a constraint in this thread's process; call `ready` before. Raises `ConstraintError`."""
        written = source(constraint)
        limit = self._config.deadline
        try:
            text = self._process().call(limit, worker.compile_constraint, written.kind, written.text)
        except TimeOverError:
            raise too_complex(f"compiling the constraint takes more than {limit:g} s") from None
        except CrashError as problem:
            raise too_complex(f"xgrammar cannot compile the constraint: {problem}") from None
        except EmptyError:
            what = noun(constraint)
            raise ConstraintError(f"no text matches the {what}", "look for parts that exclude each other") from None
        except SlowError:
            step, steps = self._config.step_seconds * 1000, self._config.slow_steps
            raise too_complex(f"the constraint took more than {step:g} ms for each of {steps} tokens") from None
        except RefusedError as problem:
            raise _refusal(constraint, str(problem)) from None
        if len(text) > MAX_COMPILED_CHARACTERS:
            raise too_complex(
                f"the compiled constraint has {len(text)} characters; expected at most {MAX_COMPILED_CHARACTERS}"
            )
        compiled = self._deserialize(text, self._info)
        size = int(compiled.memory_size_bytes)
        names = self._name_tokens.unique(written.names, written.markers)
        return XgrammarTemplate(compiled, written.warnings, size, self._vocab_size, self._eos, names)

    def compute(self, rows: list[tuple[HeldGuide, int]], mask: NDArray[np.int32]) -> None:
        """Fill masks, see `library.Library.compute`."""
        open_rows: list[tuple[XgrammarGuide, int]] = []
        for guide, row in rows:
            assert isinstance(guide, XgrammarGuide), "guides come of this library"
            if guide.known is not None:
                mask[row] = guide.known
            else:
                open_rows.append((guide, row))
        if not open_rows:
            return
        matchers, places = [guide.matcher for guide, _ in open_rows], [row for _, row in open_rows]
        try:
            if len(open_rows) == 1:  # several threads may be here
                matchers[0].fill_next_token_bitmask(mask, places[0])
                return
            self._batch.batch_fill_next_token_bitmask(matchers, mask, places)
        except (RuntimeError, ValueError) as problem:
            for guide, _ in open_rows:
                guide.fail(ServerError(f"the constraint's mask could not be filled: {str(problem)[:200]}"))

    def close(self) -> None:
        """Kill the processes."""
        for process in self._processes:
            process.close()

    def _process(self) -> Process:
        """The process of this thread: there is one for each."""
        if not hasattr(self._mine, "process"):
            self._mine.process = self._free.pop()
        process: Process = self._mine.process
        return process


def _vocabulary(tokenizer: LLTokenizer, vocab_size: int, eos_ids: Sequence[int]) -> list[bytes]:
    """The bytes of each id, as llguidance reads them; none for ids that no text has."""
    silent = {*eos_ids, *(token for token in range(vocab_size) if tokenizer.is_special_token(token))}
    return [
        b"" if token in silent or token >= tokenizer.vocab_size else bytes(tokenizer.decode_bytes([token]))
        for token in range(vocab_size)
    ]


def _refusal(constraint: Constraint, told: str) -> ConstraintError:
    if "bad_alloc" in told:  # the memory of its process is bounded
        return too_complex(f"compiling the {noun(constraint)} takes too much memory")
    message = re.sub(r"\[[\d:]+\] \S+: ", "", told).strip()
    return ConstraintError(f"the {noun(constraint)} cannot be held by xgrammar: {message[:300]}")
