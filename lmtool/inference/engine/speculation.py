"""Speculative decoding by prompt lookup: drafts from a stream's own text, as far as that pays (pure)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_CONTEXT = 3
"""Ids that must have occurred before for what followed them to be a guess."""

_WINDOW = 8192
"""Number of past ids searched when a stream begins, so that a long prompt costs little memory."""

_MAX_DRAFT = 12
"""Most ids of a draft."""

_REST, _MAX_REST = 16, 512
"""Tokens between two trials of a stream whose guesses do not pay, at first and at most."""

_TRIAL = 2
"""Ids of a trial."""

_MEMORY = 0.9
"""Factor on the weight of a stream's older guesses at each new one."""


@dataclass(slots=True)
class Drafter:
    """Drafts one stream's next ids, and tracks how many are accepted."""

    _after: dict[tuple[int, ...], int] = field(default_factory=dict)
    """Some ids in a row to the position after their last occurrence."""
    _looked: int = 0
    """Positions up to which `_after` knows everything."""
    _right: float = 1.0
    _wrong: float = 1.0
    """Counts of guesses, older ones weighted less; as if one of each had been made before."""
    _rest: int = _REST
    _next_trial: int = 0
    """Length of the stream at which a guess is tried although it should not pay."""

    @property
    def acceptance(self) -> float:
        """Probability that the next guess is right."""
        return self._right / (self._right + self._wrong)

    def propose(self, tokens: Sequence[int], share: float, most: int) -> list[int]:
        """Ids that may follow `tokens`, at most `most`; none where it would not pay.

        share: what one more row of a step costs, as a part of what the step brings a row without it, see `StepCost`.
        """
        count = min(self._worthwhile(share), most)
        if count <= 0 and len(tokens) >= self._next_trial:
            count = min(_TRIAL, most)
        if count <= 0:
            return []
        start = self._last_occurrence(tokens)
        if start is None:
            return []
        period = len(tokens) - start
        return [tokens[start + at % period] for at in range(count)]

    def learn(self, drafted: int, right: int, length: int) -> None:
        """Record that of `drafted` guesses the first `right` were accepted; length: of the stream now."""
        wrong = 1.0 if right < drafted else 0.0
        self._right = self._right * _MEMORY + right
        self._wrong = self._wrong * _MEMORY + wrong
        self._rest = _REST if not wrong else min(self._rest * 2, _MAX_REST)
        self._next_trial = length + self._rest

    def _worthwhile(self, share: float) -> int:
        """Number of ids to guess: the last one must be right more often than its row costs."""
        chance = acceptance = self.acceptance
        count = 0
        while count < _MAX_DRAFT and chance > share:
            count += 1
            chance *= acceptance
        return count

    def _last_occurrence(self, tokens: Sequence[int]) -> int | None:
        """The position after the last occurrence of the ids at the end, before that; None where there is none."""
        after, known = self._after, len(tokens)
        for position in range(max(self._looked, known - _WINDOW, _CONTEXT), known):
            after[tuple(tokens[position - _CONTEXT : position])] = position
        self._looked = known
        return after.get(tuple(tokens[-_CONTEXT:]))


_FORGET = 0.98
"""Factor on the weight of older steps at each new one."""

_FIRST_GUESS = 0.25
"""Part of a step's cost that grows with its rows, before anything was measured."""

_PRIOR = 4.0
"""Strength of what was known before against new steps, in squared rows of difference."""

_OUTLIER = 4.0
"""A step this many times as slow as expected was disturbed, and counts as no slower."""


@dataclass(slots=True)
class StepCost:
    """Cost of a step by its rows: a line fitted to recent steps by least squares."""

    _weight: float = 0.0
    _rows: float = 0.0
    _seconds: float = 0.0
    _squares: float = 0.0
    _products: float = 0.0
    _slope: float = 0.0
    """Seconds of one more row."""

    def learn(self, rows: int, seconds: float) -> None:
        """Record a step of `rows` rows."""
        if self._weight:
            seconds = min(seconds, _OUTLIER * self._expected(rows))
        else:
            self._slope = _FIRST_GUESS * seconds / rows
        self._weight = self._weight * _FORGET + 1
        self._rows = self._rows * _FORGET + rows
        self._seconds = self._seconds * _FORGET + seconds
        self._squares = self._squares * _FORGET + rows * rows
        self._products = self._products * _FORGET + rows * seconds
        spread = self._squares - self._rows**2 / self._weight
        together = self._products - self._rows * self._seconds / self._weight
        self._slope = max((together + _PRIOR * self._slope) / (spread + _PRIOR), 0.0)

    def share(self, rows: int) -> float:
        """Cost of one more row in a step of `rows`, relative to the average cost of a row; 1 is no gain."""
        if not self._weight:
            return _FIRST_GUESS
        return min(self._slope * rows / max(self._expected(rows), 1e-9), 1.0)

    def _expected(self, rows: int) -> float:
        mean = self._seconds / self._weight
        return max(mean + self._slope * (rows - self._rows / self._weight), mean * 0.05)
