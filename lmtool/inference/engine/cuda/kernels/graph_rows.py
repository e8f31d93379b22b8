"""What a captured pass does first: turns the numbers that the host has sent into those of its rows.

Letters: T rows of the batch, S of them single queries, which come first, P positions a page, n pages of the longest
text.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_ROWS, _PAGES = 128, 1024


def place_rows(
    ids: Tensor,
    lengths: Tensor,
    texts: Tensor,
    table: Tensor,
    input_ids: Tensor,
    positions: Tensor,
    slots: Tensor,
    text_lengths: Tensor,
    pages: Tensor,
    page: int,
) -> None:
    """Fill the last five tensors but one with a step's rows, and make `lengths` those of the step behind it.

    ids: [T] int32. lengths: [T] int32, positions of each row's text up to itself, 0 for a row of padding; those of the
    single queries grow by one, of padding not. texts: [T] int32, each row's row of `table`, [.., n] int32, the pages of
    every text. input_ids, positions, slots: [T] int64; a row of padding has position 0 and slot -1. text_lengths: [S]
    int32. pages: [S, n] int32, the pages of each single query's text; what follows the last one stays. page: P.
    """
    rows, singles, width = len(ids), len(text_lengths), table.shape[1]
    _place[(triton.cdiv(rows, _ROWS),)](
        ids, lengths, texts, table, input_ids, positions, slots, text_lengths, rows, singles, width,
        PAGE=page, BLOCK=_ROWS, num_warps=4,
    )  # fmt: skip
    _pages[(singles, triton.cdiv(width, _PAGES))](
        texts, table, text_lengths, pages, width, PAGE=page, BLOCK=_PAGES, num_warps=4
    )


@triton.jit(do_not_specialize=["rows", "singles", "width"])
def _place(
    ids, lengths, texts, table, input_ids, positions, slots, text_lengths, rows, singles, width,
    PAGE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A block of rows."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    length = tl.load(lengths + row, mask=inside, other=0)
    there = length > 0
    position = tl.maximum(length - 1, 0)
    text = tl.load(texts + row, mask=there, other=0).to(tl.int64)
    block = tl.load(table + text * width + position // PAGE, mask=there, other=0).to(tl.int64)
    tl.store(input_ids + row, tl.load(ids + row, mask=inside, other=0).to(tl.int64), mask=inside)
    tl.store(positions + row, position.to(tl.int64), mask=inside)
    tl.store(slots + row, tl.where(there, block * PAGE + position % PAGE, -1), mask=inside)
    single = row < singles
    tl.store(text_lengths + row, length, mask=single)
    tl.store(lengths + row, length + 1, mask=single & there)


@triton.jit(do_not_specialize=["width"])
def _pages(texts, table, text_lengths, pages, width, PAGE: tl.constexpr, BLOCK: tl.constexpr):
    """Some pages of one single query's text."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    used = column < tl.cdiv(tl.load(text_lengths + row), PAGE)
    text = tl.load(texts + row).to(tl.int64)
    tl.store(pages + row * width + column, tl.load(table + text * width + column, mask=used), mask=used)
