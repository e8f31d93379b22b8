"""Steps as CUDA graphs: one captured pass for each of a few batch sizes, over tensors that stay in place.

Those of decode steps alone sample behind their logits, see `GraphSampling`. A step runs the smallest captured batch
that holds it: one of decode steps alone, or one that has room for parts of prompts too. Rows of padding have text
length 0, store nothing and sample nothing, tiles of padding have no queries.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lmtool.inference.engine.cuda.capture import CaptureStream, Replay
from lmtool.inference.engine.cuda.forward import PagedAttention
from lmtool.inference.engine.cuda.graph_rows import GraphRows, GraphSize
from lmtool.inference.engine.cuda.sampling import GraphSampling, Part, sampling_bytes
from lmtool.inference.engine.cuda.step_rows import QUERY_TILE, Parts, Singles, StepRows
from lmtool.inference.engine.kv_cache import BLOCK_TOKENS
from lmtool.inference.engine.model_runner import Batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.inference.engine.cuda.attention_backends import AttentionBackend
    from lmtool.inference.engine.cuda.step_rows import Layout
    from lmtool.inference.engine.kv_cache import PagedCache
    from lmtool.inference.engine.model_runner import Forward
    from lmtool.inference.engine.sampling_row import Row

_logger = logging.getLogger(__name__)

_PART_TOKENS = (64, 128, 256, 512, 1024, 2048)
"""Rows of parts of prompts in captured batches, multiples of `QUERY_TILE`: up to those of a step on a GPU."""

_PART_SINGLES = (8, 32, 128, 512)
"""Rows of single queries beside them, below those of the largest batch."""

_MOST_PARTS = 16
"""Parts of prompts in one captured batch."""

_MIXED_SECONDS = 15.0
"""How long the capture of batches with parts of prompts may take: what is not captured by then runs as a plain pass."""

_SPARE_MEMORY = 0.05
"""Share of the device's memory below which no more of them are captured."""

_IDLE_TEXTS = 32
"""Texts whose pages stay on the device beyond those of the largest step."""


