"""Schedulers with little room, sequences for them, and steps without a model."""

from __future__ import annotations

from dataclasses import replace

from lmtool.inference.engine.plan import Limits, Sequence
from lmtool.inference.engine.prefix_cache import BlockAllocator
from lmtool.inference.engine.scheduler import Scheduler

CHUNK = 8
LIMITS = Limits(max_streams=4, max_batch_tokens=20, chunk_tokens=CHUNK, block_tokens=4, max_scored_rows=16)
EOS = 0


def make(blocks=100, *, cache=None, **limits):
    """A scheduler and its allocator."""
    allocator = BlockAllocator(blocks)
    return Scheduler(replace(LIMITS, **limits), allocator, cache), allocator


def generate(number, prompt, new=5):
    """A GENERATE sequence of 1s."""
    return Sequence(number, [1] * prompt, prompt, prompt + new, stop_ids=frozenset({EOS}))


def score(number, prompt, scored):
    """A SCORE sequence of 1s."""
    return Sequence(number, [1] * (prompt + scored), prompt, prompt + scored, scoring=True)


def step(scheduler, token=1):
    """Plan and commit one step; what each sequence did, and the ended ones with their reasons."""
    plan = scheduler.plan()
    tokens = [[token] if span.logits and not span.sequence.scoring else [] for span in plan.spans]
    spans = {span.sequence.number: (span.start, span.count) for span in plan.spans}
    reasons = scheduler.commit(plan, tokens)
    ended = {
        span.sequence.number: reason for span, reason in zip(plan.spans, reasons, strict=True) if reason is not None
    }
    return spans, ended


def shape(plan):
    """What a plan computes."""
    return [(span.sequence.number, span.start, span.count) for span in plan.spans]


def prompt_of(number, ids):
    """A GENERATE sequence over these ids."""
    return Sequence(number, list(ids), len(ids), len(ids) + 3, stop_ids=frozenset({EOS}))


def cached_blocks(cache):
    """Blocks of all cached chunks, in use or not."""
    return sum(len(prefix.blocks) for prefix in cache._prefixes.values())
