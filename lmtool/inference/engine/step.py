"""One step between plan and outcome: masks of constrained streams, sampling, and the step begun ahead of its outcome.

A mask is [ceil(V / 32)] int32: bit `i % 32` of word `i // 32` is 1 if id i may come next. Masks are filled by the guide
compiler in threads while the forward pass runs.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

import numpy as np
import torch

from lmtool.inference.engine.device import select_rows
from lmtool.inference.engine.plan import Plan
from lmtool.inference.engine.sampler import sampled_part, start_sampling
from lmtool.inference.engine.sampling_result import SamplingResult
from lmtool.net.subprocesses.resources import lower_priority

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from lmtool.core.interfaces import Guide, GuideCompiler
    from lmtool.inference.engine.cuda.sampling import Part
    from lmtool.inference.engine.model_runner import ModelRunner
    from lmtool.inference.engine.plan import Sequence as TokenSequence
    from lmtool.inference.engine.plan import Span
    from lmtool.inference.engine.sampling_result import SampledToken
    from lmtool.inference.engine.sampling_row import Row
    from lmtool.inference.engine.stream import Stream


class MaskedStream(Protocol):
    """A `stream.Stream`, as far as masks need it."""

    sequence: TokenSequence
    guide: Guide | None
    mask: Tensor | None


StreamT = TypeVar("StreamT", bound=MaskedStream)


class MaskFiller:
    """Fills masks in threads of its own. Used by the engine thread."""

    def __init__(self, guides: GuideCompiler, vocab_size: int) -> None:
        """vocab_size: V, the width of the logits."""
        self._guides = guides
        self._words = -(-vocab_size // 32)
        self._memory = np.zeros((0, self._words), np.int32)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lmtool-masks")
        self._slow_thread = ThreadPoolExecutor(1, thread_name_prefix="lmtool-slow-masks", initializer=lower_priority)

    def start(self, streams: Sequence[StreamT]) -> Callable[[], dict[StreamT, Tensor]]:
        """Start to fill masks for the constrained ones of these streams; call the result to wait for them.

        A stream gets [1 + d, ceil(V / 32)] int32 on CPU, what may follow its ids and each beginning of its draft of d
        ids. They are good until the next call of `start`.
        """
        prefetched = {stream: stream.mask for stream in streams if stream.mask is not None}
        for stream in prefetched:
            stream.mask = None
        constrained = [
            (stream, stream.guide, stream.sequence.draft)
            for stream in streams
            if stream.guide is not None and stream not in prefetched
        ]
        if not constrained:
            return lambda: prefetched
        counts = [1 + len(draft) for _, _, draft in constrained]
        if sum(counts) > len(self._memory):
            self._memory = np.zeros((sum(counts), self._words), np.int32)
        mask = self._memory[: sum(counts)]
        if len(mask) == len(constrained):
            rows = [(guide, row) for row, (_, guide, _) in enumerate(constrained)]
            filling = self._thread.submit(self._guides.fill, rows, mask)
        else:
            starts = (sum(counts[:index]) for index in range(len(constrained)))
            drafts = [(guide, start, draft) for start, (_, guide, draft) in zip(starts, constrained, strict=True)]
            filling = self._thread.submit(self._guides.fill_drafts, drafts, mask)

        def wait() -> dict[StreamT, Tensor]:
            filling.result()
            parts = torch.split(torch.from_numpy(mask), counts)
            return prefetched | {stream: part for (stream, _, _), part in zip(constrained, parts, strict=True)}

        return wait

    def prefetch(self, guide: Guide) -> Future[Tensor]:
        """Fill a slow stream's next mask while other streams continue: [1, ceil(V / 32)] int32.

        Leave the guide alone until then. One such mask is computed at a time: slow streams wait for each other.
        """
        return self._slow_thread.submit(self._fill_one, guide)

    def _fill_one(self, guide: Guide) -> Tensor:
        mask = np.zeros((1, self._words), np.int32)
        self._guides.fill([(guide, 0)], mask)
        return torch.from_numpy(mask)

    def close(self) -> None:
        """End the threads."""
        self._thread.shutdown()
        self._slow_thread.shutdown(cancel_futures=True)


@dataclass(frozen=True, slots=True)
class RunAheadStep:
    """A step whose pass was begun before the previous outcome was read."""

    plan: Plan
    """One position of each sequence, see `Scheduler.plan_ahead`."""
    outcome: Tensor | SamplingResult
    """Logits [N, V] float32, one row for each span; or what the pass has sampled for each already."""

    def still_valid(self) -> RunAheadStep | None:
        """The part of this step that is still valid after the previous commit, or None.

        Sequences that ended or are idle are left out, and those with more than one known id: these are computed
        together.
        """
        rows = [row for row, span in enumerate(self.plan.spans) if _is_next(span)]
        if len(rows) == len(self.plan.spans):
            return self
        if not rows:
            return None
        outcome = self.outcome
        selected = outcome.select(rows) if isinstance(outcome, SamplingResult) else select_rows(outcome, rows)
        return RunAheadStep(Plan([self.plan.spans[row] for row in rows]), selected)


def _is_next(span: Span) -> bool:
    """True if the span is what its sequence needs next: an ended or preempted one begins at its start."""
    sequence, start = span.sequence, span.start
    if sequence.paused or sequence.awaiting_mask:
        return False
    return start == sequence.computed and start + span.count == len(sequence.tokens)


@dataclass(frozen=True, slots=True)
class SampledStep:
    """A step's sampled tokens, on their way to the host."""

    plan: Plan
    counts: list[int]
    """Rows of each span."""
    result: SamplingResult | None
    """None where there are no rows."""

    def ids(self, ahead: Plan) -> Tensor:
        """[N] int64 on the device: the id that this step yields for each span of the plan made ahead of it."""
        assert self.result is not None
        tokens = self.result.tokens
        own = [span.sequence for span in self.plan.spans]
        if len(tokens) == len(own) and own == [span.sequence for span in ahead.spans]:
            return tokens
        ends = accumulate(self.counts)
        row = {sequence: end - 1 for sequence, end in zip(own, ends, strict=True)}
        return select_rows(tokens, [row[span.sequence] for span in ahead.spans])

    def read(self) -> list[list[SampledToken | None]]:
        """The tokens of each span's rows. Waits for the device."""
        tokens = [] if self.result is None else self.result.read()
        ends = accumulate(self.counts)
        return [tokens[end - count : end] for count, end in zip(self.counts, ends, strict=True)]


