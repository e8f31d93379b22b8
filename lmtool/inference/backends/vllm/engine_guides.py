"""Constraints inside vLLM's engine process: compiled off its thread, applied to the logits of each batch row."""

from __future__ import annotations

import json
import math
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from lmtool.core.constraint import constraint_from
from lmtool.core.errors import ConstraintError, LmtoolError, ServerError
from lmtool.core.reasoning import ThoughtMarks
from lmtool.inference.backends.vllm.shared_directory import MARKS, EngineSettings, StepReport, error_parts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from lmtool.core.interfaces import Guide, GuideCompiler
    from lmtool.core.logits_processors import Processors
    from lmtool.inference.backends.vllm.shared_directory import StepSender
    from lmtool.inference.guide.compiler import MatcherCompiler


_MAX_PENDING = 1024
_pending: dict[str, Future[Guide]] = {}
_settings: list[EngineSettings] = []
"""Settings of this process's model; empty until the worker has sent them."""


def engine_settings() -> EngineSettings:
    """Settings that the worker sent before the first request."""
    return _settings[0]


@lru_cache(maxsize=1)
def guide_compiler() -> MatcherCompiler | None:
    """Compiler of this process; None for a model without a tokenizer."""
    from lmtool.inference.guide.compiler import MatcherCompiler

    settings = engine_settings()
    if settings.tokenizer is None:
        return None
    return MatcherCompiler(settings.tokenizer, settings.vocab_size, settings.eos_ids)


def compile_constraint(constraint: str) -> Future[Guide]:
    """Start compiling a constraint given as JSON; a cached one is done at once."""
    compiler = guide_compiler()
    if compiler is None:
        failure: Future[Guide] = Future()
        failure.set_exception(ConstraintError("structured output needs a tokenizer, which this model lacks"))
        return failure
    members = json.loads(constraint)
    marks = members.pop(MARKS, None)
    return compiler.compile(
        constraint_from(members) if members else None, None if marks is None else msgspec.convert(marks, ThoughtMarks)
    )


class GuideExtension:
    """Methods mixed into vLLM's worker on each machine; none blocks."""

    def lmtool_describe(self, settings: str) -> None:
        """Store the model's settings, in the form of `EngineSettings.to_json`."""
        _settings[:] = [EngineSettings.from_json(settings)]

    def lmtool_compile(self, constraint: str) -> dict[str, list[str]] | None:
        """Result with `warnings` or the parts of an `error`; None while compiling: call again."""
        if len(_pending) > _MAX_PENDING:
            for text in [text for text, future in _pending.items() if future.done()]:
                del _pending[text]
        future = _pending.get(constraint)
        if future is None:
            future = _pending[constraint] = compile_constraint(constraint)
        if not future.done():
            return None
        del _pending[constraint]
        problem = future.exception()
        if problem is None:
            return {"warnings": list(future.result().warnings)}
        assert isinstance(problem, LmtoolError)
        return {"error": list(error_parts(problem))}


_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_MASK_TABLE = np.where(_BITS == 1, np.float32(0), np.float32(-np.inf))
"""[256, 8] float32: addends for eight logits by mask byte, lowest bit first."""


@dataclass(eq=False, slots=True)
class RowState:
    """One stream with a constraint or processors."""

    request_id: str
    """Request id in vLLM."""
    output: Sequence[int]
    """Generated ids: vLLM's list, which grows; -1 for an id that is not known yet."""
    guide: Guide | None = None
    processors: Processors | None = None
    bias: Mapping[int, float] = field(default_factory=dict)
    min_tokens: int = 0
    stop_ids: Sequence[int] = ()
    """Ids that end the stream in addition to eos; masked before `min_tokens`, as eos is."""
    ignore_eos: bool = False
    top_logprobs: int | None = None
    """Alternatives to report under bias and constraint; None reports no logprobs."""
    guide_position: int = 0
    """Number of ids of `output` that the guide has consumed."""
    failure: LmtoolError | None = None

    def advance_guide(self) -> None:
        """Advance the guide by the tokens generated since the last step."""
        while self.guide is not None and self.guide_position < len(self.output):
            token = self.output[self.guide_position]
            if token < 0:
                return
            self.guide.advance(token)
            self.guide_position += 1

    def suppressed_ids(self, eos: Sequence[int]) -> Sequence[int]:
        """Stop ids to mask although the constraint allows them, if it also allows others."""
        if self.guide is None or self.guide.error() is not None or self.guide.ended():
            return ()
        if len(self.output) < self.min_tokens:
            return (*eos, *self.stop_ids)
        return eos if self.ignore_eos else ()

    def error(self) -> LmtoolError | None:
        """Error that ends the stream, or None."""
        of_guide = self.guide.error() if self.guide is not None else None
        of_processors = self.processors.error if self.processors is not None else None
        return self.failure or of_guide or of_processors


