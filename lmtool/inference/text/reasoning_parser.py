"""What tells thoughts from answers: the parser of a family of models, and the reader of one stream's text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from lmtool.core.reasoning import ThoughtMarks

GROUP = "lmtool.reasoning_parsers"
"""Entry points of this group name parsers, or what makes one when called without arguments."""

Beginning: TypeAlias = Literal["open", "closed", "undecided"]
"""How a prompt leaves the thought: begun, over (an empty one), or up to the model."""

Encode: TypeAlias = Callable[[str], Sequence[int]]
"""Token ids of a text that follows another; marks in it that are special tokens become these."""


class Piece(NamedTuple):
    """What more of a stream's text comes to."""

    reasoning: str = ""
    """Of the thought."""
    answer: str = ""


class ThoughtReader(Protocol):
    """Tells thought and answer apart in one stream's text, however that is cut into pieces. Pure."""

    @property
    def thinking(self) -> bool:
        """Whether the last that was read belongs to a thought or to its marks, not yet to an answer."""

    def push(self, text: str) -> Piece:
        """Take more of the text, special tokens by the names of the parser's marks; return what is certain by now."""

    def push_special(self) -> None:
        """Take a special token that is none of the parser's marks, such as one before calls, and adds no text."""

    def finish(self) -> Piece:
        """Return what was held back, at the end of the text, wherever it was cut. Nothing may be pushed afterwards."""


@runtime_checkable
class ReasoningParser(Protocol):
    """How one family of models writes its thoughts."""

    @property
    def name(self) -> str:
        """As `--reasoning-parser` has it."""

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that its reader looks for; those that are special tokens are shown to it all the same."""

    def beginning(self, tail: str, prefill: str = "") -> Beginning:
        """How a prompt leaves the thought.

        tail: its last characters, before the prefill. prefill: the beginning of the assistant's answer.
        """

    def reader(self, beginning: Beginning, *, constrained: bool) -> ThoughtReader:
        """A fresh reader of a stream. constrained: whether the answer follows a constraint, and is kept exactly."""

    def thought_marks(
        self, beginning: Beginning, encode: Encode, budget: int | None, *, constrained: bool
    ) -> ThoughtMarks | None:
        """The same in terms of ids; None where the stream has no thought to wait for. budget: see `Reasoning`."""
