"""One stream's way through its constraint, over llguidance's matcher."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lmtool.errors import ConstraintError, LmtoolError, ServerError
from lmtool.guide.held_guide import HeldGuide, too_complex

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from lmtool.guide.unique_names import UniqueNames

_NO_TEXT = "NoExtension"
_REFUSED = ("doesn't satisfy the grammar", "out of range")
_LONG_LOOK = 0.005
"""Seconds of CPU that looking for forced tokens may take: all streams wait meanwhile, so that it must pay."""


class MatcherGuide(HeldGuide):
    """A guide over one matcher of llguidance."""

    __slots__ = ("_looks", "matcher")

    def __init__(
        self,
        matcher: LLMatcher,
        eos: frozenset[int],
        warnings: tuple[str, ...] = (),
        names: UniqueNames | None = None,
    ) -> None:
        """matcher: at its start, without error. eos: the model's ids that end a text. names: None: none can repeat."""
        super().__init__(eos, warnings, names)
        self.matcher = matcher
        self._looks = True

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
        return None if self.matcher.consume_token(token) else self._matcher_error()

    def _legal(self, tokens: list[int]) -> int:
        return self.matcher.validate_tokens(tokens)

    def _lookahead(self) -> LLMatcher:
        return self.matcher

    def _copy(self) -> MatcherGuide:
        copy = MatcherGuide(self.matcher.deep_copy(), self._eos, self._warnings)
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
