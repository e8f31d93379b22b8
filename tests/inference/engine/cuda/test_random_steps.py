"""Random streams through the scheduler: each step in a CUDA graph does what a plain pass does."""

from __future__ import annotations

import random

import pytest
import torch

from lmtool.inference.engine.cuda.step_rows import lay_out
from lmtool.inference.engine.plan import Limits, Sequence
from lmtool.inference.engine.prefix_cache import BlockAllocator, PrefixCache
from lmtool.inference.engine.scheduler import Scheduler
from tests.inference.engine.cuda.conftest import INTERPRETED

pytestmark = pytest.mark.cuda

STREAMS, BLOCKS = 4, 14
SEEDS, STEPS = (2, 12) if INTERPRETED else (8, 60)


def newcomer(dice, number):
    """A stream that generates, or scores, or computes a prompt alone."""
    length = dice.choice([1, 2, 5, 16, 20, 33])
    start = 3 + 40 * dice.randrange(2)  # so that beginnings are shared
    tokens = [start + at for at in range(length)]
    kind = dice.randrange(6)
    if kind == 0 and length > 1:
        return Sequence(number, tokens, max(length // 2, 1), max_length=length, scoring=True)
    if kind == 1:
        return Sequence(number, tokens, length, max_length=length + 1, prefill_only=True)
    return Sequence(number, tokens, length, max_length=length + dice.randrange(1, 20))


def next_ids(span, logits):
    """What greedy sampling makes of a span's logits."""
    if not len(logits) or not span.sequence.generates:
        return []
    ids = logits.argmax(-1).tolist()
    return ids[: span.sequence.count_valid(ids)]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_steps(runner_of, seed):
    """Logits, keys and values are equal for any mix of prompts, decoding, drafts, preemption and padding."""
    runner, *_ = runner_of("small", blocks=BLOCKS)
    dice = random.Random(seed)
    limits = Limits(STREAMS, dice.choice([20, 32]), chunk_tokens=16, block_tokens=16, max_scored_rows=40)
    scheduler = Scheduler(limits, BlockAllocator(BLOCKS), PrefixCache(16) if seed % 2 else None)
    counts = {True: 0, False: 0}
    with torch.inference_mode():
        graphs = runner.prepared(2 * STREAMS, 256).graphs
        memory = runner.cache.memory(runner.forward.layers[0])
        for number in range(100, 100 + STEPS):
            if dice.random() < 0.5:
                scheduler.add(newcomer(dice, number))
            for sequence in scheduler.decoding():
                sequence.draft = [dice.randrange(3, 90) for _ in range(dice.choice([0, 0, 1, 2]))]
            plan = scheduler.plan()
            if not plan.spans:
                continue
            before = [own.clone() for own in memory]
            expected, stored = runner.run(plan), [own.clone() for own in memory]
            for own, old in zip(memory, before, strict=True):
                own.copy_(old)
            logits = graphs.run(lay_out(plan))
            counts[logits is not None] += 1
            if logits is None:
                for own, new in zip(memory, stored, strict=True):
                    own.copy_(new)
            else:
                torch.testing.assert_close(memory, tuple(stored), atol=1e-5, rtol=1e-5)
                torch.testing.assert_close(logits[:, : expected.shape[1]], expected, atol=2e-5, rtol=1e-5)
            parts = torch.split(expected, [len(span.logits) for span in plan.spans])
            scheduler.commit(plan, [next_ids(span, own) for span, own in zip(plan.spans, parts, strict=True)])
    assert counts[True] >= STEPS // 2
    assert counts[True] > 3 * counts[False]
