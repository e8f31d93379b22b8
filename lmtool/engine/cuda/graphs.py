"""Decode steps as CUDA graphs: one captured pass for each of a few batch sizes, over tensors that stay in place.

A step of N rows runs the smallest captured batch that holds them; rows of padding have text length 0 and store nothing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from lmtool.engine.batch import Batch
from lmtool.engine.cuda.capture import CaptureStream, Replay
from lmtool.engine.cuda.paged_attention import PagedAttention
from lmtool.engine.cuda.step_rows import Place, Singles, StepRows, slot
from lmtool.engine.kv_cache import BLOCK_TOKENS

if TYPE_CHECKING:
    from lmtool.engine.cuda.attention_backends import AttentionBackend
    from lmtool.engine.kv_cache import PagedCache
    from lmtool.engine.model_runner import Forward

_logger = logging.getLogger(__name__)


class Epilogue(Protocol):
    """What is captured behind the logits of every graph, such as sampling."""

    def allocate(self, rows: int, vocabulary: int, device: torch.device) -> None:
        """Make the tensors that `enqueue` reads and writes, for batches of at most `rows` rows.

        Called once, before anything is captured. The tensors stay in place until the model is closed.
        """

    def enqueue(self, logits: Tensor) -> None:
        """Queue the work for the N rows of a captured batch, those of padding included, which may hold anything.

        logits: [N, V] float32, which must stay as they are; row i is the step's row i, in the order of its plan, for
        every graph. Runs while a graph is captured: reads the host's numbers from tensors on the device alone, waits
        for nothing, and takes the same path whatever they are.
        """


class DecodeGraphs:
    """The captured passes of one model, and the tensors that they read."""

    def __init__(
        self,
        forward: Forward,
        cache: PagedCache,
        backend: AttentionBackend,
        max_rows: int,
        context: int,
        epilogue: Epilogue | None = None,
    ) -> None:
        """max_rows: rows of the largest batch to capture. context: positions of the longest text."""
        self._forward = forward
        self._cache = cache
        self._backend = backend
        self._epilogue = epilogue
        self._sizes = batch_sizes(max_rows)
        self._graphs: dict[int, Replay] = {}
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
        self._order = torch.arange(rows, device=device)
        self._logits = torch.empty(0, 0, device=device)
        """[rows, V] float32: a graph of N rows writes the first N."""
        self._copied = torch.cuda.Event() if pinned else None

    @property
    def max_rows(self) -> int:
        """Rows of the largest captured batch; 0 before `capture`."""
        return max(self._graphs, default=0)

    @property
    def epilogue(self) -> Epilogue | None:
        """What the graphs run behind their logits; None where there is nothing, or it could not be captured."""
        return self._epilogue

    def capture(self) -> None:
        """Capture all batch sizes, the largest first, so that the others share its memory.

        Raises what the pass or CUDA raises. An epilogue that fails is left out, and the log says so.
        """
        self._tokens.zero_()
        self._tokens[2] = -1
        vocabulary = self._forward.logits(*self._step(1)).shape[1]
        self._logits = torch.zeros(self._sizes[-1], vocabulary, device=self._device)
        if self._epilogue is not None:
            try:
                self._epilogue.allocate(self._sizes[-1], vocabulary, self._device)
                self._capture_all()
            except Exception as problem:  # noqa: BLE001  # whatever it is, a step can do without
                _logger.warning("CUDA graphs end with the logits, and steps take longer: %s", problem)
                self._epilogue = None
                self._graphs.clear()
        if not self._graphs:
            self._capture_all()
        _logger.info("captured decode steps of %s rows", ", ".join(map(str, self._sizes)))

    def _capture_all(self) -> None:
        stream = CaptureStream(self._device)
        for rows in reversed(self._sizes):
            self._graphs[rows] = stream.capture(self._pass(rows))

    def run(self, rows: list[Place], ids: Tensor | None = None) -> Tensor:
        """Logits [N, V] float32 of N positions, at most `max_rows`, once the device is there.

        They may be changed in place, and are good until the next step is queued, which writes to the same memory.

        ids: [N] int64 on the device, in place of the rows' own.
        """
        size = next(size for size in self._sizes if size >= len(rows))
        self._fill(rows)
        if ids is not None:
            self._tokens[0, : len(rows)].copy_(ids)
        self._graphs[size]()
        return self._logits[: len(rows)]

    def replay(self, rows: int) -> None:
        """Repeat what the last step of this many rows, at most `max_rows`, had the device compute; for measurements."""
        self._graphs[next(size for size in self._sizes if size >= rows)]()

    def _pass(self, rows: int) -> Replay:
        logits = self._logits[:rows]

        def run() -> None:
            logits.copy_(self._forward.logits(*self._step(rows)))
            if self._epilogue is not None:
                self._epilogue.enqueue(logits)

        return run

    def _step(self, rows: int) -> tuple[Batch, PagedAttention]:
        """The arguments of a pass over the first `rows` rows."""
        ids, positions, slots, lengths = (own[:rows] for own in self._tokens)
        batch = Batch(
            input_ids=ids.unsqueeze(0),
            positions=positions.unsqueeze(0),
            slots=slots,
            groups=[],
            logit_rows=self._order[:rows],
            logits=rows,
            fresh_blocks=slots[:0],
        )
        step = StepRows(slots, Singles(self._table[:rows], lengths.int()), None)
        return batch, PagedAttention(self._cache, step, self._backend)

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


_WORKSPACE = 32 << 20
"""Bytes that cuBLAS takes for the stream of the captures, on Hopper; elsewhere less."""

_NODE_BYTES = 32 << 10
"""Memory of the device for one kernel of a graph, about; the driver does not say."""

_LAYER_NODES = 10
"""Kernels of a layer, about."""


def graph_bytes(max_rows: int, context: int, vocabulary: int, layers: int, token_bytes: int) -> int:
    """Bytes on the device that `DecodeGraphs` will need, an estimate from above.

    max_rows, context: as for `DecodeGraphs`. token_bytes: most bytes of activations that a pass holds at once for a
    token, without logits.
    """
    sizes = batch_sizes(max_rows)
    rows = sizes[-1]
    logits = rows * vocabulary * 4 * 2  # those that stay, and those of the pass that they are copied from
    table = rows * -(-context // BLOCK_TOKENS) * 4
    graphs = len(sizes) * layers * _LAYER_NODES * _NODE_BYTES
    return logits + table + rows * token_bytes + graphs + _WORKSPACE
