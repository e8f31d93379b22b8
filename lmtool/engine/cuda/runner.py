"""Runs steps on a GPU: CUDA graphs for decode, a plain pass otherwise, smaller steps where memory runs out.

Has run in Triton's interpreter only.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from lmtool.engine.cuda.graphs import DecodeGraphs
from lmtool.engine.cuda.paged_attention import PagedAttention
from lmtool.engine.cuda.step_rows import Place, build, single_rows
from lmtool.engine.device_transfer import to_device
from lmtool.engine.kv_cache import BLOCK_TOKENS, PagedCache
from lmtool.engine.model_runner import ModelRunner
from lmtool.engine.plan import Plan, Span
from lmtool.engine.sequence import Sequence

if TYPE_CHECKING:
    from torch import Tensor

    from lmtool.engine.cuda.attention_backends import AttentionBackend
    from lmtool.engine.cuda.graphs import Epilogue

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CudaRunner(ModelRunner):
    """A `ModelRunner` over pages; its cache is a `PagedCache`."""

    backend: AttentionBackend
    deterministic: bool = False
    """Whether a row must have the same bits in any batch."""
    graphs: DecodeGraphs | None = None
    """None where there are no CUDA graphs."""
    epilogue: Epilogue | None = field(default=None, kw_only=True)
    """What the graphs are to run behind their logits; whether they do is known from theirs."""

    def prepared(self, max_streams: int, context: int) -> CudaRunner:
        """The runner with CUDA graphs for up to `max_streams` streams; without, where a model cannot be captured.

        context: positions of the longest text.
        """
        captured = self._captured(max_streams, context)
        if captured is None and self.device.type == "cuda":
            torch.cuda.empty_cache()
        return captured or self

    def _captured(self, max_streams: int, context: int) -> CudaRunner | None:
        """The runner with CUDA graphs that give what plain steps give; None, and the log says why, without them."""
        assert isinstance(self.cache, PagedCache)
        if reason := getattr(self.forward, "host_choices", None):
            _logger.warning("decode steps run without CUDA graphs, and slower: %s", reason)
            return None
        try:
            graphs = DecodeGraphs(self.forward, self.cache, self.backend, max_streams, context, self.epilogue)
            graphs.capture()
            captured = replace(self, graphs=graphs)
            error, allowed = _difference(self, captured)
        except Exception as problem:  # noqa: BLE001  # memory, a kernel that does not compile, a library: steps can do without
            _logger.warning("decode steps run without CUDA graphs, and slower: %s", problem)
            return None
        if error <= allowed:
            return captured
        _logger.warning("CUDA graphs are off by %.3g, where %.2g is allowed: not used", error, allowed)
        return None

    @property
    def max_ahead_rows(self) -> int:
        """See `ModelRunner.max_ahead_rows`. CUDA graphs alone: other steps keep the host as busy as the device."""
        return 0 if self.graphs is None else self.graphs.max_rows

    def run_ahead(self, plan: Plan, ids: Tensor) -> Tensor:
        """See `ModelRunner.run_ahead`."""
        assert self.graphs is not None
        self._clear(plan)
        return self.graphs.run([Place(span.sequence, 0, span.start) for span in plan.spans], ids)

    def run(self, plan: Plan) -> Tensor:
        """See `ModelRunner.run`. A step that does not fit into memory is computed in smaller ones.

        The logits are good until the next step is queued: a CUDA graph writes its own to the same memory.

        Raises `torch.OutOfMemoryError` when even the smallest one does not fit.
        """
        try:
            return self._run(plan)
        except torch.OutOfMemoryError:
            halves = _halves(plan)
            if halves is None:
                raise
            _logger.warning("out of memory in a step of %d tokens; computing it in two", plan.tokens)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        logits = [part.clone() for part in map(self.run, halves) if len(part)]
        return torch.cat(logits) if logits else torch.empty(0, 0, device=self.device)

    def _run(self, plan: Plan) -> Tensor:
        rows = single_rows(plan)
        self._clear(plan)
        if rows and self.graphs is not None and len(rows) <= self.graphs.max_rows:
            return self.graphs.run(rows)
        assert isinstance(self.cache, PagedCache)
        batch, step = build(plan, self.device)
        attention = PagedAttention(self.cache, step, self.backend)
        return self.forward.logits(batch, attention)[: batch.logits].float()

    def _clear(self, plan: Plan) -> None:
        """Clear the blocks handed out for a step, where attention reads behind a text's end."""
        if plan.fresh_blocks and not self.backend.own:
            self.cache.clear(to_device(plan.fresh_blocks, torch.int64, self.device))


def _difference(plain: CudaRunner, captured: CudaRunner) -> tuple[float, float]:
    """How far the logits of a captured step of two texts are from those of a plain one, and the tolerance."""
    assert isinstance(plain.cache, PagedCache)
    texts = [Sequence(number, [number, 1, 2], 2, max_length=9, blocks=[number]) for number in (1, 2)]
    plain.run(Plan([Span(text, 0, 2) for text in texts]))
    step = Plan([Span(text, 2, 1) for text in texts])
    ours, theirs = captured.run(step), plain.run(step)
    relative = 1e-4 if plain.cache.dtype == torch.float32 else 4e-2
    error = (ours - theirs).abs().nan_to_num(nan=torch.inf).max()
    return float(error), relative * max(float(theirs.abs().max()), 1e-2)


def _halves(plan: Plan) -> tuple[Plan, Plan] | None:
    """A plan as two that are computed one after the other; None for one that cannot be cut.

    Blocks that must be cleared are cleared with the first half: the second one's are among them.
    """
    spans = plan.spans
    if len(spans) > 1:
        middle = len(spans) // 2
        return Plan(spans[:middle], plan.fresh_blocks), Plan(spans[middle:])
    span = spans[0]
    count = span.count // 2 // BLOCK_TOKENS * BLOCK_TOKENS
    if not count:
        return None
    first, second = Span(span.sequence, span.start, count), Span(span.sequence, span.start + count, span.count - count)
    return Plan([first], plan.fresh_blocks), Plan([second])
