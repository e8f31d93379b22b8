"""How long waiting sequences will wait: the queue is played ahead with measured step times and answer lengths."""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    from lmtool.engine.plan import Plan
    from lmtool.engine.scheduler import Scheduler

INTERVAL = 0.25
"""Least seconds between two looks ahead."""
_KEPT_STEPS = 256
_KEPT_TOKENS = 65_536
"""Older steps, and generated tokens, weigh half as much each time that so many have been added."""
_GOLDEN = 0.6180339887


class QueueEstimate:
    """Seconds until each place of the queue is admitted.

    A step's time is a linear function of the prompt tokens in it, fitted while sequences wait. An answer ends at its
    limit, or earlier with a constant chance per token, as often as answers lately did; quantiles spread over the running
    ones, because the first of many to end is early. `learn` belongs to one thread; `seconds` may be called from any.
    """

    def __init__(self, max_streams: int) -> None:
        self._max_streams = max_streams
        self._planned: tuple[float, int] | None = None
        """When the last step was planned, and its tokens of prompts, if sequences waited then."""
        self._sums = [0.0] * 6
        """Of steps: 1, prompt tokens, their squares, seconds, their product, steps with prompts."""
        self._counted = (0, 0)
        self._stops = self._tokens = 0.0
        """Answers that ended before their limit, and generated tokens."""
        self._begins: Many[float] = ()
        self._looked = -math.inf

    def learn(self, scheduler: Scheduler, plan: Plan, now: float) -> None:
        """Take note of a plan. now: in seconds."""
        if self._planned is not None:
            self._add_step(now - self._planned[0], self._planned[1])
        if not scheduler.waiting:
            self._planned, self._begins = None, ()
            return
        prompt = sum(span.count for span in plan.spans if not span.sequence.decoding)
        self._planned = (now, prompt) if plan.spans else None
        if now - self._looked >= INTERVAL and self._sums[0]:
            self._looked, self._begins = now, self._look_ahead(scheduler, plan)

    def seconds(self, place: int) -> float | None:
        """Until the sequence at this place, from 1, is admitted; None where too little was measured yet."""
        begins = self._begins
        return begins[place - 1] if place <= len(begins) else None

    def _add_step(self, seconds: float, prompt: int) -> None:
        values = (1.0, prompt, prompt * prompt, seconds, prompt * seconds, prompt > 0)
        halved = 0.5 if self._sums[0] >= 2 * _KEPT_STEPS else 1.0
        self._sums = [halved * total + value for total, value in zip(self._sums, values, strict=True)]

    def _step_cost(self) -> tuple[float, float]:
        """Seconds of a step without prompts, and of each prompt token."""
        steps, prompt, squares, seconds, product, _ = self._sums
        spread = steps * squares - prompt * prompt
        slope = max(0.0, (steps * product - prompt * seconds) / spread) if spread > 0 else 0.0
        base = (seconds - slope * prompt) / steps
        return (base, slope) if base > 0 else (0.0, seconds / prompt)

    def _look_ahead(self, scheduler: Scheduler, plan: Plan) -> list[float]:
        """When each waiting sequence begins; as far as that is known."""
        stops, tokens = scheduler.stopped - self._counted[0], scheduler.generated - self._counted[1]
        self._counted = scheduler.stopped, scheduler.generated
        halved = 0.5 if self._tokens >= 2 * _KEPT_TOKENS else 1.0
        self._stops, self._tokens = halved * self._stops + stops, halved * self._tokens + tokens
        chance = min(0.5, self._stops / self._tokens) if self._tokens else 0.0
        base, slope = self._step_cost()
        per_step = self._sums[1] / self._sums[5] if self._sums[5] else 1.0
        prompt_seconds, prefilled, delay = base / per_step + slope, 0.0, 0.0

        def answer(number: int, left: int) -> float:
            """Seconds that the rest of an answer takes once its prompt is computed."""
            if not chance:
                return left * base
            quantile = number * _GOLDEN % 1.0
            return base * min(left, math.log(1.0 - quantile) / math.log(1.0 - chance))

        ends = []
        for sequence in scheduler.admitted:
            if not sequence.idle:
                if not sequence.decoding:
                    prefilled += sequence.remaining * prompt_seconds
                own = 0.0 if sequence.decoding else prefilled
                ends.append(own + answer(sequence.number, sequence.max_length - len(sequence.tokens)))
        heapify(ends)
        free = self._max_streams - len(ends) if plan.chunks else 0  # or memory is short
        begins: list[float] = []
        for sequence in scheduler.queue:
            if free <= 0 and not (scheduler.ended and ends):
                break
            begins.append(max(prefilled, 0.0 if free > 0 else heappop(ends) + delay))
            free -= 1
            prefilled = begins[-1] + sequence.remaining * prompt_seconds
            delay += sequence.remaining * slope
            heappush(ends, prefilled + answer(sequence.number, sequence.max_length - len(sequence.tokens)) - delay)
        return begins
