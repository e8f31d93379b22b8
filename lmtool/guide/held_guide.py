"""One stream's way through its constraint, whatever library holds the constraint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from lmtool.errors import ConstraintError, ConstraintTooComplexError, LmtoolError, ServerError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    import numpy as np
    from numpy.typing import NDArray

    from lmtool.guide.unique_names import Matcher, UniqueNames

_SIMPLIFY = "make the constraint simpler: fewer alternatives, fewer nested or large repetitions"


class HeldGuide(ABC):
    """A `Guide` whose text a library's matcher follows; eos ids, and what comes behind them, are followed here.

    Made by a `library.Template`; nothing else may use its matcher.
    """

    __slots__ = ("_ends", "_eos", "_error", "_names", "_warnings", "slow", "slow_steps")

    def __init__(self, eos: frozenset[int], warnings: tuple[str, ...] = (), names: UniqueNames | None = None) -> None:
        """eos: the model's ids that end a text. names: None where no object's names can repeat."""
        self.slow = False
        """Whether its last mask took so long that no other stream should wait for the next one."""
        self.slow_steps = 0
        """Steps so far in which its mask took too long."""
        self._eos = eos
        self._warnings = warnings
        self._names = names
        self._ends = 0
        self._error: LmtoolError | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What of the constraint is not held, or held more narrowly than it says."""
        return self._warnings

    def advance(self, token: int) -> None:
        """Take the token that the stream was given."""
        if self._error is not None:
            return
        if token in self._eos:
            if not self.may_end():
                self._error = ServerError(f"the eos id {token} was picked where the constraint does not allow it")
            self._ends += 1
        elif self._ends:
            self._error = ServerError(f"token {token} was picked behind the end of the constraint's text")
        else:
            self._error = self._take(token)
            if self._error is None and self._names is not None and not self._names.take(token):
                self._error = ServerError("a token was picked that writes a name for the second time")

    def forbid_repeats(self, row: NDArray[np.uint32]) -> None:
        """Forbid what would write a name twice. row: [ceil(V / 32)], what the matcher allows; changed in place."""
        if self._names is None or self.check() is not None:
            return
        self._names.forbid_repeats(row, self._lookahead())
        if not row.any():
            problem = "the object has every name already that the constraint allows it, and needs another"
            self.fail(ConstraintError(problem, "ask for fewer properties, or allow more names"))

    def forced(self) -> list[int]:
        """Return the tokens that must follow now; they are not taken yet."""
        return []

    def accepts(self, draft: Sequence[int]) -> int:
        """Return how many tokens of a draft are legal, from its start; an eos id counts where the text may end."""
        if self._error is not None or self._ends:
            return 0
        plain = next((at for at, token in enumerate(draft) if token in self._eos), len(draft))
        legal = self._legal(list(draft[:plain])) if plain else 0
        if self._names is not None:
            legal = self._names.legal(list(draft[:legal]))
        if legal < plain or plain == len(draft):
            return legal
        ahead = self.fork()
        for token in draft[:plain]:
            ahead.advance(token)
        return plain + ahead.may_end()

    def fork(self) -> Self:
        """Return an independent guide at the same place."""
        copy = self._copy()
        copy._ends, copy._error = self._ends, self._error  # noqa: SLF001  # one of our own
        copy._names = None if self._names is None else self._names.copy()  # noqa: SLF001
        copy.slow = self.slow
        return copy

    def may_end(self) -> bool:
        """Whether the text so far is a whole match."""
        return self._error is None and self._is_whole()

    def ended(self) -> bool:
        """Whether nothing but eos can follow."""
        return self._error is None and (self._ends > 0 or self._is_over())

    def error(self) -> LmtoolError | None:
        """Return why the stream cannot go on, if so."""
        return self._error

    def fail(self, error: LmtoolError) -> None:
        """Let the stream end with this error, unless it has one."""
        self._error = self._error or error

    def check(self) -> LmtoolError | None:
        """Return what went wrong in the last mask, or earlier."""
        return self._error

    @abstractmethod
    def _take(self, token: int) -> LmtoolError | None:
        """Follow a token that ends nothing; the error where it is not allowed."""

    @abstractmethod
    def _legal(self, tokens: list[int]) -> int:
        """How many of these are legal, from the start; none ends the text, and the matcher stays where it is."""

    @abstractmethod
    def _lookahead(self) -> Matcher:
        """The matcher, for copies of it to be tried."""

    @abstractmethod
    def _copy(self) -> Self:
        """A new guide of the same eos ids and warnings, its matcher at the same place."""

    @abstractmethod
    def _is_whole(self) -> bool:
        """Whether the text so far is a whole match."""

    @abstractmethod
    def _is_over(self) -> bool:
        """Whether the text is a whole match and no token goes on from it."""


def too_complex(what: str) -> ConstraintTooComplexError:
    """Return the error for a constraint that goes beyond a limit."""
    return ConstraintTooComplexError(what, _SIMPLIFY)
