"""One stream's way through its constraint, over llguidance's matcher."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lmtool.errors import ConstraintError, ConstraintTooComplexError, LmtoolError, ServerError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llguidance import LLMatcher

_NO_TEXT = "NoExtension"
_REFUSED = ("doesn't satisfy the grammar", "out of range")
_LONG_LOOK = 0.005
"""Seconds of CPU that looking for forced tokens may take: all streams wait meanwhile, so that it must pay."""
_SIMPLIFY = "make the constraint simpler: fewer alternatives, fewer nested or large repetitions"


class MatcherGuide:
    """A `ports.Guide`. Made by `MatcherCompiler`; nothing else may use its matcher."""

    __slots__ = ("_ends", "_eos", "_error", "_looks", "_warnings", "matcher", "slow_steps")

    def __init__(self, matcher: LLMatcher, eos: frozenset[int], warnings: tuple[str, ...] = ()) -> None:
        """matcher: at its start, without error. eos: the model's ids that end a text."""
        self.matcher = matcher
        self.slow_steps = 0
        """Steps so far in which its mask took too long."""
        self._eos = eos
        self._warnings = warnings
        self._ends = 0
        self._looks = True
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
        elif not self.matcher.consume_token(token):
            self._error = self._matcher_error()

    def forced(self) -> list[int]:
        """Return the tokens that must follow now; they are not taken yet. None once it took too long to find out."""
        if self._error is not None or self._ends or not self._looks:
            return []
        began = time.thread_time()
        found = [token for token in self.matcher.compute_ff_tokens() if token not in self._eos]
        self._looks = time.thread_time() - began < _LONG_LOOK
        return found

    def accepts(self, draft: Sequence[int]) -> int:
        """Return how many tokens of a draft are legal, from its start; an eos id counts where the text may end."""
        if self._error is not None or self._ends:
            return 0
        plain = next((at for at, token in enumerate(draft) if token in self._eos), len(draft))
        legal = self.matcher.validate_tokens(list(draft[:plain])) if plain else 0
        if legal < plain or plain == len(draft):
            return legal
        ahead = self.matcher.deep_copy()
        return plain + (ahead.consume_tokens(list(draft[:plain])) and ahead.is_accepting())

    def rollback(self, tokens: int) -> None:
        """Go back by so many advanced tokens."""
        ends = min(self._ends, tokens)
        self._ends -= ends
        if tokens > ends and not self.matcher.rollback(tokens - ends):
            self._error = self._error or ServerError(f"the constraint cannot go back {tokens} tokens")

    def fork(self) -> MatcherGuide:
        """Return an independent guide at the same place."""
        copy = MatcherGuide(self.matcher.deep_copy(), self._eos, self._warnings)
        copy._ends, copy._error, copy._looks = self._ends, self._error, self._looks  # one of our own
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
