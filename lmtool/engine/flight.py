"""A step between its plan and its outcome: logits that are being computed, ids that are drawn and not read yet."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, chain, islice
from typing import TYPE_CHECKING

from lmtool.engine.plan import Plan
from lmtool.engine.rows import rows_of
from lmtool.engine.sampler import begin

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from lmtool.engine.drawing import Choice, Drawing
    from lmtool.engine.plan import Span
    from lmtool.engine.stream import Stream


@dataclass(frozen=True, slots=True)
class Flight:
    """A step whose pass was begun before the outcome of the one before was read."""

    plan: Plan
    """One position of each sequence, see `Scheduler.plan_ahead`."""
    logits: Tensor
    """[N, V] float32, one row for each span."""

    def due(self) -> Flight | None:
        """As much of it as is wanted now that the step before is committed; None for nothing.

        Who ended or is idle meanwhile has no part in it, nor who knows more ids than one: those are computed together.
        """
        rows = [row for row, span in enumerate(self.plan.spans) if _is_next(span)]
        return Flight(Plan([self.plan.spans[row] for row in rows]), rows_of(self.logits, rows)) if rows else None


def _is_next(span: Span) -> bool:
    """Whether the span is what its sequence needs next: one that ended, or gave way, begins at its start."""
    sequence = span.sequence
    return not sequence.idle and span.start == sequence.computed and span.end == len(sequence.tokens)


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a step's rows of logits give."""

    plan: Plan
    counts: list[int]
    """Rows of each span."""
    drawing: Drawing | None
    """None where there are no rows."""

    def ids(self, ahead: Plan) -> Tensor:
        """[N] int64 on the device: the id that this step brings each span of the plan made ahead of it."""
        assert self.drawing is not None
        ends = accumulate(self.counts)
        row = {span.sequence: end - 1 for span, end in zip(self.plan.spans, ends, strict=True)}
        return rows_of(self.drawing.tokens, [row[span.sequence] for span in ahead.spans])

    def choices(self) -> list[list[Choice | None]]:
        """What the rows of each span gave. Waits for the device."""
        drawn = iter([] if self.drawing is None else self.drawing.choices())
        return [list(islice(drawn, count)) for count in self.counts]


def draw(plan: Plan, streams: Sequence[Stream], logits: Tensor, allowed: Mapping[Stream, Tensor]) -> Drawn:
    """Draw from a step's logits, see `ModelRunner.run`; changed in place.

    streams: whose each span is. allowed: what constraints let come next, see `Stream.rows`.
    """
    own = zip(plan.spans, streams, strict=True)
    parts = [stream.rows(span.logits, allowed.get(stream)) for span, stream in own]
    rows = list(chain.from_iterable(parts))
    return Drawn(plan, [len(part) for part in parts], begin(logits, rows) if rows else None)
