"""In what order waiting sequences get a place: by priority, then clients in turn, then by arrival; nobody for ever."""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from lmtool.engine.sequence import Sequence

Rank: TypeAlias = tuple[bool, int, int, int]

OVERTAKING = 7
"""How many sequences may get a place, one after the other, while one that came before them all waits."""


def rank(sequence: Sequence) -> Rank:
    """Who is served first, lowest first: elders, then by priority, round, order of arrival. It never rises."""
    return not sequence.elder, sequence.priority, sequence.round, sequence.number


class WaitingLine:
    """Sequences without a place, first in line first. Clients that wait at once are served one sequence a round.

    A sequence joins its client's next round, at the earliest the one being served (start-time fair queueing, Goyal, Vin
    and Cheng, SIGCOMM 1996, with equal shares). So a client with one request waits for one of each other client, not
    for all of them; and nobody who arrives ranks before who has a place already, except by priority.

    Waiting ages: of every eight places in a row at least one goes to whoever has waited longest, and that one ranks
    before all others from then on, also where memory is short. So a sequence that k others came before gets a place
    after at most 8 (k + 1), however many urgent ones, or new clients, keep coming. Who is paused, or still waits for
    its constraint, does not count as waiting.
    """

    def __init__(self) -> None:
        self._line: list[Sequence] = []
        self._served = 0
        self._rounds: dict[tuple[Hashable, int], int] = {}
        """Client and priority to the last round in which it was served, where that round is not over."""
        self._overtaken = 0
        """Places given, one after the other, while somebody waited who had come before."""

    def __len__(self) -> int:
        """How many wait."""
        return len(self._line)

    def __iter__(self) -> Iterator[Sequence]:
        """Who may get a place, in order. The line may change meanwhile: who is served between two steps counts."""
        passed: set[Sequence] = set()
        for following in tuple(self._line):
            oldest = self._oldest() if self._overtaken >= OVERTAKING else None
            for sequence in (oldest, following):
                if sequence is not None and sequence not in passed and not sequence.idle:
                    passed.add(sequence)
                    yield sequence

    def __contains__(self, sequence: object) -> bool:
        """Whether it waits."""
        return sequence in self._line

    def join(self, sequence: Sequence) -> None:
        """A new sequence joins its client's next round."""
        own = [s.round for s in self._line if s.client == sequence.client and s.priority == sequence.priority]
        own.append(self._rounds.get((sequence.client, sequence.priority), -1))
        sequence.round = max(self._served, 1 + max(own))
        self.rejoin(sequence)

    def rejoin(self, sequence: Sequence) -> None:
        """One that had a place waits again, at its own place in the line."""
        insort(self._line, sequence, key=rank)

    def serve(self, sequence: Sequence) -> None:
        """It was given a place."""
        oldest = self._oldest()
        if oldest is None or sequence.number <= oldest.number:
            sequence.elder = sequence.elder or self._overtaken >= OVERTAKING
            self._overtaken = 0
        else:
            self._overtaken += 1
        self._line.remove(sequence)
        self._served = max(self._served, sequence.round)
        self._rounds[sequence.client, sequence.priority] = sequence.round
        if len(self._rounds) > 2 * len(self._line) + 64:
            self._rounds = {client: last for client, last in self._rounds.items() if last >= self._served}

    def remove(self, sequence: Sequence) -> None:
        """It goes away unserved."""
        self._line.remove(sequence)

    def _oldest(self) -> Sequence | None:
        """Who has waited longest of those that could begin."""
        ready = (s for s in self._line if not s.idle and not s.held)
        return min(ready, key=lambda s: s.number, default=None)
