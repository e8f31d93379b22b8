"""How long waiting sequences will wait: the queue is played ahead with measured step times and answer lengths."""

from __future__ import annotations

import math
from heapq import heapify, heappush, heapreplace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    from lmtool.engine.plan import Plan
    from lmtool.engine.scheduler import Scheduler
    from lmtool.engine.sequence import Sequence

INTERVAL = 0.25
"""Least seconds between two looks ahead."""
_KEPT_STEPS = 256
"""Older steps weigh half as much each time that so many have been added."""
_GOLDEN = 0.6180339887


class QueueEstimate:
    """Seconds until each place of the queue is admitted.

    Prompts and answers go on at the pace of the steps in which sequences waited. An answer ends at its limit, or before
    with the chance per token that answers so far had: at a quantile by its number, so that of many some end early.
    `learn` belongs to one thread; `seconds` may be called from any.
    """

    def __init__(self, max_streams: int) -> None:
        self._max_streams = max_streams
        self._planned: tuple[float, int] | None = None
        """When the last step was planned, and its tokens of prompts, if sequences waited then."""
        self._steps = self._seconds = self._prompts = self._prompt_tokens = 0.0
        """Steps, their seconds, those of them with prompts, and tokens of these."""
        self._begins: Many[float] = ()
        self._looked = -math.inf
        self._admissions = 0
        self._since = (0.0, 0)
        """Seconds and admissions since the last look ahead."""

    def learn(self, scheduler: Scheduler, plan: Plan, now: float) -> None:
        """Take note of a plan. now: in seconds."""
        if self._planned is not None:
            self._add_step(now - self._planned[0], self._planned[1])
        prompt = sum(span.count for span in plan.spans if not span.sequence.decoding) if scheduler.waiting else 0
        self._planned = (now, prompt) if scheduler.waiting and plan.spans else None
        if not scheduler.waiting:
            self._begins = ()
        elif self._steps and now - self._looked >= INTERVAL:
            self._looked, self._admissions = now, scheduler.admissions
            self._begins = self._look_ahead(scheduler)
        self._since = now - self._looked, scheduler.admissions - self._admissions

    def seconds(self, place: int) -> float | None:
        """Until the sequence at this place, from 1, is admitted; None where too little was measured yet."""
        begins, (seconds, admissions) = self._begins, self._since
        at = place - 1 + admissions
        return max(0.0, begins[at] - seconds) if at < len(begins) else None

    def _add_step(self, seconds: float, prompt: int) -> None:
        if self._steps >= 2 * _KEPT_STEPS:
            self._steps, self._seconds = self._steps / 2, self._seconds / 2
            self._prompts, self._prompt_tokens = self._prompts / 2, self._prompt_tokens / 2
        self._steps, self._seconds = self._steps + 1, self._seconds + seconds
        self._prompts, self._prompt_tokens = self._prompts + (prompt > 0), self._prompt_tokens + prompt

    def _look_ahead(self, scheduler: Scheduler) -> list[float]:
        """When each waiting sequence begins; as far as that is known."""
        step = self._seconds / self._steps
        prompt_token = step * self._prompts / self._prompt_tokens if self._prompt_tokens else 0.0
        survival = math.log(1.0 - min(0.5, scheduler.stopped / max(scheduler.generated, 1)))
        prefilled = 0.0

        def end(sequence: Sequence) -> float:
            """When a sequence ends whose prompt is computed after those before it."""
            nonlocal prefilled
            begin = 0.0
            if not sequence.decoding:
                begin = prefilled = prefilled + sequence.remaining * prompt_token
            left = sequence.max_length - len(sequence.tokens)
            return begin + step * min(
                left, math.log(1.0 - sequence.number * _GOLDEN % 1.0) / survival if survival else left
            )

        ends = [end(sequence) for sequence in scheduler.admitted if not sequence.idle]
        heapify(ends)
        begins, places, positions = list[float](), self._max_streams - len(ends), scheduler.free_positions
        for number, sequence in enumerate(scheduler.queue):
            positions -= sequence.target
            places = min(places, number) if positions < 0 else places
            if number < places:
                begins.append(prefilled)
                heappush(ends, end(sequence))
            elif scheduler.ended and ends:
                prefilled = max(prefilled, ends[0])
                begins.append(prefilled)
                heapreplace(ends, end(sequence))
        return begins
