"""Samples in captured decode steps: behind their logits, in the same graph, by records sent before it is replayed.

The kernels are those of `sampling`, and so are the bits. A graph launches the same kernels at every step: a program
whose record samples nothing returns at once, and so do those of top-k, top-p and min-p for a row without.
"""

from __future__ import annotations

from operator import is_
from typing import TYPE_CHECKING

import numpy as np
import torch

from lmtool.inference.engine.cuda.kernels import sampling as kernels
from lmtool.inference.engine.cuda.sampling import (
    RECORD,
    DeviceRow,
    Part,
    counted,
    device_rows,
    has_cut,
    lists,
    most_cut_rows,
    random_numbers,
    write_records,
)
from lmtool.inference.engine.device_transfer import overwrite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from lmtool.inference.engine.sampling_row import Row


class GraphSampling:
    """The records of a captured step's rows, and what was sampled by them; the tensors stay in place."""

    def __init__(self, rows: int, vocabulary: int, device: torch.device) -> None:
        """rows: of the largest captured step."""
        self._vocabulary, self._device = vocabulary, device
        self._table = torch.zeros(rows, len(RECORD.names or ()), dtype=torch.int64, device=device)
        self._table[:, 0] = -1
        self._masks = torch.zeros(1, -(-vocabulary // 32), dtype=torch.int32, device=device)
        """None is named by a record."""
        tokens = torch.zeros(rows, dtype=torch.int64, device=device)
        self._samples = kernels.Samples(tokens, *torch.zeros(2, rows, 4, dtype=torch.int32, device=device))
        self._live = 0
        """Records, from the first on, that may not be idle."""
        self._states: list[DeviceRow | None] = []
        """Those whose tensors the records name."""
        self._records = np.zeros(0, RECORD)
        """Those of the step that was sent last."""
        self._rows: Sequence[Row] = ()
        """That step's, where the next one may be of the same ones; none where anything but random numbers changes."""
        self._draws = False
        """Whether any of them needs a random number."""

    def enqueue(self, logits: Tensor) -> None:
        """Queue what samples the N rows of a captured step. Captured.

        logits: [N, V] float32, which stay as they are.
        """
        rows, table = len(logits), self._table[: len(logits)]
        samples = self._first(rows)
        kernels.sample_rows(logits, table, self._masks, cuts=self._cuts(rows), samples=samples)
        kernels.count_tokens(table, samples.results)

    def covers(self, rows: Sequence[Row], size: int) -> bool:
        """Whether a captured step of `size` rows can sample all of these.

        Not those with a constraint, with processors or with other alternatives than the likeliest id, nor those that
        are scored; nor those of which ids must be taken back that were counted.
        """
        if self._repeats(rows):
            return True
        cuts = self._cuts(size)
        return all(_is_simple(row) and (cuts or not has_cut(row)) and _is_counted(row) for row in rows)

    def send(self, rows: Sequence[Row]) -> None:
        """Queue the copy of the records of a step's rows, which are covered; its graph must run next.

        A step of the same rows as the one before sends random numbers alone; where none are drawn, nothing.
        """
        count, records = len(rows), self._records
        if not self._repeats(rows):
            self._states = device_rows(rows, self._vocabulary, self._device)
            records = np.zeros(max(count, self._live), RECORD)
            records["row"] = -1
            write_records(records[:count], rows, list(range(count)), self._states)
            self._records, self._draws = records[:count], bool(records["random"].any())
            self._rows = () if any(row.penalises for row in rows) else rows
        elif self._draws:
            records["uniform"] = random_numbers(rows)
        else:
            return
        overwrite(self._table[: len(records)], records.view(np.int64).reshape(len(records), -1))
        self._live = count

    def rest(self) -> None:
        """Let the next graph sample nothing."""
        if self._live:
            self._table[: self._live, 0].fill_(-1)
            self._live, self._states, self._rows = 0, [], ()

    def result(self, rows: Sequence[Row]) -> Part:
        """What the graph that was queued last samples of these rows, which were sent for it.

        To be read, or copied, before the next step is queued, which writes to the same memory.
        """
        samples = self._first(len(rows))
        tokens, results = samples.tokens, samples.results
        if not results.is_cuda:  # no copy is made on the way to the host
            tokens, results = tokens.clone(), results.clone()
        counts = [] if self._repeats(rows) else counted(rows, self._states)
        return Part(list(range(len(rows))), tokens, results, [], None, counts)

    def _repeats(self, rows: Sequence[Row]) -> bool:
        """Whether these are the rows that were sent last, and only their positions are others."""
        return len(rows) == len(self._rows) and all(map(is_, rows, self._rows))

    def _first(self, rows: int) -> kernels.Samples:
        samples = self._samples
        return kernels.Samples(samples.tokens[:rows], samples.results[:rows], samples.shapes[:rows])

    def _cuts(self, size: int) -> bool:
        """Whether a captured step of so many rows can leave out tokens: that takes memory for each row."""
        return size <= most_cut_rows(self._vocabulary)


def _is_simple(row: Row) -> bool:
    return row.target is None and row.allowed is None and row.processors is None and not lists(row)


def _is_counted(row: Row) -> bool:
    """Whether the device has counted all ids before the row's, where its logits depend on them."""
    if not row.penalises:
        return True
    state = row.state
    if state is None:
        return False
    own = state.on_device
    if not isinstance(own, DeviceRow) or own.counts is None:  # nothing is counted yet: all that the host knows will be
        return len(state.tokens) >= row.position
    return own.counts.follows(state.tokens, row.position)
