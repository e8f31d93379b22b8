"""Which streams run in the next step, with how many tokens: decode first, then prompts in chunks, in line."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from typing import TYPE_CHECKING

from lmtool.engine.plan import Plan, Span
from lmtool.engine.waiting_line import WaitingLine, rank

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    from lmtool.engine.block_allocator import BlockAllocator
    from lmtool.engine.plan import Limits
    from lmtool.engine.prefix_cache import Prefix, PrefixCache
    from lmtool.engine.sequence import Sequence
    from lmtool.types import FinishReason


class Scheduler:
    """Owns the queue and the blocks. `plan` chooses, the caller computes, `commit` records the outcome.

    Between `plan` and `commit` no other method may be called but `remove`, `add` and, once, `plan_ahead`: what that
    gives is then committed in its turn, or left aside, before there is another `plan`.
    """

    def __init__(self, limits: Limits, allocator: BlockAllocator, cache: PrefixCache | None = None) -> None:
        """cache: keeps chunks of prompts for streams to come; None keeps nothing."""
        self._limits = limits
        self._allocator = allocator
        self._cache = cache
        self._waiting = WaitingLine()
        self._admitted: list[Sequence] = []

    @property
    def running(self) -> int:
        """Sequences that were given a place, idle ones included."""
        return len(self._admitted)

    @property
    def waiting(self) -> int:
        """Sequences that were not given a place yet."""
        return len(self._waiting)

    def decoding(self) -> list[Sequence]:
        """Sequences that the next step most likely brings an id: each may get a draft before `plan`."""
        return [s for s in self._admitted if s.decoding and not s.idle][: self._limits.max_streams]

    def fits(self, positions: int) -> bool:
        """Whether a sequence of this many stored positions can be computed at all, if need be alone."""
        return self._blocks_for(positions) <= self._allocator.total

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence behind those that rank before it, see `WaitingLine`."""
        assert self.fits(sequence.capacity)
        self._waiting.join(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence wherever it is, and free its blocks."""
        self._release(sequence)
        if sequence in self._waiting:
            self._waiting.remove(sequence)
        if sequence in self._admitted:
            self._admitted.remove(sequence)

    def plan(self) -> Plan:
        """Choose the next step; no spans when nothing can run."""
        plan = Plan()
        active = [s for s in self._admitted if not s.idle and not self._parked(s, s.computed)]
        active = active[: self._limits.max_streams]
        for sequence in [s for s in active if s.decoding]:
            self._decode(plan, sequence)
        plan.room = self._room(plan)
        for sequence in [s for s in active if not s.decoding]:
            self._prefill(plan, sequence)
        self._admit(plan, places=self._limits.max_streams - len(active))
        return plan

    def plan_ahead(self, plan: Plan) -> Plan | None:
        """The step behind one that is being computed, if that is known before its outcome is; None otherwise.

        It is known where each who would run needs only the one id that `plan` brings it, and nobody has to give way.
        Who needs something else after all is left out when the step is committed: this id ended it, or it is idle.
        """
        known = {span.sequence: span for span in plan.spans}
        going = [s for s in self._admitted if not s.idle and not (s in known and known[s].ends_sequence)]
        told = all(s in known and known[s].brings_one_id for s in going)
        missing = sum(max(self._blocks_for(len(s.tokens) + 1) - len(s.blocks), 0) for s in going)
        newcomers = len(going) < self._limits.max_streams and any(not self._parked(s, 0) for s in self._waiting)
        if not 0 < len(going) <= self._limits.max_streams or not told or newcomers or missing > self._free:
            return None
        ahead = Plan([Span(sequence, len(sequence.tokens), 1) for sequence in going])
        for sequence in going:
            self._reserve(ahead, sequence, len(sequence.tokens) + 1)
        return ahead

    def commit(self, plan: Plan, taken: Many[Many[int]]) -> list[FinishReason | None]:
        """Record a computed step; the reason why each span's sequence ended, None for those that go on.

        taken: the ids that each span's logits gave, from its first position with logits on: forced ones, then as many
        as `Sequence.draft` foretold, then one more. Nothing for SCORE, or for a prompt not yet at its end. Only the
        last of them may end the sequence. Ended sequences are removed and their blocks freed.
        """
        reasons: list[FinishReason | None] = []
        for span, ids in zip(plan.spans, taken, strict=True):
            sequence = span.sequence
            if not sequence.scored:
                sequence.take(ids, span.logits)
            sequence.computed = span.end if sequence.scored else min(span.end, max(len(sequence.tokens) - 1, 0))
            self._keep(sequence)
            reason = sequence.finish_reason(took=bool(ids))
            if reason is not None:
                self.remove(sequence)
            reasons.append(reason)
        return reasons

    def _decode(self, plan: Plan, sequence: Sequence) -> None:
        """Compute what is known, and the draft where there are blocks for it that nobody has to give up."""
        preempted = not sequence.blocks
        count = min(sequence.remaining, self._limits.chunk_tokens)
        if preempted or not self._reserve(plan, sequence, sequence.computed + count):
            return
        del sequence.draft[self._draft_room(sequence, count) :]
        count += len(sequence.draft)
        self._reserve(plan, sequence, sequence.computed + count)
        plan.spans.append(Span(sequence, sequence.computed, count))

    def _room(self, plan: Plan) -> float:
        """What prompts may add to a step that holds the running streams."""
        limits = self._limits
        left = limits.max_batch_tokens - plan.tokens
        if limits.prompt_share is None or not plan.spans:
            return left
        return min(left, max(limits.chunk_tokens, limits.prompt_share * plan.tokens))

    def _price(self, position: int) -> float:
        """What a token of a prompt at this position counts."""
        return 1 if self._limits.doubling_position is None else 1 + position / self._limits.doubling_position

    def _draft_room(self, sequence: Sequence, count: int) -> int:
        """How many drafted ids can be computed behind `count` known ones."""
        if count < sequence.remaining:
            return 0
        blocks = len(sequence.blocks) + self._allocator.free
        return max(min(blocks * self._limits.block_tokens, sequence.capacity) - len(sequence.tokens), 0)

    def _prefill(self, plan: Plan, sequence: Sequence) -> None:
        """Give the sequence as many whole chunks as the step has room for; the first in line gets one in any case."""
        if sequence not in self._admitted:
            return
        end = sequence.computed
        while end < sequence.target:
            step = self._step(plan, sequence, end)
            if not step or self._parked(sequence, end) or not self._reserve(plan, sequence, end + step):
                break
            if end == sequence.computed:
                plan.spans.append(Span(sequence, end, step))
            else:
                plan.spans[-1].count += step
            plan.room -= step * self._price(end)
            end += step
            plan.chunks += 1

    def _step(self, plan: Plan, sequence: Sequence, position: int) -> int:
        """How many positions from `position` on to compute: to the next cut, or as far as there is room; 0 for none."""
        step = self._next_chunk(sequence, position)
        if self._has_room(plan, sequence, position, step):
            return step
        if not self._limits.free_cuts:
            return 0 if plan.chunks else step
        fitting = int(plan.room / self._price(position)) if self._has_rows(plan, sequence, position, step) else 0
        return min(step, max(fitting, 0 if plan.chunks else 1))

    def _parked(self, sequence: Sequence, position: int) -> bool:
        """Whether nothing can be computed from `position` on before the sequence is released from its hold.

        The last chunk of a prompt predicts a token, and no token may be drawn yet.
        """
        return sequence.held and position + self._next_chunk(sequence, position) >= sequence.target

    def _has_room(self, plan: Plan, sequence: Sequence, end: int, step: int) -> bool:
        return step * self._price(end) <= plan.room and self._has_rows(plan, sequence, end, step)

    def _has_rows(self, plan: Plan, sequence: Sequence, end: int, step: int) -> bool:
        """Whether the logits of these positions may be part of the step."""
        if not sequence.scored or end + step < sequence.prompt_length:
            return True
        rows = sum(len(span.logits) for span in plan.spans if span.sequence.scored)
        return rows + step <= self._limits.max_scored_rows

    def _next_chunk(self, sequence: Sequence, position: int) -> int:
        """Positions from `position` to the next cut."""
        last = self._chunked(sequence)
        if position >= last:
            return 1
        cut = (position // self._limits.chunk_tokens + 1) * self._limits.chunk_tokens
        return min(cut, last) - position

    def _chunked(self, sequence: Sequence) -> int:
        """Positions that are computed in chunks, and kept."""
        return sequence.target if self._limits.free_cuts else sequence.chunked_length

    def _admit(self, plan: Plan, places: int) -> None:
        """Let waiting sequences in, in order, while there are places, room in this step, and blocks for them whole."""
        for sequence in self._waiting:
            known = self._known(sequence)
            start = sum(len(prefix.blocks) for prefix in known) * self._limits.block_tokens
            if self._parked(sequence, start) or (places > 0 and self._computed_now(plan, sequence, start)):
                continue
            if places <= 0 or not self._step(plan, sequence, start):
                return
            if not self._make_room(sequence, known):
                return
            self._waiting.serve(sequence)
            insort(self._admitted, sequence, key=rank)
            self._prefill(plan, sequence)
            places -= 1

    def _known(self, sequence: Sequence) -> list[Prefix]:
        """Chunks of the sequence that need not be computed."""
        if self._cache is None:
            return []
        return self._cache.match(sequence.tokens, self._cache.reusable(sequence.prompt_length))

    def _computed_now(self, plan: Plan, sequence: Sequence, start: int) -> bool:
        """Whether another sequence of this step computes the chunk from `start` on, so that waiting saves it.

        So of many streams with one beginning the first one computes it, and the others follow when it is done.
        """
        end = start + self._limits.chunk_tokens
        if self._cache is None or end > self._cache.reusable(sequence.prompt_length):
            return False
        return any(
            span.start <= start
            and end <= min(span.end, self._chunked(span.sequence))
            and span.sequence.tokens[:end] == sequence.tokens[:end]
            for span in plan.spans
        )

    def _reuse(self, sequence: Sequence, known: list[Prefix]) -> None:
        """Begin the sequence with chunks that are there."""
        if self._cache is not None:
            self._cache.hold(known)
            sequence.prefixes = list(known)
            sequence.blocks = [block for prefix in known for block in prefix.blocks]
            sequence.computed = len(sequence.blocks) * self._limits.block_tokens

    def _keep(self, sequence: Sequence) -> None:
        """Let others use the chunks that the sequence has just completed."""
        if self._cache is None or not sequence.blocks:
            return
        size, blocks = self._limits.chunk_tokens, self._limits.chunk_tokens // self._limits.block_tokens
        whole = min(sequence.computed, self._chunked(sequence)) // size
        for n in range(len(sequence.prefixes), whole):
            own = sequence.blocks[n * blocks : (n + 1) * blocks]
            parent = sequence.prefixes[-1] if sequence.prefixes else None
            prefix = self._cache.add(parent, sequence.tokens[n * size : (n + 1) * size], own)
            if prefix.blocks != tuple(own):  # another sequence was first: its bits are the same
                sequence.blocks[n * blocks : (n + 1) * blocks] = prefix.blocks
                self._allocator.release(own)
            sequence.prefixes.append(prefix)

    def _make_room(self, sequence: Sequence, known: list[Prefix]) -> bool:
        """Whether blocks for all of the sequence's known positions are free, paused ones having given way if need be.

        known: what is computed of it; the sequence begins with that where there is room.

        What running sequences still need for their known positions is not free, nor is one more block for each of
        them: otherwise a newcomer would be preempted as soon as its elders grow.
        """
        self._reuse(sequence, known)
        running = [s for s in self._admitted if not s.paused]
        promised = sum(max(self._blocks_for(s.target) - len(s.blocks), 0) + 1 for s in running)
        needed = promised + self._blocks_for(sequence.target) - len(sequence.blocks)
        paused = [s for s in self._admitted if s.paused]
        if needed > self._free + self._would_free(paused):
            self._release(sequence)
            return False
        while needed > self._free:
            self._preempt(paused.pop())
        self._count(sequence)
        return True

    def _count(self, sequence: Sequence) -> None:
        if sequence.reused is None:
            sequence.reused = sequence.computed
            if self._cache is not None:
                self._cache.counts.asked += sequence.prompt_length
                self._cache.counts.reused += sequence.computed

    @property
    def _free(self) -> int:
        """Blocks that nobody uses."""
        return self._allocator.free + (0 if self._cache is None else self._cache.idle_blocks)

    def _would_free(self, victims: Many[Sequence]) -> int:
        """Blocks that nobody would use any longer if all of these gave way."""
        held = Counter(prefix for sequence in victims for prefix in sequence.prefixes)
        shared = sum(len(prefix.blocks) for prefix, count in held.items() if count == prefix.users)
        return shared + sum(len(sequence.own_blocks) for sequence in victims)

    def _reserve(self, plan: Plan, sequence: Sequence, positions: int) -> bool:
        """Give the sequence blocks for its first `positions`; others give way, paused ones first, then later ones."""
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
        """Preempt until `missing` blocks are free; False, and nobody preempted, if that cannot be reached."""
        holders = [s for s in self._admitted if s.blocks and s is not sequence]
        later = [s for s in holders if rank(s) > rank(sequence) and not s.paused]
        victims = later + [s for s in holders if s.paused]
        if missing > self._free + self._would_free(victims):
            return False
        while missing > self._free:
            victim = victims.pop()
            plan.spans = [span for span in plan.spans if span.sequence is not victim]
            self._preempt(victim)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        """Back into the queue at its own place; what was computed is computed again."""
        self._release(sequence)
        self._admitted.remove(sequence)
        self._waiting.rejoin(sequence)

    def _release(self, sequence: Sequence) -> None:
        self._allocator.release(sequence.own_blocks)
        if self._cache is not None:
            self._cache.release(sequence.prefixes)
        sequence.blocks, sequence.prefixes, sequence.draft = [], [], []
        sequence.lost, sequence.computed = max(sequence.lost, sequence.computed), 0

    def _blocks_for(self, positions: int) -> int:
        return -(-positions // self._limits.block_tokens)
