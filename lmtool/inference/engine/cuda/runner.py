"""Runs steps on a GPU: CUDA graphs where one holds the step, else a plain pass, smaller steps where memory runs out."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from lmtool.core.types import SamplingParams
from lmtool.inference.engine.cuda.forward import PagedAttention
from lmtool.inference.engine.cuda.graphs import StepGraphs, batch_sizes
from lmtool.inference.engine.cuda.sampling import Part, sample_rows
from lmtool.inference.engine.cuda.step_rows import lay_out, lay_out_ahead, to_tensors
from lmtool.inference.engine.device import to_device
from lmtool.inference.engine.kv_cache import BLOCK_TOKENS, PagedCache
from lmtool.inference.engine.model_runner import ModelRunner
from lmtool.inference.engine.plan import Plan, Sequence, Span
from lmtool.inference.engine.sampling_row import Row
from lmtool.inference.engine.selfcheck import CHECK_BLOCKS, distance

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    from torch import Tensor

    from lmtool.inference.engine.cuda.attention_backends import AttentionBackend
    from lmtool.inference.engine.cuda.graphs import GraphSize
    from lmtool.inference.engine.cuda.sampling import GraphSampling

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CudaRunner(ModelRunner):
    """A `ModelRunner` over pages; its cache is a `PagedCache`."""

    backend: AttentionBackend
    deterministic: bool = False
    """True if a row must have the same bits in any batch."""
    graphs: StepGraphs | None = None
    """None where there are no CUDA graphs."""

    def prepared(self, max_streams: int, context: int, *, samples: bool = False) -> CudaRunner:
        """The runner with CUDA graphs for up to `max_streams` streams; without, where a model cannot be captured.

        context: positions of the longest text. samples: see `ModelRunner.prepared`. Nothing may be in the first
        `CHECK_BLOCKS` blocks of the cache yet.
        """
        captured = self._captured(max_streams, context, samples=samples)
        if captured is not None:
            return captured
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            _compile_all(self, max_streams)
        return self

    def _captured(self, max_streams: int, context: int, *, samples: bool) -> CudaRunner | None:
        """The runner with CUDA graphs that give what plain steps give; None, and the log says why, without them."""
        assert isinstance(self.cache, PagedCache)
        if reason := getattr(self.forward, "host_choices", None):
            _logger.warning("decode steps run without CUDA graphs, and slower: %s", reason)
            return None
        try:
            graphs = StepGraphs(self.forward, self.cache, self.backend, max_streams, context, samples=samples)
            graphs.capture()
            _discard_wrong(graphs, self)
            _check_sampling(graphs)
        except Exception as problem:  # noqa: BLE001  # memory, a kernel that does not compile, a library: steps can do without
            _logger.warning("steps run without CUDA graphs, and slower: %s", problem)
            return None
        return replace(self, graphs=graphs) if graphs.max_rows else None

    @property
    def max_ahead_rows(self) -> int:
        """See `ModelRunner.max_ahead_rows`. CUDA graphs alone: other steps keep the host as busy as the device."""
        return 0 if self.graphs is None else self.graphs.max_rows

    @property
    def samples_ahead(self) -> bool:
        """See `ModelRunner.samples_ahead`."""
        return self.graphs is not None and self.graphs.sampling is not None

    def sample_ahead(self, plan: Plan, ids: Tensor, rows: Many[Row]) -> Part | None:
        """See `AheadSampler.sample_ahead`."""
        assert self.graphs is not None
        size = self.graphs.sampling_size(rows)
        if size is None:
            return None
        self._clear(plan)
        return self.graphs.run_and_sample(lay_out_ahead(plan), rows, size, ids)

    def run_ahead(self, plan: Plan, ids: Tensor) -> Tensor:
        """See `ModelRunner.run_ahead`."""
        assert self.graphs is not None
        self._clear(plan)
        logits = self.graphs.run(lay_out_ahead(plan), ids)
        assert logits is not None, "more rows than `max_ahead_rows`"
        return logits

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
        layout = lay_out(plan)
        self._clear(plan)
        if self.graphs is not None and (logits := self.graphs.run(layout)) is not None:
            return logits
        assert isinstance(self.cache, PagedCache)
        batch, step = to_tensors(layout, self.device)
        attention = PagedAttention(self.cache, step, self.backend)
        return self.forward.logits(batch, attention)[: batch.logits].float()

    def _clear(self, plan: Plan) -> None:
        """Clear the blocks handed out for a step, where attention reads after a text's end."""
        if plan.fresh_blocks and not self.backend.own:
            self.cache.clear(to_device(plan.fresh_blocks, torch.int64, self.device))


