"""Strategies: in which order to try the members that could take a request.

A strategy is a pure function of candidates, those least recently chosen first; it returns each of them once, best
first, so no caller can loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

SLACK = 2
"""Streams that a member may run beyond the least loaded one and still count as near it; or a quarter more."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A member that can take a request now, with what strategies decide by."""

    member: int
    """Its number among the caller's members."""
    running: int
    """Streams that have not ended."""
    prefix_blocks: int = 0
    """Leading blocks of the prompt that it was the last to receive, see `PrefixTable.matches`."""


def least_loaded(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Candidates by their load; one near the least loaded that knows a prefix of the prompt goes before all others."""
    least = min((candidate.running for candidate in candidates), default=0)
    near = least + max(SLACK, least // 4)

    def rank(candidate: Candidate) -> tuple[int, int]:
        return -candidate.prefix_blocks if candidate.running <= near else 0, candidate.running

    return sorted(candidates, key=rank)
