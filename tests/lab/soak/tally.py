"""What a load has sent, how it was answered, and what broke: counted in the loading process, summed up in ours."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_BREACHES = 50
"""Kept in full; further ones are only counted."""


class Tally:
    """Counts by part of the load, wire and outcome."""

    def __init__(self) -> None:
        self.outcomes: Counter[tuple[str, str, str]] = Counter()
        """By part, such as `hostile`, by wire, and by how it was answered."""
        self.breaches: list[str] = []
        self.further_breaches = 0

    def count(self, part: str, wire: str, outcome: str, number: int = 1) -> None:
        """Count something that was sent."""
        self.outcomes[part, wire, outcome] += number

    def breach(self, sentence: str) -> None:
        """Note what may not happen."""
        if len(self.breaches) < MOST_BREACHES:
            self.breaches.append(sentence)
        else:
            self.further_breaches += 1

    def sent(self, part: str) -> int:
        """How much of a part of the load."""
        return sum(number for (name, _, _), number in self.outcomes.items() if name == part)

    def as_json(self) -> dict[str, Any]:
        """All of it, for another process."""
        counts = [[*key, number] for key, number in sorted(self.outcomes.items())]
        return {"outcomes": counts, "breaches": self.breaches, "further_breaches": self.further_breaches}

    def update(self, value: Mapping[str, Any]) -> None:
        """Become what `as_json` gave."""
        self.outcomes = Counter({(part, wire, outcome): number for part, wire, outcome, number in value["outcomes"]})
        self.breaches = list(value["breaches"])
        self.further_breaches = value["further_breaches"]
