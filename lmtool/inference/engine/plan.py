"""What one step computes, and its limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lmtool.inference.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one step."""

    max_streams: int
    """Sequences running at once."""
    max_batch_tokens: int
    """Tokens a step. Running streams always get theirs, and so does one chunk of a prompt, even above it."""
    chunk_tokens: int
    """A prompt is cut at multiples of this position, whatever else runs: a chunk is computed whole or not at all,
    unless `free_cuts`."""
    block_tokens: int
    """Positions a block of the key-value cache holds."""
    max_scored_rows: int
    """Scored positions a step: each needs a row of logits as wide as the vocabulary. One chunk is always allowed."""
    prompt_share: int | None = None
    """Tokens of prompts a step for each token of running streams, so that a long prompt does not stall them; at least
    one chunk for each prompt that waits: a crowd of them is computed faster in longer steps. None: as many as
    `max_batch_tokens` leaves."""
    free_cuts: bool = False
    """Whether a position's numbers do not depend on which others its step computes: then a prompt is cut wherever a
    step is full."""
    cache_generated: bool = False
    """Whether generated positions are cached, and recomputed, as prompts are: where their numbers are those that a
    prompt's would be, or nobody was promised that they are."""
    doubling_position: int | None = None
    """The position at which a token takes twice as long as at the start of its text, because it attends to all before
    it: a prompt's tokens count accordingly. None: all count the same."""


@dataclass(slots=True)
class Span:
    """Consecutive positions of one sequence, computed in one step."""

    sequence: Sequence
    start: int
    """First position."""
    count: int
    """Number of positions."""

    @property
    def end(self) -> int:
        """The position behind the last one."""
        return self.start + self.count

    @property
    def logits(self) -> range:
        """Positions whose logits are needed: all that predict a scored, a forced, a drafted or an unknown id."""
        sequence, start = self.sequence, self.start
        end = start + self.count
        if sequence.prefill_only:
            return range(end, end)
        first = sequence.prompt_length - 1 if sequence.scoring else len(sequence.tokens) - 1 - sequence.forced_count
        if first > start:
            start = min(first, end)
        return range(start, end)

    @property
    def yields_one_id(self) -> bool:
        """Whether the logits give the sequence one new id, and nothing else is known to follow."""
        sequence = self.sequence
        if sequence.forced_count or sequence.draft or sequence.scoring or sequence.prefill_only:
            return False
        return self.start + self.count == len(sequence.tokens)

    @property
    def ends_sequence(self) -> bool:
        """Whether the sequence ends once this is computed, whatever is sampled."""
        if not self.sequence.generates:
            return self.end >= self.sequence.target
        return len(self.sequence.tokens) + 1 >= self.sequence.max_length and self.yields_one_id


@dataclass(slots=True)
class Plan:
    """What the next step computes."""

    spans: list[Span] = field(default_factory=list)
    fresh_blocks: list[int] = field(default_factory=list)
    """Blocks handed out for this step, to be cleared before use: they may hold another stream's numbers."""
    chunks: int = 0
    """Chunks of prompts chosen so far."""
    room: float = 0
    """What prompts may still add, in tokens at the start of a text."""

    @property
    def tokens(self) -> int:
        """Positions in all spans."""
        return sum([span.count for span in self.spans])
