"""What a piece of a model's answer adds: to its text, or to one of its calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Delta:
    """One addition."""

    text: str = ""
    """To the answer's text."""
    call: int | None = None
    """Number of the call that the rest is about."""
    name: str | None = None
    """Of the tool: on the first delta of a call only."""
    arguments: str = ""
    """To the arguments of the call."""
    id: str | None = None
    """Of the call, where the model has one for it; on its first delta."""
    reasoning: str = ""
    """To the thought before the answer; then there is nothing else."""


class Reader(Protocol):
    """Tells text and calls apart in one answer, as it comes."""

    def push(self, text: str) -> Sequence[Delta]:
        """Take more of the answer; return what is certain by now."""

    def finish(self) -> Sequence[Delta]:
        """Return what was held back. Nothing may be pushed afterwards."""


class Plain:
    """Reads every answer as text."""

    def push(self, text: str) -> Sequence[Delta]:
        """The text as it is."""
        return [Delta(text)] if text else []

    def finish(self) -> Sequence[Delta]:
        """Nothing is held back."""
        return []