class BatchState:
    """Rows of a batch with state, by index. Logits are torch tensors; torch is not imported here."""

    def __init__(self, vocab_size: int, eos_ids: Sequence[int], sender: StepSender | None) -> None:
        """sender: None if another process sends the same reports (tensor parallel)."""
        self.rows: dict[int, RowState] = {}
        self._words = -(-vocab_size // 32)
        self._eos_ids = eos_ids
        self._eos_mask = np.zeros(self._words, np.uint32)
        _set_bits(self._eos_mask, eos_ids)
        self._sender = sender
        self._table: Any = None

    def apply(self, logits: Any, guides: GuideCompiler | None) -> None:
        """Mask the rows' logits and run their processors. logits: [N, V] float32, changed in place."""
        rows = [(index, row) for index, row in self.rows.items() if index < len(logits)]
        before = {index: _raw_normaliser(logits[index], row) for index, row in rows if row.top_logprobs is not None}
        constrained = [(index, row) for index, row in rows if row.guide is not None or row.failure is not None]
        if constrained:
            self._mask(logits, constrained, guides)
        reports = [self._finish(logits[index], before.get(index, 0.0), row) for index, row in rows]
        if self._sender is not None and reports and not self._sender.send(reports):
            for _, row in rows:  # the worker, missing this report, ends the stream itself if it is there
                row.failure = ServerError("the report of a step could not be sent to the worker")

    def _finish(self, logits: Any, before: float, row: RowState) -> StepReport:
        """Run a row's processors and return its step report. logits: [V], changed in place."""
        report = StepReport(row.request_id, len(row.output))
        if row.top_logprobs is not None and row.error() is None:
            report = _with_logprobs(report, logits, before, row.top_logprobs)
        if row.processors is not None and row.error() is None:
            row.processors.apply(row.output, logits)
        error = row.error()
        if error is None:
            return report
        logits += self._additive(logits, self._eos_mask.view(np.int32)[None])[0]
        return StepReport(row.request_id, report.token_index, error=error_parts(error))

    def _mask(self, logits: Any, rows: list[tuple[int, RowState]], guides: GuideCompiler | None) -> None:
        mask = np.zeros((len(rows), self._words), np.int32)
        guided = []
        for at, (_, row) in enumerate(rows):
            row.advance_guide()
            if row.guide is not None and row.failure is None:
                guided.append((row.guide, at))
        if guided:
            assert guides is not None
            guides.fill(guided, mask)
        self._suppress_stop_ids(rows, mask)
        added = self._additive(logits, mask)
        for at, (index, _) in enumerate(rows):
            logits[index] += added[at]

    def _suppress_stop_ids(self, rows: list[tuple[int, RowState]], mask: NDArray[np.int32]) -> None:
        bits = mask.view(np.uint32)
        for at, (_, row) in enumerate(rows):
            if row.error() is not None:
                bits[at] = self._eos_mask
                continue
            suppressed = np.zeros(self._words, np.uint32)
            _set_bits(suppressed, row.suppressed_ids(self._eos_ids))
            rest = bits[at] & ~suppressed
            if rest.any():
                bits[at] = rest

    def _additive(self, logits: Any, mask: NDArray[np.int32]) -> Any:
        """A mask as [n, V] float32 on the logits' device: 0 or -inf."""
        if self._table is None:
            self._table = logits.new_tensor(_MASK_TABLE)
        octets = logits.new_tensor(mask.view(np.uint8).astype(np.int64)).long()
        return self._table.index_select(0, octets.flatten()).view(len(mask), -1)[:, : logits.shape[-1]]


def _set_bits(mask: NDArray[np.uint32], ids: Sequence[int]) -> None:
    for token in ids:
        mask[token // 32] |= np.uint32(1 << token % 32)


def _raw_normaliser(logits: Any, row: RowState) -> float:
    """Log-sum-exp of the model's own logits, without the bias that vLLM has added."""
    if row.bias:
        logits = logits.clone()
        for token, value in row.bias.items():
            logits[token] -= value
    return float(logits.logsumexp(-1))


def _with_logprobs(report: StepReport, logits: Any, before: float, count: int) -> StepReport:
    """Add the logprob shift since `before` and the `count` best ids to a report. logits: [V], masked."""
    after = float(logits.logsumexp(-1))
    values, ids = logits.topk(min(count, logits.shape[-1]))
    pairs = zip(ids.tolist(), (values - after).tolist(), strict=True)
    top = tuple((token, min(0.0, value)) for token, value in pairs if value > -math.inf)
    return StepReport(report.request_id, report.token_index, before - after, top)
