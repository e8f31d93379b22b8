"""Steps between plan and outcome: logits computed before the previous outcome is known, ids sampled but not read."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, chain
from typing import TYPE_CHECKING

from lmtool.engine.device_transfer import select_rows
from lmtool.engine.plan import Plan
from lmtool.engine.sampler import start_sampling

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from lmtool.engine.plan import Span
    from lmtool.engine.sampling_result import SampledToken, SamplingResult
    from lmtool.engine.stream import Stream


@dataclass(frozen=True, slots=True)
class RunAheadStep:
    """A step whose pass was begun before the previous outcome was read."""

    plan: Plan
    """One position of each sequence, see `Scheduler.plan_ahead`."""
    logits: Tensor
    """[N, V] float32, one row for each span."""

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
        return RunAheadStep(Plan([self.plan.spans[row] for row in rows]), select_rows(self.logits, rows))


def _is_next(span: Span) -> bool:
    """Whether the span is what its sequence needs next: an ended or preempted one begins at its start."""
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


def sample_step(plan: Plan, streams: Sequence[Stream], logits: Tensor, allowed: Mapping[Stream, Tensor]) -> SampledStep:
    """Sample from a step's logits, see `ModelRunner.run`; changed in place.

    streams: that of each span. allowed: masks of the constrained ones, see `Stream.rows`.
    """
    spans = zip(plan.spans, streams, strict=True)
    parts = [stream.rows(span.logits, allowed.get(stream)) for span, stream in spans]
    rows = list(chain.from_iterable(parts))
    return SampledStep(plan, list(map(len, parts)), start_sampling(logits, rows) if rows else None)
