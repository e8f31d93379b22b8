"""Admission queue, and an estimate of how long each request will wait in it.

Priority first, then round-robin over clients, then arrival; ageing prevents starvation.
"""

from __future__ import annotations

import math
from bisect import insort
from heapq import heapify, heappush, heapreplace
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator
    from collections.abc import Sequence as Many

    from lmtool.inference.engine.plan import Plan, Sequence
    from lmtool.inference.engine.scheduler import Scheduler


Rank: TypeAlias = tuple[bool, bool, int, int, int]

MAX_OVERTAKES = 7
"""Sequences that may be admitted, one after the other, while one that arrived before them all waits."""


def rank(sequence: Sequence) -> Rank:
    """Order of service, lowest first: prefills last, then aged ones, priority, round, arrival. It never rises."""
    return sequence.prefill_only, not sequence.aged, sequence.priority, sequence.round, sequence.number


def _share(sequence: Sequence) -> Hashable:
    """What one client's sequences have in common that take turns with those of others."""
    return sequence.client, sequence.priority, sequence.prefill_only


class WaitingQueue:
    """Sequences that wait for admission, in order of service. Waiting clients are served one sequence a round.

    A sequence joins its client's next round, at the earliest the one being served (start-time fair queueing, Goyal, Vin
    and Cheng, SIGCOMM 1996, with equal shares). So a client with one request waits for one of each other client, not
    for all of them; and no newcomer ranks before an admitted sequence, except by priority.

    Waiting ages: of every eight admissions in a row at least one goes to the sequence that has waited longest, and it
    ranks before all others from then on, also where memory is short. So a sequence behind k others is admitted after at
    most 8 (k + 1), however many urgent ones, or new clients, keep coming. A sequence that is paused, or still waits for
    its constraint, does not count as waiting; one with `prefill_only` does not age: others never wait for it.
    """

    def __init__(self) -> None:
        self._queue: list[Sequence] = []
        self._current_round = 0
        self._rounds: dict[Hashable, int] = {}
        """`_share` to the last round in which it was served, where that round is not over."""
        self._overtakes = 0
        """Admissions, one after the other, while an earlier sequence waited."""

    def __len__(self) -> int:
        """How many wait."""
        return len(self._queue)

    def __iter__(self) -> Iterator[Sequence]:
        """Candidates for admission, in order. The queue may change meanwhile: `serve` between two steps counts."""
        passed: set[Sequence] = set()
        for following in tuple(self._queue):
            oldest = self._oldest() if self._overtakes >= MAX_OVERTAKES else None
            for sequence in (oldest, following):
                if sequence is not None and sequence not in passed and not sequence.idle:
                    passed.add(sequence)
                    yield sequence

    def in_order(self) -> Iterator[Sequence]:
        """All that wait, in order of service, those that cannot begin now included."""
        return iter(self._queue)

    def __contains__(self, sequence: object) -> bool:
        """Whether it waits."""
        return sequence in self._queue

    def place(self, sequence: Sequence) -> int | None:
        """Its place in order of service, from 1; None where it does not wait.

        Safe from any thread: a list is searched at once, and its elements are compared by identity.
        """
        try:
            return self._queue.index(sequence) + 1
        except ValueError:
            return None

    def join(self, sequence: Sequence) -> None:
        """Queue a new sequence in its client's next round."""
        own = [s.round for s in self._queue if _share(s) == _share(sequence)]
        own.append(self._rounds.get(_share(sequence), -1))
        sequence.round = max(self._current_round, 1 + max(own))
        self.rejoin(sequence)

    def rejoin(self, sequence: Sequence) -> None:
        """Queue a preempted sequence again, at its own rank."""
        insort(self._queue, sequence, key=rank)

    def serve(self, sequence: Sequence) -> None:
        """Take out a sequence that is admitted now."""
        oldest = self._oldest()
        if oldest is None or sequence.number <= oldest.number:
            sequence.aged = sequence.aged or self._overtakes >= MAX_OVERTAKES
            self._overtakes = 0
        else:
            self._overtakes += 1
        self._queue.remove(sequence)
        self._current_round = max(self._current_round, sequence.round)
        self._rounds[_share(sequence)] = sequence.round
        if len(self._rounds) > 2 * len(self._queue) + 64:
            self._rounds = {client: last for client, last in self._rounds.items() if last >= self._current_round}

    def remove(self, sequence: Sequence) -> None:
        """Take out a sequence that was not served."""
        self._queue.remove(sequence)

    def _oldest(self) -> Sequence | None:
        """The sequence that has waited longest of those that could begin."""
        ready = (s for s in self._queue if not (s.idle or s.awaiting_constraint or s.prefill_only))
        return min(ready, key=lambda s: s.number, default=None)


INTERVAL = 0.25
"""Least seconds between two looks ahead."""
KEPT_SECONDS = 8.0
"""Older steps weigh half as much each time that so much time has been added."""
_GOLDEN = 0.6180339887
_LOOKED_UP = 16
"""Waiting prompts of which it is looked up what is cached; the share of these counts for the others."""


class QueueEstimate:
    """Seconds until each place of the queue is admitted.

    Prompts and answers go on at the pace of the steps in which sequences waited. An answer ends at its limit, or before
    with the chance per token that answers so far had: at a quantile by its number, so that of many some end early.
    `learn` belongs to one thread; `seconds` may be called from any.
    """

    def __init__(self, max_streams: int) -> None:
        self._max_streams = max_streams
        self._planned: tuple[float, int, int, int] | None = None
        """When the last step was planned, its streams, prompt tokens, and ids generated before, if others waited."""
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
        """When each waiting sequence begins; as far as that is known."""
        _, busy, generated, prompt_seconds, prompt_tokens = self._sums
        token, prompt_token = busy / generated, prompt_seconds / max(prompt_tokens, 1.0)
        survival = math.log(1.0 - min(0.5, scheduler.stopped / max(scheduler.generated, 1)))
        prefilled = 0.0

        def end(sequence: Sequence, uncached: float = 1.0) -> float:
            """When a sequence ends whose prompt, but for what is cached, is computed after those before it."""
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
