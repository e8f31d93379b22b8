"""Estimated waiting time of queued sequences: a simulation with measured step times and answer lengths."""

from __future__ import annotations

import math
from heapq import heapify, heappush, heapreplace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    from lmtool.inference.engine.plan import Plan, Sequence
    from lmtool.inference.engine.scheduler import Scheduler

INTERVAL = 0.25
"""Least seconds between two looks ahead."""
KEPT_SECONDS = 8.0
"""Older steps weigh half as much each time that so much time has been added."""
_GOLDEN = 0.6180339887
_LOOKED_UP = 16
"""Waiting prompts of which it is looked up what is cached; the share of these counts for the others."""


class QueueEstimate:
    """Seconds until each place of the queue is admitted.

    Prompts and answers continue at the pace of the steps in which sequences waited. An answer ends at its limit, or
    before, with the chance per token that answers so far had: at a quantile by its number, so that of many some end
    early.
    `learn` belongs to one thread; `seconds` may be called from any.
    """

    def __init__(self, max_streams: int) -> None:
        self._max_streams = max_streams
        self._planned: tuple[float, int, int, int] | None = None
        """Time of the last plan, its streams, prompt tokens, and ids generated before, if others waited."""
        self._sums = [0.0] * 5
        """Seconds; the same of each stream; ids that these gave; seconds of steps with prompts, and tokens of these."""
        self._begins: Many[float] = ()
        self._looked = -math.inf
        self._admissions = 0
        self._since = (0.0, 0)
        """Seconds and admissions since the last look ahead."""

    def learn(self, scheduler: Scheduler, plan: Plan, now: float) -> None:
        """Take note of a plan. now: in seconds."""
        if self._planned is not None:
            began, streams, prompt, generated = self._planned
            seconds = now - began
            new = seconds, seconds * streams, scheduler.generated - generated, seconds * (prompt > 0), prompt
            kept = 0.5 if self._sums[0] >= KEPT_SECONDS else 1.0
            self._sums = [kept * total + value for total, value in zip(self._sums, new, strict=True)]
        self._planned = None
        if scheduler.waiting and plan.spans:
            prompts = [span.count for span in plan.spans if not span.sequence.decoding]
            self._planned = now, len(plan.spans) - len(prompts), sum(prompts), scheduler.generated
        if not scheduler.waiting:
            self._begins = ()
        elif self._sums[2] and now - self._looked >= INTERVAL:
            self._looked, self._admissions = now, scheduler.admissions
            self._begins = self._look_ahead(scheduler)
        self._since = now - self._looked, scheduler.admissions - self._admissions

    def seconds(self, place: int) -> float | None:
        """Until the sequence at this place, from 1, is admitted; None where too little was measured yet."""
        begins, (seconds, admissions) = self._begins, self._since
        at = place - 1 + admissions
        return max(0.0, begins[at] - seconds) if at < len(begins) else None

    def _look_ahead(self, scheduler: Scheduler) -> list[float]:
        """Estimated start of each waiting sequence, in seconds from now; only the first ones if less is known."""
        _, busy, generated, prompt_seconds, prompt_tokens = self._sums
        token, prompt_token = busy / generated, prompt_seconds / max(prompt_tokens, 1.0)
        survival = math.log(1.0 - min(0.5, scheduler.stopped / max(scheduler.generated, 1)))
        prefilled = 0.0

        def end(sequence: Sequence, uncached: float = 1.0) -> float:
            """Estimated end of a sequence whose prompt, but for what is cached, is computed after those before it."""
            nonlocal prefilled
            begin = 0.0
            if not sequence.decoding:
                begin = prefilled = prefilled + sequence.remaining * uncached * prompt_token
            left = sequence.max_length - len(sequence.tokens)
            return begin + token * min(
                left, math.log(1.0 - sequence.number * _GOLDEN % 1.0) / survival if survival else left
            )

        ends = [end(sequence) for sequence in scheduler.admitted if not sequence.idle]
        heapify(ends)
        begins, places, positions = list[float](), self._max_streams - len(ends), scheduler.free_positions
        known, computed = 0, 0
        for number, sequence in enumerate(scheduler.queue):
            positions -= sequence.target
            if number < _LOOKED_UP:
                own = sequence.remaining - scheduler.cached_positions(sequence)
                known, computed = known + sequence.remaining, computed + own
                uncached = own / max(sequence.remaining, 1)
            else:
                uncached = computed / max(known, 1)
            places = min(places, number) if positions < 0 else places
            if number < places:
                begins.append(prefilled)
                heappush(ends, end(sequence, uncached))
            elif scheduler.ended and ends:
                prefilled = max(prefilled, ends[0])
                begins.append(prefilled)
                heapreplace(ends, end(sequence, uncached))
        return begins
