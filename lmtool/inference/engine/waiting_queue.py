"""Admission queue: priority, then round-robin over clients, then arrival; ageing prevents starvation."""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from lmtool.inference.engine.plan import Sequence

Rank: TypeAlias = tuple[bool, bool, int, int, int]

MAX_OVERTAKES = 7
"""Sequences that may be admitted, one after the other, while one that arrived before them all waits."""


def rank(sequence: Sequence) -> Rank:
    """Order of service, lowest first: prefills last, then aged ones, priority, round, arrival. It never rises."""
    return sequence.prefill_only, not sequence.aged, sequence.priority, sequence.round, sequence.number


def _share(sequence: Sequence) -> Hashable:
    """Key of the sequences that share one client's turns."""
    return sequence.client, sequence.priority, sequence.prefill_only


class WaitingQueue:
    """Sequences that wait for admission, in order of service. Waiting clients are served one sequence a round.

    A sequence joins its client's next round, at the earliest the one being served (start-time fair queueing, Goyal, Vin
    and Cheng, SIGCOMM 1996, with equal shares). So a client with one request waits for one of each other client, not
    for all of them; and no newcomer ranks before an admitted sequence, except by priority.

    Waiting ages: of every eight admissions in a row at least one goes to the sequence that has waited longest, and it
    ranks before all others from then on, also where memory is short. So a sequence after k others is admitted after at
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
        """Number of waiting sequences."""
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
        """True if it waits."""
        return sequence in self._queue

    def place(self, sequence: Sequence) -> int | None:
        """Queue position of the sequence, from 1; None if it does not wait.

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