class StepGraphs:
    """The captured passes of one model, and the tensors that they read."""

    def __init__(
        self,
        forward: Forward,
        cache: PagedCache,
        backend: AttentionBackend,
        max_rows: int,
        context: int,
        *,
        samples: bool = False,
    ) -> None:
        """max_rows: rows of the largest decode step to capture. context: positions of the longest text.

        samples: whether decode steps are to sample, too.
        """
        self._forward = forward
        self._cache = cache
        self._backend = backend
        self._samples = samples
        self._sampling: GraphSampling | None = None
        self._ended: GraphSampling | None = None
        """One that samples no more: the captured kernels still read its records."""
        self._decode = decode_sizes(max_rows)
        self._mixed = mixed_sizes(max_rows) if backend.prefill_name == "Triton" else []  # others plan on the host
        sizes = [*self._decode, *self._mixed]
        texts = max(size.singles for size in sizes) + _MOST_PARTS + _IDLE_TEXTS
        self._rows = GraphRows(sizes, texts, context, cache.device)
        self._logits = torch.empty(0, 0, device=cache.device)
        """[rows, V] float32: a graph of N rows of logits writes the first N."""
        self._graphs: dict[GraphSize, Replay] = {}
        self._stream: CaptureStream | None = None
        self.max_rows = 0
        """Rows of the largest captured decode step; 0 before `capture`."""

    @property
    def sizes(self) -> list[GraphSize]:
        """The captured batches, smaller ones first, those of decode steps alone before the others."""
        return [size for size in (*self._decode, *self._mixed) if size in self._graphs]

    @property
    def sampling(self) -> GraphSampling | None:
        """What decode steps sample by; None where they end with their logits."""
        return self._sampling

    def capture(self) -> None:
        """Capture all batches, the larger ones first, so that the others share their memory.

        Raises what the pass or CUDA raises at those of decode steps alone; what fails at others is left out, and so is
        the sampling where that fails, and the log says so.
        """
        vocabulary = self._forward.logits(*self._step(self._decode[0])).shape[1]
        rows = max(size.logits for size in (*self._decode, *self._mixed))
        self._logits = torch.zeros(rows, vocabulary, device=self._cache.device)
        if self._samples:
            try:
                self._sampling = GraphSampling(self._decode[-1].logits, vocabulary, self._cache.device)
                self._capture_all()
            except Exception as problem:  # noqa: BLE001  # whatever it is, a step can do without
                _logger.warning("CUDA graphs end with the logits, and steps take longer: %s", problem)
                self._sampling = None
                self._graphs.clear()
        if not self._graphs:
            self._capture_all()
        self.max_rows = self._decode[-1].singles
        _logger.info(
            "captured decode steps of %s rows, and %d sizes of steps with parts of prompts",
            ", ".join(str(size.singles) for size in self._decode),
            len(self._graphs) - len(self._decode),
        )

    @property
    def logits(self) -> Tensor:
        """[rows, V] float32, those of the step that was queued last come first."""
        return self._logits

    def end_with_logits(self) -> None:
        """Let the captured steps sample nothing any more."""
        if self._sampling is not None:
            self._sampling.rest()
            self._ended, self._sampling = self._sampling, None

    def discard(self, size: GraphSize) -> None:
        """Use this captured batch no more."""
        del self._graphs[size]
        self.max_rows = max((size.singles for size in self._decode if size in self._graphs), default=0)

    def run(self, layout: Layout, ids: Tensor | None = None, size: GraphSize | None = None) -> Tensor | None:
        """Logits [R, V] float32 of a step once the device is there; None where no captured batch holds it.

        They may be changed in place, and are good until the next step is queued, which writes to the same memory.

        ids: [T] int64 on the device, in place of the layout's own. size: of the batch to use; None for the smallest.
        """
        size = size or self._fitting(layout)
        if size is None:
            return None
        if self._sampling is not None:
            self._sampling.rest()
        self._queue(layout, ids, size)
        return self._logits[: len(layout.logit_rows)]

    def sampling_size(self, rows: Sequence[Row]) -> GraphSize | None:
        """The captured decode step that samples these rows, see `GraphSampling.covers`; None where none does."""
        size = self._decode_size(len(rows))
        if self._sampling is None or size is None or not self._sampling.covers(rows, size.singles):
            return None
        return size

    def run_and_sample(self, layout: Layout, rows: Sequence[Row], size: GraphSize, ids: Tensor | None = None) -> Part:
        """What a decode step samples, see `GraphSampling.result`.

        rows: one for each of the layout's, in order. size: of a batch that samples these. ids: as for `run`.
        """
        assert self._sampling is not None
        self._sampling.send(rows)
        self._queue(layout, ids, size)
        return self._sampling.result(rows)

    def _queue(self, layout: Layout, ids: Tensor | None, size: GraphSize) -> None:
        try:
            self._rows.send(layout, size, ids)
            self._graphs[size]()
        except BaseException:
            self._rows.forget()
            raise
        self._rows.follow(size)

    def replay(self, rows: int) -> None:
        """Repeat the last step, which was a decode step of this many rows, at most `max_rows`; for measurements."""
        size = self._decode_size(rows)
        assert size is not None
        if self._sampling is not None:
            self._sampling.rest()  # else it would count its ids again
        self._rows.rewind(size)
        self._graphs[size]()
        self._rows.follow(size)

    def _decode_size(self, rows: int) -> GraphSize | None:
        return next((size for size in self._decode if size.singles >= rows and size in self._graphs), None)

    def _fitting(self, layout: Layout) -> GraphSize | None:
        singles = len(layout.singles)
        if layout.decodes:
            return self._decode_size(singles)
        part_tokens, logits = len(layout.positions) - singles, len(layout.logit_rows)
        holding = (
            size
            for size in self._mixed
            if size.singles >= singles
            and size.part_tokens >= part_tokens
            and size.logits >= logits
            and size in self._graphs
        )
        return next(holding, None) if len(layout.parts) <= _MOST_PARTS else None

    def _capture_all(self) -> None:
        stream = self._stream = CaptureStream(self._cache.device)
        for size in reversed(self._decode):
            self._graphs[size] = stream.capture(self._pass(size))
        stream.new_pool()
        deadline = time.monotonic() + _MIXED_SECONDS
        for size in reversed(self._mixed):
            if time.monotonic() > deadline or _scarce(self._cache.device):
                _logger.info("no time or memory to capture more steps with parts of prompts")
                break
            try:
                self._graphs[size] = stream.capture(self._pass(size))
            except torch.OutOfMemoryError:
                _logger.info("no memory to capture steps with %d rows of prompts", size.part_tokens)
            except Exception as problem:  # noqa: BLE001  # a plain pass does as well
                _logger.warning("steps with parts of prompts run without CUDA graphs, and slower: %s", problem)
                break

    def _pass(self, size: GraphSize) -> Replay:
        logits = self._logits[: size.logits]

        def run() -> None:
            logits.copy_(self._forward.logits(*self._step(size)))
            if self._sampling is not None and not size.part_tokens:
                self._sampling.enqueue(logits)

        return run

    def _step(self, size: GraphSize) -> tuple[Batch, PagedAttention]:
        """Queue what fills the rows of a batch; the arguments of a pass over them."""
        rows = self._rows
        rows.enqueue(size)
        slots = rows.slots[: size.tokens]
        batch = Batch(
            input_ids=rows.input_ids[: size.tokens].unsqueeze(0),
            positions=rows.positions[: size.tokens].unsqueeze(0),
            slots=slots,
            groups=[],
            logit_rows=rows.logit_rows(size),
            logits=size.logits,
            fresh_blocks=slots[:0],
        )
        singles = Singles(rows.pages[: size.singles], rows.text_lengths[: size.singles])
        parts = None
        if size.part_tokens:
            none = rows.text_lengths[:0]  # our own kernel has all it needs in the tiles
            parts = Parts(size.singles, rows.table, none, none, size.part_tokens, rows.tiles(size), padded=True)
        return batch, PagedAttention(self._cache, StepRows(slots, singles, parts), self._backend)


