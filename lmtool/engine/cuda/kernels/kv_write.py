"""Scatters the keys and values of a batch's tokens into their pages.

Letters: T tokens of the batch, KV key heads, D head size, P positions a page.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


def kv_write(key: Tensor, value: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    """Store each token's keys and values.

    key: [T, KV, D]. value: [T, KV, Dv]. keys: [pages, P, KV, D], values: [pages, P, KV, Dv], both contiguous and
    changed in place. slots: [T'] int64, where the first T' tokens go, `page * P + offset`; a negative one is a row of
    padding and goes nowhere, like tokens behind the first T'.
    """
    if not len(slots):
        return
    kv_heads, size = key.shape[1:]
    value_size = value.shape[2]
    _write[(len(slots), kv_heads)](
        key, value, keys, values, slots,
        key.stride(0), key.stride(1), key.stride(2), value.stride(0), value.stride(1), value.stride(2),
        SIZE=size, SIZE_BLOCK=triton.next_power_of_2(size),
        VALUE_SIZE=value_size, VALUE_BLOCK=triton.next_power_of_2(value_size),
        num_warps=1,
    )  # fmt: skip


@triton.jit
def _write(
    key, value, keys, values, slots,
    key_row, key_head, key_step, value_row, value_head, value_step,
    SIZE: tl.constexpr, SIZE_BLOCK: tl.constexpr, VALUE_SIZE: tl.constexpr, VALUE_BLOCK: tl.constexpr,
):  # fmt: skip
    """One head of one token."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + row)
    place = slot * tl.num_programs(1) + head
    dims = tl.arange(0, SIZE_BLOCK)
    there = (dims < SIZE) & (slot >= 0)
    own = tl.load(key + row * key_row + head * key_head + dims * key_step, mask=there)
    tl.store(keys + place * SIZE + dims, own, mask=there)
    value_dims = tl.arange(0, VALUE_BLOCK)
    value_there = (value_dims < VALUE_SIZE) & (slot >= 0)
    own_value = tl.load(value + row * value_row + head * value_head + value_dims * value_step, mask=value_there)
    tl.store(values + place * VALUE_SIZE + value_dims, own_value, mask=value_there)