class AheadSampler(Protocol):
    """A `ModelRunner` whose passes can sample, see `ModelRunner.samples_ahead`."""

    def sample_ahead(self, plan: Plan, ids: Tensor, rows: Sequence[Row]) -> Part | None:
        """Like `ModelRunner.run_ahead`, but for what is sampled of the logits; None, and nothing is begun, where none.

        rows: how to sample for each span. The result is good until the next step is begun.
        """


def run_ahead(runner: ModelRunner, step: SampledStep, plan: Plan, streams: Sequence[Stream]) -> RunAheadStep:
    """Begin the step that was planned ahead of this one's outcome; sample it, too, where that needs no id before.

    streams: that of each span. A penalty needs the ids before, but the device counts them by itself.
    """
    ids = step.ids(plan)
    if runner.samples_ahead and all(own.samples_ahead for own in streams):
        rows = [own.next_row(None, ahead=1) for own in streams]
        part = cast("AheadSampler", runner).sample_ahead(plan, ids, rows)
        if part is not None:
            return RunAheadStep(plan, sampled_part(part, rows))
    return RunAheadStep(plan, runner.run_ahead(plan, ids))


def sample_step(plan: Plan, streams: Sequence[Stream], logits: Tensor, allowed: Mapping[Stream, Tensor]) -> SampledStep:
    """Sample from a step's logits, see `ModelRunner.run`; changed in place.

    streams: that of each span. allowed: masks of the constrained ones, see `Stream.rows`.
    """
    rows: list[Row] = []
    counts = []
    for span, stream in zip(plan.spans, streams, strict=True):
        if span.yields_one_id:
            rows.append(stream.next_row(allowed.get(stream)))
            counts.append(1)
        else:
            own = stream.rows(span.logits, allowed.get(stream))
            rows += own
            counts.append(len(own))
    return SampledStep(plan, counts, start_sampling(logits, rows) if rows else None)