def _discard_wrong(graphs: StepGraphs, plain: CudaRunner) -> None:
    """Run a small step in each captured batch, and discard those that do not give the logits of a plain pass."""
    texts = [Sequence(number, [number, 1, 2], 2, max_length=9, blocks=[number]) for number in (1, 2)]
    plain.run(Plan([Span(text, 0, 2) for text in texts]))
    known: dict[tuple[int, bool], Tensor] = {}
    for size in graphs.sizes:
        plan = Plan([Span(text, 2, 1) for text in texts[: size.singles]])
        if size.part_tokens:
            plan.spans.append(Span(Sequence(3, [3, 1, 2, 4], 4, max_length=9, blocks=[3]), 0, 4))
        kind = (len(plan.spans), bool(size.part_tokens))
        if kind not in known:
            known[kind] = plain.run(plan)
        ours = graphs.run(lay_out(plan), size=size)
        assert ours is not None
        error, allowed = _difference(ours, known[kind], plain.cache.dtype)
        if not error <= allowed:
            _logger.warning("a CUDA graph of %s is off by %.3g, where %.2g is allowed: not used", size, error, allowed)
            graphs.discard(size)


def _check_sampling(graphs: StepGraphs) -> None:
    """Sample a small step in each captured batch; where one does not give what the kernels give, none samples."""
    if graphs.sampling is None:
        return
    sizes = [size for size in graphs.sizes if not size.part_tokens]
    try:
        wrong = next((size for size in sizes if not _samples_right(graphs, graphs.sampling, size)), None)
        problem = None if wrong is None else f"a CUDA graph of {wrong} samples other ids than the kernels alone"
    except Exception as error:  # noqa: BLE001  # whatever it is, a step can do without
        problem = str(error)
    if problem is not None:
        _logger.warning("tokens are sampled behind CUDA graphs, and steps take longer: %s", problem)
        graphs.end_with_logits()


def _samples_right(graphs: StepGraphs, sampling: GraphSampling, size: GraphSize) -> bool:
    texts = [Sequence(number, [number, 1, 2], 2, max_length=9, blocks=[number]) for number in (1, 2)]
    texts = texts[: size.singles]
    layout = lay_out(Plan([Span(text, 2, 1) for text in texts]))
    for params in _CHECKED:
        rows = [Row(params, seed=number, position=3) for number, _ in enumerate(texts)]
        if not sampling.covers(rows, size.singles):  # a cut for which there is no memory
            continue
        ours = graphs.run_and_sample(layout, rows, size)
        (theirs,) = sample_rows(graphs.logits[: len(rows)], rows, list(range(len(rows))))
        if not torch.equal(ours.tokens, theirs.tokens):
            return False
    return True


_CHECKED = (SamplingParams(), SamplingParams(temperature=1.0), SamplingParams(temperature=1.0, top_p=0.9))


def _compile_all(runner: CudaRunner, max_streams: int) -> None:
    """Run plain steps of all numbers of rows for which kernels are compiled anew, so that no stream waits for that."""
    prompt = Sequence(0, [1] * 70, 70, max_length=90, blocks=list(range(2, CHECK_BLOCKS + 1)))
    for rows in batch_sizes(max_streams):
        texts = [Sequence(number, [1] * 3, 2, max_length=9, blocks=[1]) for number in range(1, rows + 1)]
        runner.run(Plan([Span(text, 2, 1) for text in texts]))
        runner.run(Plan([Span(prompt, 0, 70), *(Span(text, 2, 1) for text in texts)]))


def _difference(ours: Tensor, theirs: Tensor, dtype: torch.dtype) -> tuple[float, float]:
    """Distance of a graph's logits [R, V] from a plain pass's, and the tolerance. dtype: of the model.

    Both run the same kernels, but cuBLAS others for other numbers of rows. In half precision that is up to a fifth of
    the logits' deviation in random models, see `selfcheck`; what reads the wrong memory is off by 1.4 of it.
    """
    off = distance(ours, theirs)
    if dtype == torch.float32:
        return off.largest, 1e-4 * max(float(theirs.abs().max()), 1e-2)
    return off.rms, 0.3 * float(theirs.std())


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
