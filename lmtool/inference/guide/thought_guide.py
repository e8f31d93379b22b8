"""Guide through a thought before a constrained answer: finds its end and enforces its token budget."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from lmtool.core.errors import ServerError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llguidance import LLTokenizer
    from numpy.typing import NDArray

    from lmtool.core.errors import LmtoolError
    from lmtool.core.reasoning import ThoughtMarks
    from lmtool.inference.guide.llguidance import MatcherGuide

Phase: TypeAlias = Literal["opening", "thought", "answer"]
"""`opening`: a thought or the answer may begin; `thought`: inside the thought; `answer`: in it or forced to it."""


class ThoughtTokens:
    """Tokens of a vocabulary that matter for one kind of thought marks. Safe from any thread."""

    def __init__(self, thought: ThoughtMarks, tokenizer: LLTokenizer, eos: frozenset[int]) -> None:
        """Scan the vocabulary: 0.1 s for 100,000 tokens."""
        self.eos = eos
        self.opening = thought.opening.encode()
        self.closings = tuple(mark.encode() for mark in thought.closings)
        self.separator = thought.separator.encode()
        self.longest = max(map(len, self.closings))
        self._tokenizer = tokenizer
        self._overrun: dict[bytes, list[int]] = {}
        """Tokens that close a thought and continue with more than the separator, by the start of the mark before."""
        for token in range(tokenizer.vocab_size):
            self._note_overrun(token, self.piece(token))

    def piece(self, token: int) -> bytes:
        """Bytes of a token; for a special token, its name."""
        found: bytes = self._tokenizer.decode_bytes([token])
        return found

    def _note_overrun(self, token: int, piece: bytes) -> None:
        for mark in self.closings:
            if mark[-1:] not in piece:
                continue
            for length in range(len(mark)):
                at = piece.find(mark) if not length else 0 if piece.startswith(mark[length:]) else -1
                rest = piece[at + len(mark) - length :]
                if at >= 0 and not self.separator.startswith(rest):
                    self._overrun.setdefault(mark[:length], []).append(token)

    def overrun(self, tail: bytes) -> list[int]:
        """Tokens forbidden after these last bytes of a thought, because a constrained answer would begin inside them.

        tail: last bytes of the thought.
        """
        return [token for begun, tokens in self._overrun.items() if tail.endswith(begun) for token in tokens]

    def find_closing(self, text: bytes) -> bytes | None:
        """Bytes after the first closing mark of a text; None without one."""
        ends = [at + len(mark) for mark in self.closings if (at := text.find(mark)) >= 0]
        return text[min(ends) :] if ends else None

    def openings(self, written: int) -> list[int]:
        """Tokens that continue the opening mark. written: bytes of the mark that are already written."""
        rest = self.opening[written:]
        return [token for token, piece in self._beginnings if rest.startswith(piece) or piece.startswith(rest)]

    @cached_property
    def _beginnings(self) -> list[tuple[int, bytes]]:
        """Tokens that are parts of the opening mark or begin with one of its suffixes."""
        parts = {self.opening[first:end] for end in range(len(self.opening) + 1) for first in range(end)}
        ends = tuple(self.opening[first:] for first in range(len(self.opening)))
        pieces = ((token, self.piece(token)) for token in range(self._tokenizer.vocab_size))
        return [(token, piece) for token, piece in pieces if piece in parts or piece.startswith(ends)]


class ThoughtGuide:
    """An `interfaces.Guide` that allows a thought, ends it at its budget, then applies the constraint.

    With a constraint, no eos id is legal before it is met. The separator between the closing mark and the answer is
    forced; the constraint begins after it. Without a constraint, any token is legal once the thought has ended.
    """

    __slots__ = (
        "_budget",
        "_count",
        "_error",
        "_forced",
        "_inner",
        "_opened",
        "_phase",
        "_tail",
        "_thought",
        "_tokens",
        "_trial",
    )

    def __init__(self, thought: ThoughtMarks, tokens: ThoughtTokens, inner: MatcherGuide | None) -> None:
        """inner: the constraint at its start, or None."""
        self._thought = thought
        self._tokens = tokens
        self._inner = inner
        self._budget = thought.budget
        self._phase: Phase = "opening" if thought.opening else "thought"
        self._opened = b""
        """In phase `opening`: bytes of the mark so far."""
        self._trial = inner.fork() if inner is not None and thought.opening else None
        """In phase `opening`: the constraint advanced by the same text, while that may also be an answer."""
        self._tail = b""
        """In phase `thought`: its last bytes, fewer than a mark has."""
        self._count = 0
        """Tokens of the thought."""
        self._forced: list[int] = []
        """Ids that must follow and lead to the answer."""
        self._error: LmtoolError | None = None
        if thought.budget == 0:
            self._force(thought.empty or thought.ending)

    @property
    def slow(self) -> bool:
        """See `interfaces.Guide.slow`."""
        followed = self.followed()
        return followed is not None and followed.slow

    @property
    def warnings(self) -> tuple[str, ...]:
        """See `interfaces.Guide.warnings`."""
        return () if self._inner is None else self._inner.warnings

    @property
    def _follows(self) -> bool:
        """True if the constraint alone decides the next token."""
        return self._phase == "answer" and not self._forced

    def advance(self, token: int) -> None:
        """Advance by the token that the stream was given."""
        if self._error is not None:
            return
        if self._forced:
            self._advance_forced(token)
        elif self._phase == "thought":
            self._advance_thought(token)
        elif self._phase == "opening":
            self._advance_opening(token)
        elif self._inner is not None:
            self._inner.advance(token)

    def _advance_forced(self, token: int) -> None:
        if token == self._forced[0]:
            del self._forced[0]
        else:
            self._error = ServerError(f"token {token} was sampled where the thought had to end with {self._forced[0]}")

    def _advance_thought(self, token: int) -> None:
        if self._inner is not None and token in self._tokens.eos:
            self._error = ServerError(f"the eos id {token} was sampled in the thought before a constrained answer")
            return
        self._count += 1
        self._think(self._tokens.piece(token))
        if self._phase == "thought" and self._budget is not None and self._count >= self._budget:
            self._force(self._thought.ending)

    def _think(self, piece: bytes) -> None:
        text = self._tail + piece
        rest = self._tokens.find_closing(text)
        if rest is None:
            self._tail = text[len(text) - self._tokens.longest + 1 :] if len(text) >= self._tokens.longest else text
            return
        self._phase = "answer"
        if self._inner is None:
            return
        if not self._tokens.separator.startswith(rest):
            self._error = ServerError(f"the sampled token closes the thought and begins the answer: {rest!r}")
        elif len(rest) < len(self._tokens.separator):
            self._forced = list(self._thought.separators[len(rest)])

    def _advance_opening(self, token: int) -> None:
        """Advance by a token of the opening mark or of the answer."""
        text, mark = self._opened + self._tokens.piece(token), self._tokens.opening
        if self._inner is None:
            text = text.lstrip()  # as the reader of the text does
        if text.startswith(mark):
            self._phase, self._trial = "thought", None
            self._think(text[len(mark) :])
        elif mark.startswith(text) and token not in self._tokens.eos:
            self._opened = text
            if self._trial is not None and not self._trial.accepts([token]):
                self._trial = None
            elif self._trial is not None:
                self._trial.advance(token)
        else:
            self._begin_answer(token)

    def _begin_answer(self, token: int) -> None:
        """Advance by a token that rules out a thought; the bytes of the mark so far belong to the answer."""
        self._phase = "answer"
        if self._inner is None:
            return
        if self._trial is None:
            self._error = ServerError(f"token {token} was sampled in the middle of the mark that opens a thought")
        else:
            self._inner, self._trial = self._trial, None
            self._inner.advance(token)

    def _force(self, ids: Sequence[int]) -> None:
        self._forced, self._phase = list(ids), "answer"

    def followed(self) -> MatcherGuide | None:
        """Guide whose mask `finish_mask` completes; None if there is none."""
        if self._phase == "opening":
            return self._trial
        return self._inner if self._follows else None

    def finish_mask(self, row: NDArray[np.uint32]) -> None:
        """Complete the mask. row: [ceil(V / 32)], that of `followed` if it is not None; changed in place."""
        if self._error is not None:
            row[:] = 0
            _set(row, tuple(self._tokens.eos))
        elif self._forced:
            row[:] = 0
            _set(row, self._forced[:1])
        elif self._phase == "thought":
            row[:] = ~np.uint32(0)
            if self._inner is not None:
                for token in (*self._tokens.eos, *self._tokens.overrun(self._tail)):
                    row[token // 32] &= ~np.uint32(1 << token % 32)
        elif self._inner is None:
            row[:] = ~np.uint32(0)
        elif self._phase == "opening":
            if self._trial is None:
                row[:] = 0
            _set(row, self._tokens.openings(len(self._opened)))

    def forced(self) -> list[int]:
        """Return the tokens that must follow, without advancing."""
        if self._error is not None or not (self._forced or self._follows):
            return []
        return [*self._forced, *(() if self._inner is None else self._inner.forced())]

    def accepts(self, draft: Sequence[int]) -> int:
        """Return the number of legal tokens at the start of a draft."""
        return 0 if self._error is not None else self.fork().follow(draft)

    def follow(self, draft: Sequence[int]) -> int:
        """Advance through a draft up to the constrained answer; return how many of its tokens are legal."""
        for at, token in enumerate(draft):
            if self._follows:
                return len(draft) if self._inner is None else at + self._inner.accepts(draft[at:])
            if self._phase == "opening" and self._inner is not None:  # this step is decided by its own mask
                return at
            self.advance(token)
            if self._error is not None:
                return at
        return len(draft)

    def fork(self) -> ThoughtGuide:
        """Return an independent guide in the same state."""
        copy = ThoughtGuide(self._thought, self._tokens, None if self._inner is None else self._inner.fork())
        copy._phase, copy._opened, copy._tail = self._phase, self._opened, self._tail
        copy._trial = None if self._trial is None else self._trial.fork()
        copy._count, copy._forced, copy._error = self._count, [*self._forced], self._error
        return copy

    def may_end(self) -> bool:
        """True if the text so far is a complete match, so that eos is legal."""
        if self._error is not None or self._forced:
            return False
        if self._inner is None:
            return True
        followed = self.followed()
        return followed is not None and followed.may_end()

    def ended(self) -> bool:
        """True if only an eos id can follow."""
        return self._error is None and self._follows and self._inner is not None and self._inner.ended()

    def error(self) -> LmtoolError | None:
        """Return the error that ends the stream, or None."""
        return self._error or (None if self._inner is None else self._inner.error())


def _set(row: NDArray[np.uint32], tokens: Sequence[int]) -> None:
    for token in tokens:
        row[token // 32] |= np.uint32(1 << token % 32)
