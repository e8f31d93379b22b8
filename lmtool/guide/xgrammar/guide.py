"""One stream's way through its constraint, over xgrammar's matcher."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lmtool.errors import LmtoolError, ServerError
from lmtool.guide.held_guide import HeldGuide

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lmtool.guide.unique_names import UniqueNames


class Lookahead:
    """A matcher of xgrammar's as a `unique_names.Matcher`."""

    def __init__(self, matcher: Any, vocab_size: int) -> None:  # noqa: ANN401  # xgrammar is untyped
        """vocab_size: width of the logits."""
        self._matcher = matcher
        self._vocab_size = vocab_size

    def deep_copy(self) -> Lookahead:
        """Return another one at the same place."""
        return Lookahead(self._matcher.fork(), self._vocab_size)

    def consume_token(self, token: int) -> bool:
        """Follow a token; False where it is not allowed."""
        return bool(self._matcher.accept_token(token))

    def compute_bitmask(self) -> bytes:
        """Return which tokens may come next, eos ids among them."""
        row = np.zeros((1, (self._vocab_size + 31) // 32), np.int32)
        self._matcher.fill_next_token_bitmask(row, 0)
        return row.tobytes()


class XgrammarGuide(HeldGuide):
    """A guide over one matcher of xgrammar. It tells no forced tokens: the library tells texts, not tokens."""

    __slots__ = ("_row", "_vocab_size", "matcher")

    def __init__(
        self,
        matcher: Any,  # noqa: ANN401  # xgrammar is untyped
        vocab_size: int,
        eos: frozenset[int],
        warnings: tuple[str, ...] = (),
        names: UniqueNames | None = None,
    ) -> None:
        """matcher: a `GrammarMatcher` at its start. vocab_size: width of the logits."""
        super().__init__(eos, warnings, names)
        self.matcher = matcher
        self._vocab_size = vocab_size
        self._row: NDArray[np.int32] | None = None

    @property
    def known(self) -> NDArray[np.int32] | None:
        """What may come next, [ceil(V / 32)] int32, where it was found out for `ended` already."""
        return self._row

    def _take(self, token: int) -> LmtoolError | None:
        self._row = None
        try:
            accepted = self.matcher.accept_token(token)
        except (RuntimeError, ValueError) as problem:
            return ServerError(f"the constraint could not follow token {token}: {str(problem)[:200]}")
        return None if accepted else ServerError(f"token {token} was picked that the constraint does not allow")

    def _legal(self, tokens: list[int]) -> int:
        ahead = self.matcher.fork()
        return next((at for at, token in enumerate(tokens) if not ahead.accept_token(token)), len(tokens))

    def _lookahead(self) -> Lookahead:
        return Lookahead(self.matcher, self._vocab_size)

    def _copy(self) -> XgrammarGuide:
        return XgrammarGuide(self.matcher.fork(), self._vocab_size, self._eos, self._warnings)

    def _is_whole(self) -> bool:
        return bool(self.matcher.is_completed())

    def _is_over(self) -> bool:
        """Whether the next mask has eos ids alone: the library does not say it otherwise."""
        if not self._is_whole():
            return False
        if self._row is None:
            self._row = np.frombuffer(self._lookahead().compute_bitmask(), np.int32)
        allowed = np.flatnonzero(np.unpackbits(self._row.view(np.uint8), bitorder="little"))
        return set(allowed.tolist()) <= self._eos if len(allowed) <= len(self._eos) else False
