"""Streams as the scheduler sees them, and the plan and the limits of one step. Plain ints: no tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable
    from collections.abc import Sequence as Many

    from lmtool.core.types import FinishReason
    from lmtool.inference.engine.prefix_cache import Prefix


@dataclass(slots=True, eq=False)
class Sequence:
    """One stream's ids and its place in the key-value cache. Plain ints: no tensors, no sinks.

    A GENERATE stream starts with its prompt in `tokens` and grows by one id a step. A SCORE stream has all its ids,
    prompt and scored ones, from the start, and ends once the last but one is computed; a prefill has its prompt, and
    ends once all of it is computed.
    """

    number: int
    """Order of arrival; unique within an engine."""
    tokens: list[int]
    """Prompt, then generated or scored ids."""
    prompt_length: int
    """Length of the prompt in `tokens`."""
    max_length: int
    """`len(tokens)` at which the stream ends with `length`; for SCORE the length itself, for a prefill one more."""
    scoring: bool = False
    """True if this is a SCORE stream."""
    prefill_only: bool = False
    """True if only keys and values of the prompt are computed."""
    stop_ids: frozenset[int] = frozenset()
    """Ids that end the stream with `stop` once sent: the model's eos ids and the request's own."""
    priority: int = 0
    """Lower ones are admitted first."""
    cache_salt: str = ""
    """Compartment of the prefix cache that its chunks are in."""
    client: Hashable = None
    """Owner of the sequence: different clients take turns in being admitted."""
    round: int = 0
    """Scheduling round in which it is admitted, see `WaitingQueue`."""
    aged: bool = False
    """True if it waited so long that it now ranks before all others, see `WaitingQueue`."""
    computed: int = 0
    """Positions from the start whose keys and values are stored."""
    recompute_to: int = 0
    """Positions that were stored before the sequence was preempted, and must be computed again."""
    blocks: list[int] = field(default_factory=list)
    """Blocks of the key-value cache that hold the computed positions, in order."""
    prefixes: list[Prefix] = field(default_factory=list)
    """Cached chunks that the first of `blocks` belong to; other sequences may use them, too."""
    cached_tokens: int | None = None
    """Positions that came from the prefix cache when the sequence was first admitted; None before that."""
    awaiting_constraint: bool = False
    """True if its constraint is still being compiled: the prompt must not be computed to its end yet."""
    awaiting_mask: bool = False
    """True if the mask of its next id is still being computed."""
    paused: bool = False
    """True if the reader wants nothing more for now."""
    forced_count: int = 0
    """Number of ids at the end of `tokens` that the constraint forced: their logits are still to be computed."""
    draft: list[int] = field(default_factory=list)
    """Ids that may follow `tokens`: the next step computes them too, and keeps those that it samples itself."""

    @property
    def generates(self) -> bool:
        """True if new ids are sampled."""
        return not self.scoring and not self.prefill_only

    @property
    def idle(self) -> bool:
        """True if nothing of it is to be computed just now."""
        return self.paused or self.awaiting_mask

    @property
    def own_blocks(self) -> list[int]:
        """The blocks that it shares with no other sequence."""
        return self.blocks[sum(len(prefix.blocks) for prefix in self.prefixes) :]

    @property
    def target(self) -> int:
        """Positions to compute before the next step's outcome is known; what follows the last id is not needed."""
        return len(self.tokens) - (self.scoring or len(self.tokens) >= self.max_length)

    @property
    def remaining(self) -> int:
        """Positions known but not computed yet."""
        return self.target - self.computed

    @property
    def decoding(self) -> bool:
        """True if the prompt is computed; ids after it may be known already, such as those a constraint forced."""
        return self.computed >= self.prompt_length and self.computed >= self.recompute_to and not self.scoring

    def ids(self, start: int, end: int) -> list[int]:
        """The ids at positions from `start` up to `end`, those of the draft after the known ones."""
        if not self.draft:
            return self.tokens[start:end]
        known = len(self.tokens)
        return self.tokens[start:end] + self.draft[max(start - known, 0) : max(end - known, 0)]

    def count_valid(self, sampled: Many[int]) -> int:
        """Number of a step's valid sampled ids: forced ones, those like the draft, and the first that differs."""
        expected = self.tokens[len(self.tokens) - self.forced_count :] + self.draft
        agree = (mine == other for mine, other in zip(sampled, expected, strict=False))
        return min(sum(takewhile(bool, agree)) + 1, len(sampled))

    def record(self, ids: Many[int], start: int, end: int) -> None:
        """Record that these positions were computed, up to `end`, and what their logits gave. Clears the draft.

        ids: those forced before, then new ones; of no effect where it does not generate.
        """
        self.computed = end
        if self.scoring or self.prefill_only:
            return
        if self.forced_count:
            forced = min(self.forced_count, len(self.tokens) - 1 - start, len(ids))
            assert [*ids[:forced]] == self.tokens[len(self.tokens) - self.forced_count :][:forced]
            self.forced_count -= forced
            ids = ids[forced:]
        self.tokens += ids
        self.draft = []
        known = len(self.tokens)
        if end >= known:  # what follows was computed of a draft that is wrong
            self.computed = known - 1

    def finish_reason(self, *, recorded: bool) -> FinishReason | None:
        """Reason why the sequence ends here, None if it continues. recorded: whether ids were recorded just now."""
        if self.scoring or self.prefill_only:
            return None if self.remaining else "stop" if self.scoring else "prefill"
        if not recorded or self.forced_count:
            return None
        if self.tokens[-1] in self.stop_ids:
            return "stop"
        return "length" if len(self.tokens) >= self.max_length else None

    @property
    def chunked_length(self) -> int:
        """Positions computed in chunks; those after were generated one at a time and are recomputed one at a time.

        A generated position therefore always goes through attention as one query, whether it was just sampled or is
        recomputed after a preemption: the bits are the same.
        """
        return self.target if self.scoring else self.prompt_length

    @property
    def capacity(self) -> int:
        """Positions that may ever be stored: the last id's keys and values are never needed."""
        return max(self.max_length - 1, 0)


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
    one chunk for each prompt that waits: many of them are computed faster in longer steps. None: as many as
    `max_batch_tokens` leaves."""
    free_cuts: bool = False
    """True if a position's numbers do not depend on which others its step computes: then a prompt is cut wherever a
    step is full."""
    cache_generated: bool = False
    """True if generated positions are cached, and recomputed, as prompts are: where their numbers are those that a
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
        """The position after the last one."""
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
        """True if the logits give the sequence one new id, and nothing else is known to follow."""
        sequence = self.sequence
        if sequence.forced_count or sequence.draft or sequence.scoring or sequence.prefill_only:
            return False
        return self.start + self.count == len(sequence.tokens)

    @property
    def ends_sequence(self) -> bool:
        """True if the sequence ends once this is computed, whatever is sampled."""
        if not self.sequence.generates:
            return self.end >= self.sequence.target
        return len(self.sequence.tokens) + 1 >= self.sequence.max_length and self.yields_one_id


@dataclass(slots=True)
class Plan:
    """Work of the next step."""

    spans: list[Span] = field(default_factory=list)
    fresh_blocks: list[int] = field(default_factory=list)
    """Blocks handed out for this step, to be cleared before use: they may hold another stream's numbers."""
    chunks: int = 0
    """Chunks of prompts chosen so far."""
    token_budget: float = 0
    """Remaining budget for prompts, in tokens at the start of a text."""

    @property
    def tokens(self) -> int:
        """Positions in all spans."""
        return sum([span.count for span in self.spans])
