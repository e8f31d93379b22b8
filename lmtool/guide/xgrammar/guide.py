"""One stream's way through its constraint, over xgrammar's matcher."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lmtool.errors import LmtoolError, ServerError
from lmtool.guide.held_guide import HeldGuide

if TYPE_CHECKING:
    from numpy.typing import NDArray


class XgrammarGuide(HeldGuide):
    """A guide over one matcher of xgrammar. It tells no forced tokens: the library tells texts, not tokens."""

    __slots__ = ("_row", "_vocab_size", "matcher")

    def __init__(self, matcher: Any, vocab_size: int, eos: frozenset[int], warnings: tuple[str, ...] = ()) -> None:  # noqa: ANN401  # xgrammar is untyped
        """matcher: a `GrammarMatcher` at its start. vocab_size: width of the logits."""
        super().__init__(eos, warnings)
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

    def _copy(self) -> XgrammarGuide:
        return XgrammarGuide(self.matcher.fork(), self._vocab_size, self._eos, self._warnings)

    def _is_whole(self) -> bool:
        return bool(self.matcher.is_completed())

    def _is_over(self) -> bool:
        """Whether the next mask has eos ids alone: the library does not say it otherwise."""
        if not self._is_whole():
            return False
        if self._row is None:
            row = np.zeros((1, (self._vocab_size + 31) // 32), np.int32)
            self.matcher.fill_next_token_bitmask(row, 0)
            self._row = row[0]
        allowed = np.flatnonzero(np.unpackbits(self._row.view(np.uint8), bitorder="little"))
        return set(allowed.tolist()) <= self._eos if len(allowed) <= len(self._eos) else False
