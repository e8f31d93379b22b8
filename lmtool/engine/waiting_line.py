"""In what order waiting sequences get a place: by priority, then clients in turn, then by arrival."""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lmtool.engine.sequence import Sequence

Rank: TypeAlias = tuple[int, int, int]


def rank(sequence: Sequence) -> Rank:
    """Who is served first, lowest first: priority, round, order of arrival. It never changes once in line."""
    return sequence.priority, sequence.round, sequence.number


class WaitingLine:
    """Sequences without a place, first in line first. Clients that wait at once are served one sequence a round.

    A sequence joins its client's next round, at the earliest the one being served (start-time fair queueing, Goyal, Vin
    and Cheng, SIGCOMM 1996, with equal shares). So a client with one request waits for one of each other client, not
    for all of them; and nobody who arrives ranks before who has a place already, except by priority. Priorities are
    strict: while more urgent sequences keep arriving and places are short, less urgent ones wait.
    """

    def __init__(self) -> None:
        self._line: list[Sequence] = []
        self._served = 0

    def __len__(self) -> int:
        """How many wait."""
        return len(self._line)

    def __iter__(self) -> Iterator[Sequence]:
        """In order, as the line is now; it may change meanwhile."""
        return iter(tuple(self._line))

    def __contains__(self, sequence: object) -> bool:
        """Whether it waits."""
        return sequence in self._line

    def join(self, sequence: Sequence) -> None:
        """A new sequence joins its client's next round."""
        own = [s.round for s in self._line if s.client == sequence.client and s.priority == sequence.priority]
        sequence.round = max(self._served, 1 + max(own, default=-1))
        self.rejoin(sequence)

    def rejoin(self, sequence: Sequence) -> None:
        """One that had a place waits again, at its own place in the line."""
        insort(self._line, sequence, key=rank)

    def serve(self, sequence: Sequence) -> None:
        """It was given a place."""
        self._line.remove(sequence)
        self._served = max(self._served, sequence.round)

    def remove(self, sequence: Sequence) -> None:
        """It goes away unserved."""
        self._line.remove(sequence)
