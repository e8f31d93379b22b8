"""Chooses which sequences run in the next step, with how many tokens: decode first, then prompts in chunks."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from lmtool.engine.plan import Plan, Span
from lmtool.engine.waiting_queue import WaitingQueue, rank

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Sequence as Many

    from lmtool.engine.plan import Limits
    from lmtool.engine.prefix_cache import BlockAllocator, Prefix, PrefixCache
    from lmtool.engine.sequence import Sequence
    from lmtool.types import FinishReason


_AHEAD_TOKENS = 256
"""Most tokens of a step that computes nothing but prefills ahead of their prompts."""


class BlockUsage(NamedTuple):
    """Blocks of the key-value cache."""

    total: int
    used: int
    """By sequences, those in the prefix cache that one of them uses among these."""
    cached: int
    """In the prefix cache, whether a sequence uses them or not."""


class Scheduler:
    """Owns the queue and the blocks. `plan` chooses, the caller computes, `commit` records the outcome.

    Between `plan` and `commit` no other method may be called but `remove`, `add` and, once, `plan_ahead`: its result is
    then committed in its turn, or dropped, before the next `plan`.
    """

    def __init__(self, limits: Limits, allocator: BlockAllocator, cache: PrefixCache | None = None) -> None:
        """cache: of computed chunks of prompts; None: there is none."""
        self._limits = limits
        self._allocator = allocator
        self._cache = cache
        self._waiting = WaitingQueue()
        self._admitted: list[Sequence] = []
        self.admissions = 0
        """Sequences admitted so far; one that was preempted counts again."""

    @property
    def running(self) -> int:
        """Admitted sequences, idle ones included."""
        return len(self._admitted)

    @property
    def waiting(self) -> int:
        """Sequences not admitted yet."""
        return len(self._waiting)

    @property
    def blocks(self) -> BlockUsage:
        """Who has the blocks now. Safe from any thread."""
        cached, idle = (0, 0) if self._cache is None else (self._cache.blocks, self._cache.idle_blocks)
        return BlockUsage(self._allocator.total, self._allocator.total - self._allocator.free - idle, cached)

    def place(self, sequence: Sequence) -> int | None:
        """Where a sequence waits in order of service, from 1; None where it does not wait. Safe from any thread."""
        return self._waiting.place(sequence)

    def decoding(self) -> list[Sequence]:
        """Sequences that most likely get an id in the next step: each may get a draft before `plan`."""
        return [s for s in self._admitted if s.decoding and not s.idle][: self._limits.max_streams]

    def fits(self, positions: int) -> bool:
        """Whether a sequence of this many stored positions can be computed at all, at least alone."""
        return self._blocks_for(positions) <= self._allocator.total

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence behind those that rank before it, see `WaitingQueue`."""
        assert self.fits(sequence.capacity)
        self._waiting.join(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence wherever it is, and free its blocks."""
        self._release(sequence)
        if sequence in self._waiting:
            self._waiting.remove(sequence)
        if sequence in self._admitted:
            self._admitted.remove(sequence)

    def discard(self, sequence: Sequence) -> None:
        """Let no other sequence begin with what was computed of this one."""
        if self._cache is not None:
            self._cache.discard(sequence.prefixes)

    def forget(self, keep_blocks: int) -> Iterator[tuple[int, int]]:
        """Drop cached chunks that nobody uses, the least recently used first, until they hold at most `keep_blocks`.

        Returns runs of blocks whose memory nobody needs then, see `BlockAllocator.take_touched`.
        """
        while self._cache is not None and self._cache.idle_blocks > keep_blocks:
            self._allocator.release(self._cache.evict())
        return self._allocator.take_touched()

    def plan(self) -> Plan:
        """Choose the next step; no spans when nothing can run."""
        plan = Plan()
        ready = [s for s in self._admitted if not s.idle and not self._blocked(s, s.computed)]
        active = [s for s in ready if not s.prefill_only][: self._limits.max_streams]
        for sequence in [s for s in active if s.decoding]:
            self._decode(plan, sequence)
        plan.room = self._room(plan)
        for sequence in [s for s in active if not s.decoding]:
            self._prefill(plan, sequence)
        self._admit(plan, places=self._limits.max_streams - len(active), prefill_only=False)
        if not any(not s.prefill_only for s in self._waiting):
            self._prefill_ahead(plan, [s for s in ready if s.prefill_only])
        return plan

    def plan_ahead(self, plan: Plan) -> Plan | None:
        """The step behind one that is being computed, if that is known before its outcome is; None otherwise.

        It is known where every sequence to run needs only the one id that `plan` yields, and none must be preempted.
        Sequences that finished or paused meanwhile are dropped at commit.
        """
        spans = {span.sequence: span for span in plan.spans}
        running = [s for s in self._admitted if not s.idle and not (s in spans and spans[s].ends_sequence)]
        simple = all(s in spans and spans[s].yields_one_id for s in running)
        missing = sum(max(self._blocks_for(len(s.tokens) + 1) - len(s.blocks), 0) for s in running)
        newcomers = len(running) < self._limits.max_streams and any(not self._blocked(s, 0) for s in self._waiting)
        if not 0 < len(running) <= self._limits.max_streams or not simple or newcomers or missing > self._free:
            return None
        ahead = Plan([Span(sequence, len(sequence.tokens), 1) for sequence in running])
        for sequence in running:
            self._reserve(ahead, sequence, len(sequence.tokens) + 1)
        return ahead

    def commit(self, plan: Plan, sampled: Many[Many[int]]) -> list[FinishReason | None]:
        """Record a computed step; the reason why each span's sequence ended, None for those that go on.

        sampled: the ids that each span's logits gave, from its first position with logits on: forced ones, then those
        of `Sequence.draft` that were right, then one more. Nothing for SCORE, or for a prompt not yet at its end. Only
        the last of them may end the sequence. Ended sequences are removed and their blocks freed.
        """
        reasons: list[FinishReason | None] = []
        for span, ids in zip(plan.spans, sampled, strict=True):
            sequence = span.sequence
            sequence.computed = span.end
            if sequence.generates:
                sequence.record(ids, span.logits)
                sequence.computed = min(span.end, max(len(sequence.tokens) - 1, 0))
            self._cache_chunks(sequence)
            reason = sequence.finish_reason(recorded=bool(ids))
            if reason is not None:
                self.remove(sequence)
            reasons.append(reason)
        return reasons

    def _decode(self, plan: Plan, sequence: Sequence) -> None:
        """Compute the known ids, and the draft where there are free blocks for it."""
        preempted = not sequence.blocks
        count = min(sequence.remaining, self._limits.chunk_tokens)
        if preempted or not self._reserve(plan, sequence, sequence.computed + count):
            return
        del sequence.draft[self._draft_room(sequence, count) :]
        count += len(sequence.draft)
        self._reserve(plan, sequence, sequence.computed + count)
        plan.spans.append(Span(sequence, sequence.computed, count))

    def _room(self, plan: Plan) -> float:
        """What prompts may add to a step with the running streams."""
        limits = self._limits
        left = limits.max_batch_tokens - plan.tokens
        if limits.prompt_share is None or not plan.spans:
            return left
        return min(left, max(limits.chunk_tokens, limits.prompt_share * plan.tokens))

    def _price(self, position: int) -> float:
        """How much a prompt's token at this position counts."""
        return 1 if self._limits.doubling_position is None else 1 + position / self._limits.doubling_position

    def _draft_room(self, sequence: Sequence, count: int) -> int:
        """How many drafted ids can be computed behind `count` known ones."""
        if count < sequence.remaining:
            return 0
        blocks = len(sequence.blocks) + self._allocator.free
        return max(min(blocks * self._limits.block_tokens, sequence.capacity) - len(sequence.tokens), 0)

    def _prefill(self, plan: Plan, sequence: Sequence) -> None:
        """Give the sequence as many whole chunks as the step has room for; the step's first one gets at least one."""
        if sequence not in self._admitted:
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
            plan.room -= step * self._price(end)
            end += step
            plan.chunks += 1

    def _prefill_ahead(self, plan: Plan, admitted: Many[Sequence]) -> None:
        """Give requests that sample nothing what others leave of a step; beside others at most one chunk.

        Alone, steps are short all the same: who comes meanwhile waits for the end of one.
        """
        plan.room = min(plan.room, self._limits.chunk_tokens if plan.spans else _AHEAD_TOKENS)
        for sequence in admitted[: self._limits.max_streams - len(plan.spans)]:
            self._prefill(plan, sequence)
        self._admit(plan, places=self._limits.max_streams - len(plan.spans), prefill_only=True)

    def _step(self, plan: Plan, sequence: Sequence, position: int) -> int:
        """How many positions to compute from `position` on: to the next cut, or as many as there is room for."""
        step = self._next_chunk(sequence, position)
        if self._has_room(plan, sequence, position, step):
            return step
        if not self._limits.free_cuts:
            return 0 if plan.chunks else step
        fitting = int(plan.room / self._price(position)) if self._has_rows(plan, sequence, position, step) else 0
        return min(step, max(fitting, 0 if plan.chunks else 1))

    def _blocked(self, sequence: Sequence, position: int) -> bool:
        """Whether nothing can be computed from `position` on before the sequence's constraint is compiled.

        The last chunk of a prompt predicts a token, and no token may be sampled yet.
        """
        return sequence.awaiting_constraint and position + self._next_chunk(sequence, position) >= sequence.target

    def _has_room(self, plan: Plan, sequence: Sequence, end: int, step: int) -> bool:
        return step * self._price(end) <= plan.room and self._has_rows(plan, sequence, end, step)

    def _has_rows(self, plan: Plan, sequence: Sequence, end: int, step: int) -> bool:
        """Whether the logits of these positions may be part of the step."""
        if not sequence.scoring or end + step < sequence.prompt_length:
            return True
        rows = sum(len(span.logits) for span in plan.spans if span.sequence.scoring)
        return rows + step <= self._limits.max_scored_rows

    def _next_chunk(self, sequence: Sequence, position: int) -> int:
        """Positions from `position` to the next cut."""
        last = self._chunked(sequence)
        if position >= last:
            return 1
        cut = (position // self._limits.chunk_tokens + 1) * self._limits.chunk_tokens
        return min(cut, last) - position

    def _chunked(self, sequence: Sequence) -> int:
        """Positions that are computed in chunks, and cached."""
        return sequence.target if self._limits.free_cuts else sequence.chunked_length

    def _admit(self, plan: Plan, places: int, *, prefill_only: bool) -> None:
        """Admit waiting sequences in order, while there are places, room in this step, and blocks for all they know."""
        for sequence in self._waiting:
            if sequence.prefill_only != prefill_only:
                continue
            cached = self._cached(sequence)
            start = sum(len(prefix.blocks) for prefix in cached) * self._limits.block_tokens
            if self._blocked(sequence, start) or (places > 0 and self._computed_now(plan, sequence, start)):
                continue
            if places <= 0 or not self._step(plan, sequence, start):
                return
            if not self._make_room(sequence, cached):
                return
            self._waiting.serve(sequence)
            self.admissions += 1
            insort(self._admitted, sequence, key=rank)
            self._prefill(plan, sequence)
            places -= 1

    def _cached(self, sequence: Sequence) -> list[Prefix]:
        """Chunks of the sequence that are in the prefix cache."""
        if self._cache is None:
            return []
        reusable = self._cache.reusable(sequence.prompt_length)
        return self._cache.match(sequence.tokens, reusable, sequence.cache_salt)

    def _computed_now(self, plan: Plan, sequence: Sequence, start: int) -> bool:
        """Whether another sequence of this step computes the chunk from `start` on, so that waiting saves work.

        So of many streams with a common beginning the first one computes it, and the others follow when it is done.
        """
        end = start + self._limits.chunk_tokens
        if self._cache is None or end > self._cache.reusable(sequence.prompt_length):
            return False
        return any(
            span.start <= start
            and span.sequence.cache_salt == sequence.cache_salt
            and end <= min(span.end, self._chunked(span.sequence))
            and span.sequence.tokens[:end] == sequence.tokens[:end]
            for span in plan.spans
        )

    def _cache_chunks(self, sequence: Sequence) -> None:
        """Add the chunks that the sequence has just completed to the prefix cache."""
        if self._cache is None or not sequence.blocks:
            return
        size, blocks = self._limits.chunk_tokens, self._limits.chunk_tokens // self._limits.block_tokens
        whole = min(sequence.computed, self._chunked(sequence)) // size
        for n in range(len(sequence.prefixes), whole):
            own = sequence.blocks[n * blocks : (n + 1) * blocks]
            parent = sequence.prefixes[-1] if sequence.prefixes else sequence.cache_salt
            prefix = self._cache.add(parent, sequence.tokens[n * size : (n + 1) * size], own)
            if prefix.blocks != tuple(own):  # another sequence computed the same bits first
                sequence.blocks[n * blocks : (n + 1) * blocks] = prefix.blocks
                self._allocator.release(own)
            sequence.prefixes.append(prefix)

    def _make_room(self, sequence: Sequence, cached: list[Prefix]) -> bool:
        """Whether all of the sequence's known positions find blocks; paused sequences are preempted for them.

        So are prefills, for a sequence that is more than that.

        cached: what is computed of it; the sequence begins with that where there is room.

        What running sequences still need for their known positions is not free, nor is one more block for each of
        them: otherwise a newcomer would be preempted as soon as earlier ones grow.
        """
        if self._cache is not None:
            self._cache.acquire(cached)
            sequence.prefixes = list(cached)
            sequence.blocks = [block for prefix in cached for block in prefix.blocks]
            sequence.computed = len(sequence.blocks) * self._limits.block_tokens
        victims = [s for s in self._admitted if s.paused or s.prefill_only > sequence.prefill_only]
        running = [s for s in self._admitted if s not in victims]
        reserved = sum(max(self._blocks_for(s.target) - len(s.blocks), 0) + 1 for s in running)
        needed = reserved + self._blocks_for(sequence.target) - len(sequence.blocks)
        if needed > self._free + self._would_free(victims):
            self._release(sequence)
            return False
        while needed > self._free:
            self._preempt(victims.pop())
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed
        return True

    @property
    def _free(self) -> int:
        """Blocks that no sequence uses."""
        return self._allocator.free + (0 if self._cache is None else self._cache.idle_blocks)

    def _would_free(self, victims: Many[Sequence]) -> int:
        """Blocks that preempting all of these would free."""
        users = Counter(prefix for sequence in victims for prefix in sequence.prefixes)
        shared = sum(len(prefix.blocks) for prefix, count in users.items() if count == prefix.users)
        return shared + sum(len(sequence.own_blocks) for sequence in victims)

    def _reserve(self, plan: Plan, sequence: Sequence, positions: int) -> bool:
        """Give the sequence blocks for its first `positions`; preempts prefills first, then paused, then later ones."""
        missing = self._blocks_for(positions) - len(sequence.blocks)
        if missing <= 0:
            return True
        if missing > self._free and not self._evict_for(plan, sequence, missing):
            return False
        while missing > self._allocator.free:
            assert self._cache is not None
            self._allocator.release(self._cache.evict())
        blocks = self._allocator.allocate(missing)
        assert blocks is not None
        sequence.blocks.extend(blocks)
        plan.fresh_blocks.extend(blocks)
        return True

    def _evict_for(self, plan: Plan, sequence: Sequence, missing: int) -> bool:
        """Preempt until `missing` blocks are free; False, and none preempted, if that cannot be reached."""
        others = [s for s in self._admitted if s.blocks and s is not sequence]
        later = [s for s in others if rank(s) > rank(sequence) and not s.paused]
        victims = sorted(later + [s for s in others if s.paused], key=lambda s: s.prefill_only)
        if missing > self._free + self._would_free(victims):
            return False
        while missing > self._free:
            victim = victims.pop()
            plan.spans = [span for span in plan.spans if span.sequence is not victim]
            self._preempt(victim)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        """Send an admitted sequence back into the queue; what was computed will be computed again."""
        self._release(sequence)
        self._admitted.remove(sequence)
        self._waiting.rejoin(sequence)

    def _release(self, sequence: Sequence) -> None:
        self._allocator.release(sequence.own_blocks)
        if self._cache is not None:
            self._cache.release(sequence.prefixes)
        sequence.blocks, sequence.prefixes, sequence.draft = [], [], []
        sequence.recompute_to, sequence.computed = max(sequence.recompute_to, sequence.computed), 0

    def _blocks_for(self, positions: int) -> int:
        return -(-positions // self._limits.block_tokens)
