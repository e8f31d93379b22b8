"""One stream as the scheduler sees it: its ids, how far they are computed, and what ends it."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable
    from collections.abc import Sequence as Many

    from lmtool.engine.prefix_cache import Prefix
    from lmtool.types import FinishReason


@dataclass(slots=True, eq=False)
class Sequence:
    """One stream's ids and its place in the key-value cache. Plain ints: no tensors, no sinks.

    A GENERATE stream starts with its prompt in `tokens` and grows by one id a step. A SCORE stream has all its ids,
    prompt and scored ones, from the start, and ends once the last but one is computed.
    """

    number: int
    """Order of arrival; unique within an engine."""
    tokens: list[int]
    """Prompt, then generated or scored ids."""
    prompt_length: int
    """How many of `tokens` are the prompt."""
    max_length: int
    """`len(tokens)` at which the stream ends with `length`; for SCORE the length itself."""
    scored: bool = False
    """Whether this is a SCORE stream."""
    stop_ids: frozenset[int] = frozenset()
    """Ids that end the stream with `stop` once sent: the model's eos ids and the request's own."""
    priority: int = 0
    """Lower ones get a place first."""
    client: Hashable = None
    """Whose it is: sequences of different clients take turns in getting a place."""
    round: int = 0
    """Its client's turn in which it gets a place, see `WaitingLine`."""
    elder: bool = False
    """Whether it waited so long that it now comes before all others, see `WaitingLine`."""
    computed: int = 0
    """Positions from the start whose keys and values are stored."""
    lost: int = 0
    """Positions whose keys and values were stored before the sequence gave way, and must be computed again."""
    blocks: list[int] = field(default_factory=list)
    """Blocks of the key-value cache that hold the computed positions, in order."""
    prefixes: list[Prefix] = field(default_factory=list)
    """Chunks that the first of `blocks` belong to; other sequences may use them, too."""
    reused: int | None = None
    """Positions that were taken from the prefix cache when the sequence was first admitted; None before that."""
    held: bool = False
    """Whether the prompt must not be computed to its end yet: its constraint is still being compiled."""
    paused: bool = False
    """Whether the reader asked for nothing more just now."""
    masking: bool = False
    """Whether it is still being found out what its constraint lets come next."""
    forced: int = 0
    """How many ids at the end of `tokens` nothing was drawn for: they are known, and their logits still wanted."""
    draft: list[int] = field(default_factory=list)
    """Ids that may follow `tokens`: the next step computes them too, and keeps those that it draws itself."""

    @property
    def idle(self) -> bool:
        """Whether nothing of it is to be computed just now."""
        return self.paused or self.masking

    @property
    def own_blocks(self) -> list[int]:
        """The blocks that are nobody else's."""
        return self.blocks[sum(len(prefix.blocks) for prefix in self.prefixes) :]

    @property
    def target(self) -> int:
        """Positions that must be computed before the next step's outcome is known; nothing is wanted after the last."""
        return len(self.tokens) - (self.scored or len(self.tokens) >= self.max_length)

    @property
    def remaining(self) -> int:
        """Positions known but not computed yet."""
        return self.target - self.computed

    @property
    def decoding(self) -> bool:
        """Whether the prompt is computed; ids behind it may be known already, such as those a constraint forced."""
        return not self.scored and self.computed >= max(self.chunked_length, self.lost)

    def ids(self, start: int, end: int) -> list[int]:
        """The ids at positions from `start` up to `end`, those of the draft behind the known ones."""
        known = len(self.tokens)
        return self.tokens[start:end] + self.draft[max(start - known, 0) : max(end - known, 0)]

    def foretold(self, drawn: Many[int]) -> int:
        """How many of the ids drawn in a step hold: forced ones, those like the draft, and the first that is not."""
        expected = self.tokens[len(self.tokens) - self.forced :] + self.draft
        agree = (mine == other for mine, other in zip(drawn, expected, strict=False))
        return min(sum(takewhile(bool, agree)) + 1, len(drawn))

    def take(self, ids: Many[int], positions: range) -> None:
        """Record what the logits at these positions gave: ids known already, then new ones. The draft is done with."""
        for position, token in zip(positions, ids, strict=False):
            if position + 1 < len(self.tokens):
                assert self.tokens[position + 1] == token
                self.forced -= 1
            else:
                self.tokens.append(token)
        self.draft = []

    def finish_reason(self, *, took: bool) -> FinishReason | None:
        """Why the sequence ends here, None if it goes on. took: whether ids were recorded just now."""
        if self.scored:
            return "stop" if self.remaining == 0 else None
        if not took or self.forced:
            return None
        if self.tokens[-1] in self.stop_ids:
            return "stop"
        return "length" if len(self.tokens) >= self.max_length else None

    @property
    def chunked_length(self) -> int:
        """Positions computed in chunks; those behind were generated one at a time and are recomputed one at a time.

        A generated position therefore always goes through attention as one query, whether it was just sampled or is
        recomputed after a preemption: the bits are the same.
        """
        return self.target if self.scored else self.prompt_length

    @property
    def capacity(self) -> int:
        """Positions that may ever be stored: the last id's keys and values are never needed."""
        return max(self.max_length - 1, 0)