def _scarce(device: torch.device) -> bool:
    """Whether little of a GPU's memory is left."""
    if device.type != "cuda":
        return False
    free, total = torch.cuda.mem_get_info(device)
    return free < _SPARE_MEMORY * total


def batch_sizes(largest: int) -> list[int]:
    """1, 2, 4, then multiples of 8, up to the first that is at least `largest`."""
    sizes = (1, 2, 4, *range(8, largest + 8, 8))
    return [size for size, smaller in zip(sizes, (0, *sizes), strict=False) if smaller < largest]


def decode_sizes(max_rows: int) -> list[GraphSize]:
    """The batches of decode steps alone, smaller ones first."""
    return [GraphSize(rows, logits=rows) for rows in batch_sizes(max_rows)]


def mixed_sizes(max_rows: int) -> list[GraphSize]:
    """The batches with parts of prompts, smaller ones first. max_rows: single queries of the largest."""
    largest = batch_sizes(max_rows)[-1]
    singles = [*(rows for rows in _PART_SINGLES if rows < largest), largest]
    return [
        GraphSize(rows, tokens, tokens // QUERY_TILE + _MOST_PARTS, rows + _MOST_PARTS)
        for tokens in _PART_TOKENS
        for rows in singles
    ]


_WORKSPACE = 32 << 20
"""Bytes that cuBLAS takes for the stream of the captures, on Hopper; elsewhere less."""

_NODE_BYTES = 32 << 10
"""Memory of the device for one kernel of a graph, about; the driver does not say."""

_LAYER_NODES = 10
"""Kernels of a layer, about."""


def graph_bytes(max_rows: int, context: int, vocabulary: int, layers: int, token_bytes: int) -> int:
    """Bytes on the device that `StepGraphs` will need, an estimate from above.

    max_rows, context: as for `StepGraphs`. token_bytes: most bytes of activations that a pass holds at once for a
    token, without logits.
    """
    decode, mixed = decode_sizes(max_rows), mixed_sizes(max_rows)
    logits = max(size.logits for size in mixed) * vocabulary * 4 * 3  # what stays, and in each pool those of a pass
    texts = 2 * decode[-1].singles + _MOST_PARTS + _IDLE_TEXTS
    tables = texts * -(-context // BLOCK_TOKENS) * 4
    tokens = decode[-1].tokens + max(size.tokens for size in mixed)
    graphs = (len(decode) + len(mixed)) * layers * _LAYER_NODES * _NODE_BYTES
    sampling = sampling_bytes(decode[-1].singles, vocabulary)
    return logits + tables + tokens * token_bytes + graphs + sampling + _WORKSPACE
