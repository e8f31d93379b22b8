"""Decode steps as CUDA graphs: one captured pass for each of a few batch sizes, over tensors that stay in place.

A step of N rows runs the smallest captured batch that holds them; rows of padding have text length 0 and store nothing.
On CPU, for tests, a "graph" is the pass itself; the capture has not run on a GPU yet.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from lmtool.engine.batch import Batch
from lmtool.engine.cuda.paged_attention import PagedAttention
from lmtool.engine.cuda.step_rows import Place, Singles, StepRows, slot
from lmtool.engine.kv_cache import BLOCK_TOKENS

if TYPE_CHECKING:
    from lmtool.engine.cuda.attention_backends import AttentionBackend
    from lmtool.engine.kv_cache import PagedCache
    from lmtool.engine.model_runner import Forward

_logger = logging.getLogger(__name__)

Replay: TypeAlias = Callable[[], None]

_WARM_RUNS = 2
"""Passes before the capture: kernels are compiled and libraries set up by then."""


@dataclass(frozen=True, slots=True)
class _Graph:
    replay: Replay
    logits: list[Tensor]
    """One [rows, V], filled by `replay`."""


class DecodeGraphs:
    """The captured passes of one model, and the tensors that they read."""

    def __init__(
        self, forward: Forward, cache: PagedCache, backend: AttentionBackend, max_rows: int, context: int
    ) -> None:
        """max_rows: rows of the largest batch to capture. context: positions of the longest text."""
        self._forward = forward
        self._cache = cache
        self._backend = backend
        self._sizes = batch_sizes(max_rows)
        self._graphs: dict[int, _Graph] = {}
        device = cache.device
        self._device = device
        pinned = device.type == "cuda"
        rows, width = self._sizes[-1], -(-context // BLOCK_TOKENS)
        self._tokens_host = torch.zeros(4, rows, dtype=torch.int64, pin_memory=pinned)
        self._tokens = torch.zeros(4, rows, dtype=torch.int64, device=device)
        """Ids, positions, slots and text lengths."""
        self._table_host = torch.zeros(rows, width, dtype=torch.int32, pin_memory=pinned)
        self._table = torch.zeros(rows, width, dtype=torch.int32, device=device)
        self._table_rows: list[list[int]] = [[] for _ in range(rows)]
        """Blocks in each row of the table."""
        self._copied = torch.cuda.Event() if pinned else None

    @property
    def max_rows(self) -> int:
        """Rows of the largest captured batch; 0 before `capture`."""
        return max(self._graphs, default=0)

    def capture(self) -> None:
        """Capture all batch sizes, the largest first, so that the others share its memory."""
        self._tokens.zero_()
        self._tokens[2] = -1
        pool = torch.cuda.graph_pool_handle() if self._device.type == "cuda" else None
        for rows in reversed(self._sizes):
            logits: list[Tensor] = []
            self._graphs[rows] = _Graph(_captured(self._pass(rows, logits), self._device, pool), logits)
        _logger.info("captured decode steps of %s rows", ", ".join(map(str, self._sizes)))

    def run(self, rows: list[Place], ids: Tensor | None = None) -> Tensor:
        """Logits [N, V] float32 of N positions, at most `max_rows`, once the device is there.

        ids: [N] int64 on the device, in place of the rows' own.
        """
        size = next(size for size in self._sizes if size >= len(rows))
        self._fill(rows)
        if ids is not None:
            self._tokens[0, : len(rows)].copy_(ids)
        graph = self._graphs[size]
        graph.replay()
        return graph.logits[0][: len(rows)].to(torch.float32, copy=True)

    def replay(self, rows: int) -> None:
        """Repeat what the last step of this many rows, at most `max_rows`, had the device compute; for measurements."""
        self._graphs[next(size for size in self._sizes if size >= rows)].replay()

    def _pass(self, rows: int, logits: list[Tensor]) -> Replay:
        ids, positions, slots, lengths = (own[:rows] for own in self._tokens)
        table = self._table[:rows]
        batch = Batch(
            input_ids=ids.unsqueeze(0),
            positions=positions.unsqueeze(0),
            slots=slots,
            groups=[],
            logit_rows=torch.arange(rows, device=self._device),
            logits=rows,
            fresh_blocks=slots[:0],
        )

        def run() -> None:
            step = StepRows(slots, Singles(table, lengths.int()), None)
            logits[:] = [self._forward.logits(batch, PagedAttention(self._cache, step, self._backend))]

        return run

    def _fill(self, rows: list[Place]) -> None:
        """Put a step's numbers where the captured passes read them."""
        if self._copied is not None:
            # Else the last step's copies might still read what is written now. They wait at most for the step before
            # that one, whose outcome was read before this one is begun: they are done, or about to be.
            self._copied.synchronize()
        host = self._tokens_host.numpy()
        host[:] = 0
        host[2] = -1
        host[:, : len(rows)] = np.array([(row.token, row.position, slot(row), row.position + 1) for row in rows]).T
        self._tokens.copy_(self._tokens_host, non_blocking=True)
        changed = [index for index, row in enumerate(rows) if self._table_rows[index] != row.sequence.blocks]
        table = self._table_host.numpy()
        for index in changed:
            blocks = rows[index].sequence.blocks
            table[index, : len(blocks)] = blocks
            self._table_rows[index] = list(blocks)
        if changed:
            own = slice(changed[0], changed[-1] + 1)
            self._table[own].copy_(self._table_host[own], non_blocking=True)
        if self._copied is not None:
            self._copied.record()


def batch_sizes(largest: int) -> list[int]:
    """1, 2, 4, then multiples of 8, up to the first that is at least `largest`."""
    sizes = (1, 2, 4, *range(8, largest + 8, 8))
    return [size for size, smaller in zip(sizes, (0, *sizes), strict=False) if smaller < largest]


def _captured(run: Replay, device: torch.device, pool: Any) -> Replay:  # noqa: ANN401  # torch's own handle
    """Replays the kernels of `run` without its Python; `run` itself on CPU."""
    if device.type != "cuda":
        run()
        return run
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(_WARM_RUNS):
            run()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
        run()
    return graph.replay
