"""Turns a plan into the tensors of one forward pass."""

from __future__ import annotations

import functools
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch import Tensor

from lmtool.engine.attention import Group
from lmtool.engine.kv_cache import BLOCK_TOKENS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lmtool.engine.plan import Plan

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
    blocks: list[int] = []
    logit_rows: list[int] = []
    units: dict[tuple[int, int], list[_Unit]] = defaultdict(list)
    for span in plan.spans:
        sequence, start, row = span.sequence, span.start, len(ids)
        own, end = sequence.blocks, start + span.count
        ids += sequence.ids(start, end)
        for position in range(start, end):
            positions.append(position)
            blocks.append(own[position // BLOCK_TOKENS])
        needed = span.logits
        logit_rows += range(row + needed.start - start, row + needed.stop - start)
        last = sequence.chunked_length
        while start < end:  # cut at the multiples of `chunk_tokens`, and generated positions one by one
            count = 1 if start >= last else min((start // chunk_tokens + 1) * chunk_tokens, end, last) - start
            units[count, padded_blocks(start + count)].append((row, start, own))
            start, row = start + count, row + count
    padding = max(min_rows - len(ids), 0)
    whole_batch = len(units) == 1 and not padding
    groups = [
        _group(members, queries, width, whole_batch=whole_batch, device=device)
        for (queries, width), members in units.items()
    ]
    rows = logit_rows + logit_rows[-1:] * max(min_rows - len(logit_rows), 0)
    slots = np.array(blocks, np.int64) * BLOCK_TOKENS + np.array(positions, np.int64) % BLOCK_TOKENS

    def tensor(values: list[int] | NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(np.array(values, np.int64)).to(device)

    return Batch(
        input_ids=tensor(ids + [0] * padding).unsqueeze(0),
        positions=tensor(positions + [0] * padding).unsqueeze(0),
        slots=tensor(slots),
        groups=groups,
        logit_rows=tensor(rows),
        logits=len(logit_rows),
        fresh_blocks=tensor(plan.fresh_blocks),
    )


@functools.lru_cache(4096)
def padded_blocks(positions: int) -> int:
    """How many blocks a unit that ends behind this position reads: a fixed ladder, at most a quarter too many.

    A ladder, and not the exact number, so that streams of similar length share a matrix product.
    """
    blocks = -(-positions // BLOCK_TOKENS)
    step = max(2, 1 << max(blocks - 1, 1).bit_length() - 3) if blocks > 8 else 2
    return -(-blocks // step) * step


def _group(units: list[_Unit], queries: int, width: int, *, whole_batch: bool, device: torch.device) -> Group:
    """Units of as many queries each, over `width` blocks."""
    table: list[int] = []
    for _, _, blocks in units:
        table += blocks[:width]
        table += [0] * (width - len(blocks))
    consecutive = len(units) == 1 and table == list(range(table[0], table[0] + width))
    following = np.arange(queries)

    def tensor(first: list[int]) -> Tensor:
        """[N, Q]: these numbers and those that follow each."""
        return torch.from_numpy(np.array(first, np.int64)[:, None] + following).to(device)

    return Group(
        rows=None if whole_batch else tensor([row for row, _, _ in units]).flatten(),
        positions=tensor([start for _, start, _ in units]),
        table=torch.from_numpy(np.array(table, np.int64)).to(device),
        first_block=table[0] if consecutive else None,
        span=width * BLOCK_TOKENS,
    )
