"""One stream's way through its constraint, over llguidance's matcher."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lmtool.errors import ConstraintError, LmtoolError, ServerError
from lmtool.guide.held_guide import HeldGuide, too_complex

if TYPE_CHECKING:
    import numpy as np
    from llguidance import LLMatcher
    from numpy.typing import NDArray

    from lmtool.guide.unique_names import UniqueNames

_NO_TEXT = "NoExtension"
_REFUSED = ("doesn't satisfy the grammar", "out of range")
_LONG_LOOK = 0.005
"""Seconds of CPU that looking for forced tokens may take: all streams wait meanwhile, so that it must pay."""


class MatcherGuide(HeldGuide):
    """A guide over one matcher of llguidance."""

    __slots__ = ("_looks", "_names", "matcher")

    def __init__(
        self,
        matcher: LLMatcher,
        eos: frozenset[int],
        warnings: tuple[str, ...] = (),
        names: UniqueNames | None = None,
    ) -> None:
        """matcher: at its start, without error. eos: the model's ids that end a text. names: None: none can repeat."""
        super().__init__(eos, warnings)
        self.matcher = matcher
        self._names = names
        self._looks = True

    def forbid_repeats(self, row: NDArray[np.uint32]) -> None:
        """Forbid what would write a name twice. row: [ceil(V / 32)], what the matcher allows; changed in place."""
        if self._names is None or self.matcher.is_error():
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

    def check(self) -> LmtoolError | None:
        """Ask the matcher whether the last mask went wrong, and return the error."""
        if self._error is None:
            self._error = self._matcher_error()
        return self._error

    def _take(self, token: int) -> LmtoolError | None:
        if not self.matcher.consume_token(token):
            return self._matcher_error()
        if self._names is not None and not self._names.take(token):
            return ServerError("a token was picked that writes a name for the second time")
        return None

    def _legal(self, tokens: list[int]) -> int:
        legal = self.matcher.validate_tokens(tokens)
        return legal if self._names is None else self._names.legal(tokens[:legal])

    def _copy(self) -> MatcherGuide:
        names = None if self._names is None else self._names.copy()
        copy = MatcherGuide(self.matcher.deep_copy(), self._eos, self._warnings, names)
        copy._looks = self._looks
        return copy

    def _is_whole(self) -> bool:
        return self.matcher.is_accepting()

    def _is_over(self) -> bool:
        return self.matcher.is_stopped()

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
