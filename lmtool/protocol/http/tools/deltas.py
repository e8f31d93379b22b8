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

    def finish(self, *, cut: bool = False) -> Sequence[Delta]:
        """Return what was held back. Nothing may be pushed afterwards.

        cut: whether the answer was cut off in the middle, such as at its token limit: the beginning of a call is then
        no text.
        """


class Plain:
    """Reads every answer as text."""

    def push(self, text: str) -> Sequence[Delta]:
        """The text as it is."""
        return [Delta(text)] if text else []

    def finish(self, *, cut: bool = False) -> Sequence[Delta]:  # noqa: ARG002  # of `Reader`
        """Nothing is held back."""
        return []


class NamedToolReader:
    """The whole answer is the arguments of one tool: what a constraint to its schema makes."""

    def __init__(self, name: str) -> None:
        self._name: str | None = name

    def push(self, text: str) -> Sequence[Delta]:
        """More arguments; the first ones come with the name."""
        if not text:
            return []
        name, self._name = self._name, None
        return [Delta(call=0, name=name, arguments=text)]

    def finish(self, *, cut: bool = False) -> Sequence[Delta]:  # noqa: ARG002  # of `Reader`
        """Nothing is held back."""
        return []
