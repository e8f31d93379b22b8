"""Interfaces that separate thoughts from answers: the parser of a model family, and the reader of one stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from lmtool.core.reasoning import ThoughtMarks

GROUP = "lmtool.reasoning_parsers"
"""Entry point group: parsers, or callables without arguments that create one."""

Beginning: TypeAlias = Literal["open", "closed", "undecided"]
"""State of the thought at the end of a prompt: begun, closed (an empty one), or left to the model."""

Encode: TypeAlias = Callable[[str], Sequence[int]]
"""Returns token ids of a text that continues another, with special tokens for marks."""


class Piece(NamedTuple):
    """Thought and answer in a piece of a stream's text."""

    reasoning: str = ""
    """Text of the thought."""
    answer: str = ""


class ThoughtReader(Protocol):
    """Separates thought and answer in one stream's text, for any split into pieces. Pure."""

    @property
    def thinking(self) -> bool:
        """True if the last text read belongs to a thought or its marks."""

    def push(self, text: str) -> Piece:
        """Take more text, with the parser's marks by name; return the parts that are certain."""

    def push_special(self) -> None:
        """Take a special token that is not a mark of the parser and adds no text, such as one before tool calls."""

    def finish(self) -> Piece:
        """Return the text held back at the end of the stream. Nothing may be pushed afterwards."""


@runtime_checkable
class ReasoningParser(Protocol):
    """Format in which a family of models writes its thoughts."""

    @property
    def name(self) -> str:
        """Name for `--reasoning-parser`."""

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that its reader looks for, including those that are special tokens."""

    def beginning(self, tail: str, prefill: str = "") -> Beginning:
        """Return the state of the thought at the end of a prompt.

        tail: its last characters, before the prefill. prefill: the beginning of the assistant's answer.
        """

    def reader(self, beginning: Beginning, *, constrained: bool) -> ThoughtReader:
        """Return a new reader. constrained: the answer follows a constraint and must be kept exactly."""

    def thought_marks(
        self, beginning: Beginning, encode: Encode, budget: int | None, *, constrained: bool
    ) -> ThoughtMarks | None:
        """Return the marks as token ids, or None if the stream has no thought to wait for. budget: see `Reasoning`."""
