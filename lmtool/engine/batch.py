"""Turns a plan into the tensors of one forward pass."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lmtool.engine.attention import Group
from lmtool.engine.kv_cache import BLOCK_TOKENS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lmtool.engine.plan import Plan, Span


@dataclass(frozen=True, slots=True)
class Batch:
    """A flat batch of T tokens, of which the last few may be padding."""

    input_ids: Tensor
    """[1, T] int64"""
    positions: Tensor
    """[1, T] int64"""
    slots: Tensor
    """[T without padding] int64, where keys and values go: `block * BLOCK_TOKENS + offset`."""
    groups: list[Group]
    logit_rows: Tensor
    """[max(R, rows)] int64, which tokens' logits are needed, padded by repeating the last; empty when R is 0."""
    logits: int
    """R: how many rows of logits are needed."""
    fresh_blocks: Tensor
    """[n] int64, blocks to clear before the pass."""


def build(plan: Plan, chunk_tokens: int, min_rows: int, device: torch.device) -> Batch:
    """The tensors of a plan.

    chunk_tokens: where prompts are cut, as in the scheduler. min_rows: pad the tokens and the rows of logits to at
    least this many, because a matrix product of fewer rows takes another path with other rounding.
    """
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    logit_rows: list[int] = []
    units: dict[tuple[int, int], list[_Unit]] = defaultdict(list)
    for span in plan.spans:
        sequence = span.sequence
        row = len(ids)
        ids.extend(sequence.ids(span.start, span.end))
        positions.extend(range(span.start, span.end))
        slots.extend(
            sequence.blocks[position // BLOCK_TOKENS] * BLOCK_TOKENS + position % BLOCK_TOKENS
            for position in range(span.start, span.end)
        )
        logit_rows.extend(row + position - span.start for position in span.logits)
        for unit in _units(span, row, chunk_tokens):
            units[unit.count, padded_blocks(unit.start + unit.count)].append(unit)
    padding = max(min_rows - len(ids), 0)
    groups = [
        _group(members, blocks, whole_batch=len(units) == 1 and not padding, device=device)
        for (_, blocks), members in units.items()
    ]
    rows = logit_rows + logit_rows[-1:] * max(min_rows - len(logit_rows), 0)

    def tensor(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    return Batch(
        input_ids=tensor(ids + [0] * padding).unsqueeze(0),
        positions=tensor(positions + [0] * padding).unsqueeze(0),
        slots=tensor(slots),
        groups=groups,
        logit_rows=tensor(rows),
        logits=len(logit_rows),
        fresh_blocks=tensor(plan.fresh_blocks),
    )


def padded_blocks(positions: int) -> int:
    """How many blocks a unit that ends behind this position reads: a fixed ladder, at most a quarter too many.

    A ladder, and not the exact number, so that streams of similar length share a matrix product.
    """
    blocks = -(-positions // BLOCK_TOKENS)
    step = max(2, 1 << max(blocks - 1, 1).bit_length() - 3) if blocks > 8 else 2
    return -(-blocks // step) * step


@dataclass(frozen=True, slots=True)
class _Unit:
    """Consecutive queries of one stream that go through attention together."""

    row: int
    start: int
    count: int
    blocks: list[int]


def _units(span: Span, row: int, chunk_tokens: int) -> Iterator[_Unit]:
    """Cut a span at the multiples of `chunk_tokens`, and its generated positions one by one."""
    start = span.start
    while start < span.end:
        count = 1
        if start < span.sequence.chunked_length:
            cut = (start // chunk_tokens + 1) * chunk_tokens
            count = min(cut, span.end, span.sequence.chunked_length) - start
        yield _Unit(row + start - span.start, start, count, span.sequence.blocks)
        start += count


def _group(units: list[_Unit], blocks: int, *, whole_batch: bool, device: torch.device) -> Group:
    rows = [row for unit in units for row in range(unit.row, unit.row + unit.count)]
    table = [block for unit in units for block in (unit.blocks[:blocks] + [0] * (blocks - len(unit.blocks)))]
    consecutive = len(units) == 1 and table == list(range(table[0], table[0] + blocks))
    return Group(
        rows=None if whole_batch else torch.tensor(rows, dtype=torch.int64, device=device),
        positions=torch.tensor(
            [list(range(unit.start, unit.start + unit.count)) for unit in units], dtype=torch.int64, device=device
        ),
        table=torch.tensor(table, dtype=torch.int64, device=device),
        first_block=table[0] if consecutive else None,
        span=blocks * BLOCK_TOKENS,
    )
