"""One stream's way through its constraint, over llguidance's matcher."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lmtool.errors import ConstraintError, ConstraintTooComplexError, LmtoolError, ServerError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from llguidance import LLMatcher
    from numpy.typing import NDArray

    from lmtool.guide.unique_names import UniqueNames

_NO_TEXT = "NoExtension"
_REFUSED = ("doesn't satisfy the grammar", "out of range")
_SIMPLIFY = "make the constraint simpler: fewer alternatives, fewer nested or large repetitions"
_LONG_LOOK = 0.005
"""Seconds of CPU that looking for forced tokens may take: all streams wait meanwhile, so that it must pay."""


class MatcherGuide:
    """An `interfaces.Guide` whose text a matcher follows; eos ids, and what comes behind them, are followed here.

    Made by a `Template`; nothing else may use its matcher.
    """

    __slots__ = ("_ends", "_eos", "_error", "_looks", "_names", "_warnings", "matcher", "slow", "slow_steps")

    def __init__(
        self,
        matcher: LLMatcher,
        eos: frozenset[int],
        warnings: tuple[str, ...] = (),
        names: UniqueNames | None = None,
    ) -> None:
        """matcher: at its start, without error. eos: the model's ids that end a text. names: None: none can repeat."""
        self.matcher = matcher
        self.slow = False
        """Whether its last mask took so long that no other stream should wait for the next one."""
        self.slow_steps = 0
        """Steps so far in which its mask took too long."""
        self._eos = eos
        self._warnings = warnings
        self._names = names
        self._ends = 0
        self._error: LmtoolError | None = None
        self._looks = True

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
        elif not self.matcher.consume_token(token):
            self._error = self._matcher_error()
        elif self._names is not None and not self._names.take(token):
            self._error = ServerError("a token was picked that writes a name for the second time")

    def forbid_repeats(self, row: NDArray[np.uint32]) -> None:
        """Forbid what would write a name twice. row: [ceil(V / 32)], what the matcher allows; changed in place."""
        if self._names is None or self.check() is not None:
            return
        self._names.forbid_repeats(row, self.matcher)
        if not row.any():
            problem = "the object has every name already that the constraint allows it, and needs another"
            self.fail(ConstraintError(problem, "ask for fewer properties, or allow more names"))

    def forced(self) -> list[int]:
        """Return the tokens that must follow now; they are not taken yet. None where it takes too long to find out."""
        if self._error is not None or self._ends or not self._looks or self.slow:
            return []
        began = time.thread_time()
        found = [token for token in self.matcher.compute_ff_tokens() if token not in self._eos]
        self._looks = time.thread_time() - began < _LONG_LOOK
        return found if self._names is None else found[: self._names.legal(found, forced=True)]

    def accepts(self, draft: Sequence[int]) -> int:
        """Return how many tokens of a draft are legal, from its start; an eos id counts where the text may end."""
        if self._error is not None or self._ends:
            return 0
        plain = next((at for at, token in enumerate(draft) if token in self._eos), len(draft))
        legal = self.matcher.validate_tokens(list(draft[:plain])) if plain else 0
        if self._names is not None:
            legal = self._names.legal(list(draft[:legal]))
        if legal < plain or plain == len(draft):
            return legal
        ahead = self.fork()
        for token in draft[:plain]:
            ahead.advance(token)
        return plain + ahead.may_end()

    def fork(self) -> MatcherGuide:
        """Return an independent guide at the same place."""
        names = None if self._names is None else self._names.copy()
        copy = MatcherGuide(self.matcher.deep_copy(), self._eos, self._warnings, names)
        copy._ends, copy._error, copy._looks = self._ends, self._error, self._looks
        copy.slow = self.slow
        return copy

    def may_end(self) -> bool:
        """Whether the text so far is a whole match."""
        return self._error is None and self.matcher.is_accepting()

    def ended(self) -> bool:
        """Whether nothing but eos can follow."""
        return self._error is None and (self._ends > 0 or self.matcher.is_stopped())

    def error(self) -> LmtoolError | None:
        """Return why the stream cannot go on, if so."""
        return self._error

    def fail(self, error: LmtoolError) -> None:
        """Let the stream end with this error, unless it has one."""
        self._error = self._error or error

    def check(self) -> LmtoolError | None:
        """Ask the matcher whether the last mask went wrong, and return the error."""
        if self._error is None:
            self._error = self._matcher_error()
        return self._error

    def _matcher_error(self) -> LmtoolError | None:
        if not self.matcher.is_error():
            return None
        problem = self.matcher.get_error().split("\n", 1)[0][:300]
        if problem.startswith(_NO_TEXT):
            return ConstraintError(
                "no text goes on from here within the constraint", "look for parts that exclude others"
            )
        if any(sign in problem for sign in _REFUSED):
            return ServerError(f"a token was picked that the constraint does not allow: {problem}")
        return too_complex(f"following the constraint takes too much: {problem}")


def too_complex(what: str) -> ConstraintTooComplexError:
    """Return the error for a constraint that goes beyond a limit."""
    return ConstraintTooComplexError(what, _SIMPLIFY)
