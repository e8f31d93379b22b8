"""Fills the token masks of a step, and ends streams whose masks take too long."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
from llguidance import LLExecutor

from lmtool.core.errors import ConstraintError
from lmtool.inference.guide.llguidance import MatcherGuide, too_complex

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from lmtool.inference.guide.config import GuideConfig

_WATCHED_STEPS = 16
"""Steps after a slow one in which each row is timed by itself."""
_ROW_SECONDS = 0.0002
"""Time that a row may add to a step."""
_ALL = np.int32(-1)


class Masks:
    """Fills rows of bit masks for the guides of one model. See `interfaces.GuideCompiler.fill` for threads."""

    def __init__(self, vocab_size: int, eos_ids: Sequence[int], config: GuideConfig) -> None:
        self._words = (vocab_size + 31) // 32
        self._executor = LLExecutor(num_threads=config.fill_threads)
        self._config = config
        self._watched = 0
        self._eos_row = np.zeros(self._words, np.uint32)
        for eos in eos_ids:
            self._eos_row[eos // 32] |= np.uint32(1 << eos % 32)

    def _fill(self, rows: list[tuple[MatcherGuide, int]], mask: NDArray[np.int32]) -> None:
        matchers = [(guide.matcher, row) for guide, row in rows]
        self._executor.unsafe_compute_mask_ptr(matchers, mask.ctypes.data, mask.strides[0], len(mask))
        for guide, row in rows:
            guide.forbid_repeats(mask[row].view(np.uint32))

    def fill(self, rows: Sequence[tuple[MatcherGuide, int]], mask: NDArray[np.int32]) -> None:
        """Write which tokens may follow into each guide's row; see `interfaces.GuideCompiler.fill`."""
        self._check(mask)
        going = self._unfinished(rows, mask)
        if self._watched or len(going) == 1:
            self._watched = max(0, self._watched - 1)
            for entry in going:
                self._fill_one(entry, mask)
        elif going:
            started = time.perf_counter()
            self._fill(going, mask)
            if time.perf_counter() - started > self._config.late_seconds + _ROW_SECONDS * len(going):
                self._watched = _WATCHED_STEPS
        for guide, row in going:
            self._verify(guide, row, mask)

    def fill_drafts(self, rows: Sequence[tuple[MatcherGuide, int, Sequence[int]]], mask: NDArray[np.int32]) -> None:
        """Write what may follow each beginning of each draft; see `interfaces.GuideCompiler.fill_drafts`."""
        for _, row, draft in rows:
            mask[row : row + len(draft) + 1] = _ALL
        self.fill([(guide, row) for guide, row, _ in rows], mask)
        for guide, row, draft in rows:
            self._fill_draft(guide, row, draft[: guide.accepts(draft)], mask)

    def _fill_draft(self, guide: MatcherGuide, row: int, legal: Sequence[int], mask: NDArray[np.int32]) -> None:
        if not legal:
            return
        ahead = guide.fork()
        for at, token in enumerate(legal, start=1):
            ahead.advance(token)
            self.fill([(ahead, row + at)], mask)

    def _unfinished(
        self, rows: Sequence[tuple[MatcherGuide, int]], mask: NDArray[np.int32]
    ) -> list[tuple[MatcherGuide, int]]:
        """Allow eos only for guides that are at their end; return the others."""
        going = []
        for guide, row in rows:
            if guide.error() is not None or guide.ended():
                self._allow_eos(row, mask)
            else:
                going.append((guide, row))
        return going

    def _fill_one(self, entry: tuple[MatcherGuide, int], mask: NDArray[np.int32]) -> None:
        started = time.thread_time()  # not wall time: a background thread waits for others
        self._fill([entry], mask)
        guide, row = entry
        seconds = time.thread_time() - started
        guide.slow = seconds > self._config.late_seconds
        if seconds <= self._config.step_seconds:
            return
        guide.slow_steps += 1
        if guide.slow_steps >= self._config.slow_steps:
            limit = f"{self._config.step_seconds * 1000:g} ms"
            guide.fail(too_complex(f"the constraint took more than {limit} for each of {guide.slow_steps} tokens"))
            self._allow_eos(row, mask)

    def _verify(self, guide: MatcherGuide, row: int, mask: NDArray[np.int32]) -> None:
        if guide.check() is None and not mask[row].any():
            guide.fail(ConstraintError("no token of this model can go on from here within the constraint"))
        if guide.error() is not None:
            self._allow_eos(row, mask)

    def _allow_eos(self, row: int, mask: NDArray[np.int32]) -> None:
        mask[row] = self._eos_row.view(np.int32)

    def _check(self, mask: NDArray[np.int32]) -> None:
        assert mask.dtype == np.int32, "a mask has 32 tokens a word"
        assert mask.flags.c_contiguous, "the library writes whole rows one after the other"
        assert mask.shape[1] == self._words, "a mask is as wide as the vocabulary"
