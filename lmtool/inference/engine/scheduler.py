"""Chooses which sequences run in the next step, with how many tokens: decode first, then prompts in chunks."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from lmtool.inference.engine.plan import Plan, Span
from lmtool.inference.engine.waiting_queue import WaitingQueue, rank

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Sequence as Many

    from lmtool.core.types import FinishReason
    from lmtool.inference.engine.plan import Limits, Sequence
    from lmtool.inference.engine.prefix_cache import BlockAllocator, Prefix, PrefixCache


class BlockUsage(NamedTuple):
    """Blocks of the key-value cache."""

    total: int
    used: int
    """By sequences, those in the prefix cache that one of them uses among these."""
    cached: int
    """In the prefix cache, whether a sequence uses them or not."""


class SequenceBlocks:
    """Gives sequences blocks and takes them back. Who gets them, and who gives way, the scheduler decides."""

    def __init__(self, limits: Limits, allocator: BlockAllocator, cache: PrefixCache | None) -> None:
        """cache: of computed chunks; None: there is none."""
        self.allocator = allocator
        self.cache = cache
        self._chunk_tokens, self._block_tokens = limits.chunk_tokens, limits.block_tokens
        self._cache_generated = limits.cache_generated

    @property
    def free(self) -> int:
        """Blocks that no sequence uses."""
        return self.allocator.free + (0 if self.cache is None else self.cache.idle_blocks)

    @property
    def usage(self) -> BlockUsage:
        """Current usage of the blocks. Safe from any thread."""
        cached, idle = (0, 0) if self.cache is None else (self.cache.blocks, self.cache.idle_blocks)
        return BlockUsage(self.allocator.total, self.allocator.total - self.allocator.free - idle, cached)

    def fits(self, positions: int) -> bool:
        """True if a sequence of this many stored positions can be computed at all, at least alone."""
        return -(-positions // self._block_tokens) <= self.allocator.total

    def missing(self, sequence: Sequence, positions: int) -> int:
        """Blocks that a sequence lacks for its first `positions`; 0 or less where it has them."""
        return -(-positions // self._block_tokens) - len(sequence.blocks)

    def extend(self, sequence: Sequence, count: int) -> list[int]:
        """Give a sequence this many more blocks, at most `free`; unused chunks of the prefix cache are dropped."""
        while count > self.allocator.free:
            assert self.cache is not None
            self.allocator.release(self.cache.evict())
        blocks = self.allocator.allocate(count)
        assert blocks is not None
        sequence.blocks.extend(blocks)
        return blocks

    def freed_by(self, sequences: Many[Sequence]) -> int:
        """Blocks that releasing all of these would free."""
        users = Counter(prefix for sequence in sequences for prefix in sequence.prefixes)
        shared = sum(len(prefix.blocks) for prefix, count in users.items() if count == prefix.users)
        return shared + sum(len(sequence.own_blocks) for sequence in sequences)

    def release(self, sequence: Sequence) -> None:
        """Take all blocks back; what was computed in them is to be computed again."""
        self.allocator.release(sequence.own_blocks)
        if self.cache is not None:
            self.cache.release(sequence.prefixes)
        sequence.blocks, sequence.prefixes, sequence.draft = [], [], []
        sequence.recompute_to, sequence.computed = max(sequence.recompute_to, sequence.computed), 0

    def chunked_length(self, sequence: Sequence) -> int:
        """Positions of a sequence that are computed in chunks, and cached."""
        return sequence.target if self._cache_generated else sequence.chunked_length

    def reusable(self, sequence: Sequence) -> int:
        """Number of positions of its prompt that may come from the prefix cache, see `PrefixCache.reusable`."""
        return 0 if self.cache is None else self.cache.reusable(sequence.prompt_length)

    def cached(self, sequence: Sequence) -> list[Prefix]:
        """Chunks of a sequence that are in the prefix cache."""
        if self.cache is None:
            return []
        return self.cache.match(sequence.tokens, self.reusable(sequence), sequence.cache_salt)

    def begin_with(self, sequence: Sequence, cached: list[Prefix]) -> None:
        """Let a sequence that has no blocks begin with these chunks."""
        if self.cache is None:
            return
        self.cache.acquire(cached)
        sequence.prefixes = list(cached)
        sequence.blocks = [block for prefix in cached for block in prefix.blocks]
        sequence.computed = len(sequence.blocks) * self._block_tokens

    def cache_chunks(self, sequence: Sequence) -> None:
        """Add the chunks that a sequence has just completed to the prefix cache."""
        if self.cache is None or not sequence.blocks:
            return
        size = self._chunk_tokens
        blocks, whole = size // self._block_tokens, min(sequence.computed, self.chunked_length(sequence)) // size
        for n in range(len(sequence.prefixes), whole):
            own = sequence.blocks[n * blocks : (n + 1) * blocks]
            parent = sequence.prefixes[-1] if sequence.prefixes else sequence.cache_salt
            prefix = self.cache.add(parent, sequence.tokens[n * size : (n + 1) * size], own)
            if prefix.blocks != tuple(own):  # another sequence computed the same bits first
                sequence.blocks[n * blocks : (n + 1) * blocks] = prefix.blocks
                self.allocator.release(own)
            sequence.prefixes.append(prefix)

    def discard(self, sequence: Sequence) -> None:
        """Let no other sequence begin with what was computed of this one."""
        if self.cache is not None:
            self.cache.discard(sequence.prefixes)

    def forget(self, keep_blocks: int) -> Iterator[tuple[int, int]]:
        """Drop cached chunks that nobody uses, the least recently used first, until they hold at most `keep_blocks`.

        Returns runs of blocks whose memory nobody needs then, see `BlockAllocator.take_touched`.
        """
        while self.cache is not None and self.cache.idle_blocks > keep_blocks:
            self.allocator.release(self.cache.evict())
        return self.allocator.take_touched()


_AHEAD_TOKENS = 256
"""Most tokens of a step that computes nothing but prefills ahead of their prompts."""


class Scheduler:
    """Owns the queue and the blocks. `plan` chooses, the caller computes, `commit` records the outcome.

    Between `plan` and `commit` no other method may be called but `remove`, `add` and, once, `plan_ahead`: its result is
    then committed in its turn, or dropped, before the next `plan`.
    """

    def __init__(self, limits: Limits, allocator: BlockAllocator, cache: PrefixCache | None = None) -> None:
        """cache: of computed chunks of prompts; None: there is none."""
        self._limits = limits
        self._blocks = SequenceBlocks(limits, allocator, cache)
        self._waiting = WaitingQueue()
        self.admitted: list[Sequence] = []
        """Sequences that run, idle ones included."""
        self.admissions = 0
        """Sequences admitted so far; one that was preempted counts again."""
        self.ended = self.stopped = self.generated = 0
        """Admitted sequences that have ended, those of them that ended before their limit, and generated ids."""

    @property
    def running(self) -> int:
        """Admitted sequences, idle ones included."""
        return len(self.admitted)

    @property
    def waiting(self) -> int:
        """Sequences not admitted yet."""
        return len(self._waiting)

    @property
    def free_positions(self) -> int:
        """Positions that fit into blocks which no sequence has, or needs next."""
        needed = sum(max(self._blocks.missing(s, s.target), 0) + 1 for s in self.admitted)
        return (self._blocks.free - needed) * self._limits.block_tokens

    @property
    def queue(self) -> Iterator[Sequence]:
        """Sequences that wait, in order of service."""
        return self._waiting.in_order()

    @property
    def blocks(self) -> BlockUsage:
        """Current usage of the blocks. Safe from any thread."""
        return self._blocks.usage

    def cached_positions(self, sequence: Sequence) -> int:
        """Number of positions of a waiting sequence that are in the prefix cache. For the thread that plans."""
        return sum(len(prefix.blocks) for prefix in self._blocks.cached(sequence)) * self._limits.block_tokens

    def place(self, sequence: Sequence) -> int | None:
        """Queue position of a sequence, from 1; None if it does not wait. Safe from any thread."""
        return self._waiting.place(sequence)

    def decoding(self) -> list[Sequence]:
        """Sequences that most likely get an id in the next step: each may get a draft before `plan`."""
        return [s for s in self.admitted if s.decoding and not s.idle][: self._limits.max_streams]

    def fits(self, positions: int) -> bool:
        """True if a sequence of this many stored positions can be computed at all, at least alone."""
        return self._blocks.fits(positions)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence after those that rank before it, see `WaitingQueue`."""
        assert self.fits(sequence.capacity)
        self._waiting.join(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence wherever it is, and free its blocks."""
        self._blocks.release(sequence)
        if sequence in self._waiting:
            self._waiting.remove(sequence)
        if sequence in self.admitted:
            self.admitted.remove(sequence)
            self.ended += 1
            self.stopped += len(sequence.tokens) < sequence.max_length

    def discard(self, sequence: Sequence) -> None:
        """Let no other sequence begin with what was computed of this one."""
        self._blocks.discard(sequence)

    def forget(self, keep_blocks: int) -> Iterator[tuple[int, int]]:
        """See `SequenceBlocks.forget`."""
        return self._blocks.forget(keep_blocks)

    def plan(self) -> Plan:
        """Choose the next step; no spans when nothing can run."""
        plan = Plan()
        decoding, prompts, prefills = self._ready()
        for sequence in decoding:
            self._decode(plan, sequence)
        if not (prompts or prefills or self._waiting):
            return plan
        free_slots = self._limits.max_streams - len(decoding) - len(prompts)
        newcomers = islice((s for s in self._waiting if not s.prefill_only), max(free_slots, 0))
        plan.token_budget = self._prompt_budget(plan, len(prompts) + sum(1 for _ in newcomers))
        for sequence in prompts:
            self._prefill(plan, sequence)
        self._admit(plan, free_slots, prefill_only=False)
        if not any(not s.prefill_only for s in self._waiting):
            self._prefill_ahead(plan, prefills)
        return plan

    def _ready(self) -> tuple[list[Sequence], list[Sequence], list[Sequence]]:
        """Admitted sequences that can run: decoding ones, prompts, and those that only prefill ahead of others."""
        decoding: list[Sequence] = []
        prompts: list[Sequence] = []
        prefills: list[Sequence] = []
        for sequence in self.admitted:
            if sequence.paused or sequence.awaiting_mask or self._blocked(sequence, sequence.computed):
                continue
            if sequence.prefill_only:
                prefills.append(sequence)
            elif len(decoding) + len(prompts) < self._limits.max_streams:
                (decoding if sequence.decoding else prompts).append(sequence)
        return decoding, prompts, prefills

    def plan_ahead(self, plan: Plan) -> Plan | None:
        """The step after one that is being computed, if that is known before its outcome is; None otherwise.

        It is known where every sequence to run needs only the one id that `plan` yields, and none must be preempted.
        Sequences that finished or paused meanwhile are dropped at commit.
        """
        free_slots, block_tokens = self._limits.max_streams, self._limits.block_tokens
        spans = {span.sequence: span for span in plan.spans}
        ahead, growing = Plan(), []
        for sequence in self.admitted:
            if sequence.paused or sequence.awaiting_mask:
                continue
            span = spans.get(sequence)
            if span is None or not (span.yields_one_id or span.ends_sequence):
                return None
            length = len(sequence.tokens)
            if length + 1 >= sequence.max_length:  # it ends, as a text that is scored or a prefill does
                continue
            ahead.spans.append(Span(sequence, length, 1))
            if length >= len(sequence.blocks) * block_tokens:
                growing.append(sequence)
        running = len(ahead.spans)
        newcomers = running < free_slots and any(not self._blocked(s, 0) for s in self._waiting)
        if not 0 < running <= free_slots or newcomers or len(growing) > self._blocks.free:
            return None
        for sequence in growing:
            self._reserve(ahead, sequence, len(sequence.tokens) + 1)
        return ahead

    def commit(self, plan: Plan, sampled: Many[Many[int]]) -> list[FinishReason | None]:
        """Record a computed step; the reason why each span's sequence ended, None for those that continue.

        sampled: the ids that each span's logits gave, from its first position with logits on: forced ones, then those
        of `Sequence.draft` that were right, then one more. Nothing for a prompt not yet at its end; for SCORE they are
        of no effect. Only the last of them may end the sequence. Ended sequences are removed and their blocks freed.
        """
        reasons: list[FinishReason | None] = []
        chunk_tokens, cache_chunks = self._limits.chunk_tokens, self._blocks.cache_chunks
        for span, ids in zip(plan.spans, sampled, strict=True):
            sequence = span.sequence
            self.generated += len(ids)
            sequence.record(ids, span.start, span.start + span.count)
            if sequence.computed >= (len(sequence.prefixes) + 1) * chunk_tokens:
                cache_chunks(sequence)
            reason = sequence.finish_reason(recorded=bool(ids))
            if reason is not None:
                self.remove(sequence)
            reasons.append(reason)
        return reasons

    def _decode(self, plan: Plan, sequence: Sequence) -> None:
        """Compute the known ids, and the draft where there are free blocks for it."""
        start, limits = sequence.computed, self._limits
        count = min(sequence.remaining, limits.chunk_tokens)
        room = len(sequence.blocks) * limits.block_tokens  # none where it was preempted for another of this step
        if not room or (start + count > room and not self._reserve(plan, sequence, start + count)):
            return
        if sequence.draft:
            del sequence.draft[self._draft_limit(sequence, count) :]
            count += len(sequence.draft)
            self._reserve(plan, sequence, start + count)
        plan.spans.append(Span(sequence, start, count))

    def _prompt_budget(self, plan: Plan, prompt_count: int) -> float:
        """Token budget of prompts in a step with the running streams. prompt_count: prompts that may join it."""
        limits, tokens = self._limits, plan.tokens
        left = limits.max_batch_tokens - tokens
        if limits.prompt_share is None or not plan.spans:
            return left
        return min(left, max(limits.chunk_tokens * max(prompt_count, 1), limits.prompt_share * tokens))

    def _prefill_cost(self, position: int) -> float:
        """Cost of a prompt's token at this position, in tokens at the start of a text."""
        return 1 if self._limits.doubling_position is None else 1 + position / self._limits.doubling_position

    def _draft_limit(self, sequence: Sequence, count: int) -> int:
        """Number of drafted ids that can be computed after `count` known ones."""
        if count < sequence.remaining:
            return 0
        blocks = len(sequence.blocks) + self._blocks.allocator.free
        return max(min(blocks * self._limits.block_tokens, sequence.capacity) - len(sequence.tokens), 0)

    def _prefill(self, plan: Plan, sequence: Sequence) -> None:
        """Give the sequence as many whole chunks as the step has room for; the step's first one gets at least one."""
        if sequence not in self.admitted:
            return
        end = sequence.computed
        while end < sequence.target:
            step = self._step(plan, sequence, end)
            if not step or self._blocked(sequence, end) or not self._reserve(plan, sequence, end + step):
                break
            if end == sequence.computed:
                plan.spans.append(Span(sequence, end, step))
            else:
                plan.spans[-1].count += step
            plan.token_budget -= step * self._prefill_cost(end)
            end += step
            plan.chunks += 1

    def _prefill_ahead(self, plan: Plan, admitted: Many[Sequence]) -> None:
        """Give requests that sample nothing what others leave of a step; beside others at most one chunk.

        Alone, steps are short all the same: who comes meanwhile waits for the end of one.
        """
        plan.token_budget = min(plan.token_budget, self._limits.chunk_tokens if plan.spans else _AHEAD_TOKENS)
        for sequence in admitted[: self._limits.max_streams - len(plan.spans)]:
            self._prefill(plan, sequence)
        self._admit(plan, free_slots=self._limits.max_streams - len(plan.spans), prefill_only=True)

    def _step(self, plan: Plan, sequence: Sequence, position: int) -> int:
        """Number of positions to compute from `position` on: up to the next cut, or as many as the budget allows."""
        step = self._next_chunk(sequence, position)
        has_rows = self._has_rows(plan, sequence, position, step)
        if has_rows and step * self._prefill_cost(position) <= plan.token_budget:
            return step
        if not self._limits.free_cuts:
            return 0 if plan.chunks else step
        fitting = int(plan.token_budget / self._prefill_cost(position)) if has_rows else 0
        return min(step, max(fitting, 0 if plan.chunks else 1))

    def _blocked(self, sequence: Sequence, position: int) -> bool:
        """True if nothing can be computed from `position` on before the sequence's constraint is compiled.

        The last chunk of a prompt predicts a token, and no token may be sampled yet.
        """
        return sequence.awaiting_constraint and position + self._next_chunk(sequence, position) >= sequence.target

    def _has_rows(self, plan: Plan, sequence: Sequence, end: int, step: int) -> bool:
        """True if the logits of these positions may be part of the step."""
        if not sequence.scoring or end + step < sequence.prompt_length:
            return True
        rows = sum(len(span.logits) for span in plan.spans if span.sequence.scoring)
        return rows + step <= self._limits.max_scored_rows

    def _next_chunk(self, sequence: Sequence, position: int) -> int:
        """Positions from `position` to the next cut."""
        last = self._blocks.chunked_length(sequence)
        if position >= last:
            return 1
        cut = (position // self._limits.chunk_tokens + 1) * self._limits.chunk_tokens
        return min(cut, last) - position

    def _admit(self, plan: Plan, free_slots: int, *, prefill_only: bool) -> None:
        """Admit waiting sequences in order, while there are free slots, budget, and blocks for all known positions."""
        for sequence in self._waiting:
            if sequence.prefill_only != prefill_only:
                continue
            cached = self._blocks.cached(sequence)
            start = sum(len(prefix.blocks) for prefix in cached) * self._limits.block_tokens
            if self._blocked(sequence, start) or (free_slots > 0 and self._computed_now(plan, sequence, start)):
                continue
            if free_slots <= 0 or not self._step(plan, sequence, start):
                return
            if not self._make_room(sequence, cached):
                return
            self._waiting.serve(sequence)
            self.admissions += 1
            insort(self.admitted, sequence, key=rank)
            self._prefill(plan, sequence)
            free_slots -= 1

    def _computed_now(self, plan: Plan, sequence: Sequence, start: int) -> bool:
        """True if another sequence of this step computes the chunk from `start` on, so that waiting saves work.

        So of many streams with a common beginning the first one computes it, and the others follow when it is done.
        """
        end = start + self._limits.chunk_tokens
        if end > self._blocks.reusable(sequence):
            return False
        return any(
            span.start <= start
            and span.sequence.cache_salt == sequence.cache_salt
            and end <= min(span.end, self._blocks.chunked_length(span.sequence))
            and span.sequence.tokens[:end] == sequence.tokens[:end]
            for span in plan.spans
        )

    def _make_room(self, sequence: Sequence, cached: list[Prefix]) -> bool:
        """True if all of the sequence's known positions find blocks; paused sequences are preempted for them.

        So are prefills, for a sequence that is more than that.

        cached: what is computed of it; the sequence begins with that where there is room.

        What running sequences still need for their known positions is not free, nor is one more block for each of
        them: otherwise a newcomer would be preempted as soon as earlier ones grow.
        """
        blocks = self._blocks
        blocks.begin_with(sequence, cached)
        victims = [s for s in self.admitted if s.paused or s.prefill_only > sequence.prefill_only]
        running = [s for s in self.admitted if s not in victims]
        reserved = sum(max(blocks.missing(s, s.target), 0) + 1 for s in running)
        needed = reserved + blocks.missing(sequence, sequence.target)
        if needed > blocks.free + blocks.freed_by(victims):
            blocks.release(sequence)
            return False
        while needed > blocks.free:
            self._preempt(victims.pop())
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed
        return True

    def _reserve(self, plan: Plan, sequence: Sequence, positions: int) -> bool:
        """Give the sequence blocks for its first `positions`; preempts prefills first, then paused, then later ones."""
        missing = self._blocks.missing(sequence, positions)
        if missing <= 0:
            return True
        if missing > self._blocks.free and not self._evict_for(plan, sequence, missing):
            return False
        plan.fresh_blocks.extend(self._blocks.extend(sequence, missing))
        return True

    def _evict_for(self, plan: Plan, sequence: Sequence, missing: int) -> bool:
        """Preempt until `missing` blocks are free; False, and none preempted, if that cannot be reached."""
        others = [s for s in self.admitted if s.blocks and s is not sequence]
        later = [s for s in others if rank(s) > rank(sequence) and not s.paused]
        victims = sorted(later + [s for s in others if s.paused], key=lambda s: s.prefill_only)
        if missing > self._blocks.free + self._blocks.freed_by(victims):
            return False
        while missing > self._blocks.free:
            victim = victims.pop()
            plan.spans = [span for span in plan.spans if span.sequence is not victim]
            self._preempt(victim)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        """Send an admitted sequence back into the queue; what was computed will be computed again."""
        self._blocks.release(sequence)
        self.admitted.remove(sequence)
        self._waiting.rejoin(sequence)
