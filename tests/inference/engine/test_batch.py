"""Plain ints to tensors: where each token stands, what it sees, and which logits are wanted."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from lmtool.inference.engine.kv_cache import BLOCK_TOKENS
from lmtool.inference.engine.model_runner import build, padded_blocks
from lmtool.inference.engine.plan import Plan, Sequence, Span

CPU = torch.device("cpu")
CHUNK = 64


def generate(number, prompt, generated=0, blocks=()):
    """A GENERATE sequence whose ids are its number."""
    return Sequence(number, [number] * (prompt + generated), prompt, 999, blocks=list(blocks))


def test_flat():
    """Spans follow each other; slots are the blocks' places; padding comes last and is stored nowhere."""
    one, two = generate(1, 20, blocks=[5, 3]), generate(2, 3, 1, blocks=[7])
    batch = build(Plan([Span(one, 15, 3), Span(two, 3, 1)], fresh_blocks=[3]), CHUNK, 6, CPU)
    assert batch.input_ids.tolist() == [[1, 1, 1, 2, 0, 0]]
    assert batch.positions.tolist() == [[15, 16, 17, 3, 0, 0]]
    assert batch.slots.tolist() == [5 * 16 + 15, 3 * 16, 3 * 16 + 1, 7 * 16 + 3]
    assert batch.fresh_blocks.tolist() == [3]


def test_logit_rows():
    """Only the end of what is known brings a token; the rows are padded too, by one that is wanted."""
    batch = build(Plan([Span(generate(1, 9, blocks=[1]), 0, 5), Span(generate(2, 2, blocks=[2]), 0, 2)]), CHUNK, 4, CPU)
    assert (batch.logits, batch.logit_rows.tolist()) == (1, [6, 6, 6, 6])
    nothing = build(Plan([Span(generate(1, 9, blocks=[1]), 0, 5)]), CHUNK, 4, CPU)
    assert (nothing.logits, nothing.logit_rows.tolist()) == (0, [])


def test_units():
    """Prompts are cut at fixed positions, generated ids one by one: a unit's shape depends on its stream alone."""
    one = generate(1, 70, 3, blocks=range(1, 6))
    groups = build(Plan([Span(one, 0, 73)]), CHUNK, 1, CPU).groups
    assert [(group.positions[:, 0].tolist(), group.positions.shape[1]) for group in groups] == [
        ([0], 64),
        ([64], 6),
        ([70, 71, 72], 1),
    ]
    assert [group.span for group in groups] == [64, 96, 96]


def test_whole_batch_in_order():
    """When all streams decode at similar lengths, the queries are the whole batch and need no gathering."""
    spans = [Span(generate(n, 5, 1, blocks=[n]), 5, 1) for n in (1, 2, 3)]
    (group,) = build(Plan(spans), CHUNK, 2, CPU).groups
    assert group.rows is None
    assert group.table.tolist() == [1, 0, 2, 0, 3, 0]
    assert group.first_block is None
    (padded,) = build(Plan(spans), CHUNK, 4, CPU).groups
    assert padded.rows.tolist() == [0, 1, 2]


def test_consecutive_blocks():
    """Neighbouring blocks of one stream are told apart: they need no copy."""
    (group,) = build(Plan([Span(generate(1, 20, 1, blocks=[4, 5]), 20, 1)]), CHUNK, 1, CPU).groups
    assert group.first_block == 4
    (group,) = build(Plan([Span(generate(1, 20, 1, blocks=[5, 4]), 20, 1)]), CHUNK, 1, CPU).groups
    assert group.first_block is None


def test_masks():
    """A query sees itself and what is before it, within the window."""
    (group,) = build(Plan([Span(generate(1, 4, blocks=[1]), 1, 3)]), CHUNK, 1, CPU).groups
    seen = (~group.mask(None))[0]
    assert [row.nonzero().flatten().tolist() for row in seen] == [[0, 1], [0, 1, 2], [0, 1, 2, 3]]
    seen = (~group.mask(2))[0]
    assert [row.nonzero().flatten().tolist() for row in seen] == [[0, 1], [1, 2], [2, 3]]


@given(st.integers(1, 100_000))
def test_padded_blocks(positions):
    """The ladder of spans: never too short, at most a quarter (or one block) too long, and it never falls."""
    needed = -(-positions // BLOCK_TOKENS)
    padded = padded_blocks(positions)
    assert needed <= padded <= max(needed * 1.25, needed + 1)
    assert padded_blocks(positions + 1) >= padded
