"""Turns a plan into the tensors of one forward pass."""

from __future__ import annotations

import functools
from array import array
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from lmtool.inference.engine.attention import Group
from lmtool.inference.engine.kv_cache import BLOCK_TOKENS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.inference.engine.plan import Plan

_Unit: TypeAlias = "tuple[int, int, list[int]]"
"""Consecutive queries of one stream that go through attention together: the row and the position of the first one, and
the stream's blocks."""


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
        sequence, start, row = span.sequence, span.start, len(ids)
        own, end = sequence.blocks, start + span.count
        if span.count == 1 and span.yields_one_id:  # as nearly all do; what follows gives the same
            ids.append(sequence.tokens[start])
            positions.append(start)
            slots.append(own[start // BLOCK_TOKENS] * BLOCK_TOKENS + start % BLOCK_TOKENS)
            logit_rows.append(row)
            units[1, padded_blocks(end)].append((row, start, own))
            continue
        ids += sequence.ids(start, end)
        for position in range(start, end):
            positions.append(position)
            slots.append(own[position // BLOCK_TOKENS] * BLOCK_TOKENS + position % BLOCK_TOKENS)
        needed = span.logits
        logit_rows += range(row + needed.start - start, row + needed.stop - start)
        last = sequence.chunked_length
        while start < end:  # cut at the multiples of `chunk_tokens`, and generated positions one by one
            count = 1 if start >= last else min((start // chunk_tokens + 1) * chunk_tokens, end, last) - start
            units[count, padded_blocks(start + count)].append((row, start, own))
            start, row = start + count, row + count
    padding = [0] * max(min_rows - len(ids), 0)
    logits = len(logit_rows)
    logit_rows += logit_rows[-1:] * max(min_rows - logits, 0)
    whole_batch = len(units) == 1 and not padding
    parts = [ids + padding, positions + padding, slots, logit_rows, plan.fresh_blocks]
    for (queries, width), members in units.items():
        parts += _group_parts(members, queries, width)
    flat, *tensors = _tensors(parts, device)
    groups = [
        _group(tensors[4 + 3 * at : 7 + 3 * at], parts[5 + 3 * at : 8 + 3 * at], kind, whole_batch=whole_batch)
        for at, kind in enumerate(units)
    ]
    return Batch(flat.unsqueeze(0), tensors[0].unsqueeze(0), tensors[1], groups, tensors[2], logits, tensors[3])


def _tensors(parts: list[list[int]], device: torch.device) -> tuple[Tensor, ...]:
    """Each part as int64 on the device; one copy takes them there."""
    numbers: list[int] = []
    for part in parts:
        numbers += part
    whole = torch.frombuffer(array("q", numbers), dtype=torch.int64).to(device)
    return torch.split_with_sizes(whole, [len(part) for part in parts])


@functools.lru_cache(4096)
def padded_blocks(positions: int) -> int:
    """How many blocks a unit that ends behind this position reads: a fixed ladder, at most a quarter too many.

    A ladder, and not the exact number, so that streams of similar length share a matrix product.
    """
    blocks = -(-positions // BLOCK_TOKENS)
    step = max(2, 1 << max(blocks - 1, 1).bit_length() - 3) if blocks > 8 else 2
    return -(-blocks // step) * step


def _group_parts(units: list[_Unit], queries: int, width: int) -> list[list[int]]:
    """Rows, positions and table of a `Group` of units of as many queries each, over `width` blocks."""
    rows: list[int] = []
    positions: list[int] = []
    table: list[int] = []
    for row, start, blocks in units:
        rows += range(row, row + queries)
        positions += range(start, start + queries)
        own = blocks[:width]
        table += own
        if len(own) < width:
            table += [0] * (width - len(own))
    return [rows, positions, table]


def _group(tensors: Sequence[Tensor], parts: list[list[int]], kind: tuple[int, int], *, whole_batch: bool) -> Group:
    """A group of its parts, see `_group_parts`. kind: queries and width."""
    (queries, width), numbers, (rows, positions, table) = kind, parts[2], tensors
    consecutive = len(numbers) == width and numbers == list(range(numbers[0], numbers[0] + width))
    return Group(
        rows=None if whole_batch else rows,
        positions=positions.view(-1, queries),
        table=table,
        first_block=numbers[0] if consecutive else None,
        span=width * BLOCK_TOKENS,
    )
