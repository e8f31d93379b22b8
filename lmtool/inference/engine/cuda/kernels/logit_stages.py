# ruff: noqa: ANN201  # functions of Triton have no types of Python's
"""Logits of a row after each of its own parameters, for the kernels that sample, and the record that says which.

Letters: R rows of a batch, V vocabulary, S splits of a row, B ids a split.
"""

from __future__ import annotations

import triton
import triton.language as tl

FIELDS = tl.constexpr(16)
"""Numbers in a row's record, each of eight bytes; those behind are the places of each."""
ROW = tl.constexpr(0)
"""Below 0 in a record that samples nothing."""
TARGET = tl.constexpr(1)
MODE = tl.constexpr(2)
MASK = tl.constexpr(3)
UNIFORM = tl.constexpr(4)
HEAT = tl.constexpr(5)
TOP_K = tl.constexpr(6)
TOP_P = tl.constexpr(7)
MIN_P = tl.constexpr(8)
REPETITION = tl.constexpr(9)
PRESENCE = tl.constexpr(10)
FREQUENCY = tl.constexpr(11)
BIAS = tl.constexpr(12)
BARRED = tl.constexpr(13)
COUNTS = tl.constexpr(14)
RANDOM = tl.constexpr(15)

NO_KEY = tl.constexpr(-2139095041)
"""`sort_key` of minus infinity."""
HIGHEST = tl.constexpr(2147483647)


@triton.jit
def record_int(table, entry, field: tl.constexpr):
    """A field of a row's record."""
    return tl.load(table + entry * FIELDS + field)


@triton.jit
def record_float(table, entry, field: tl.constexpr):
    """The same, where it is a float64."""
    return tl.load(table + entry * FIELDS + field).to(tl.float64, bitcast=True).to(tl.float32)


@triton.jit
def logit_stages(logits, table, masks, row_stride, words, entry, ids, there):
    """Logits of these ids, -inf where there are none: raw, biased, and with penalties and barred ids."""
    row = logits + record_int(table, entry, ROW) * row_stride
    raw = tl.load(row + ids, mask=there, other=float("-inf")).to(tl.float32)
    biased = raw
    at = record_int(table, entry, BIAS)
    if at != 0:
        biased += tl.load(at.to(tl.pointer_type(tl.float32)) + ids, mask=there, other=0.0)
    index = record_int(table, entry, MASK)
    if index >= 0:
        word = tl.load(masks + index * words + (ids >> 5), mask=there, other=0)
        biased = tl.where(((word >> (ids & 31)) & 1) != 0, biased, float("-inf"))
    processed = biased
    at = record_int(table, entry, COUNTS)
    if at != 0:
        counted = tl.load(at.to(tl.pointer_type(tl.int32)) + ids, mask=there, other=0)
        factor = record_float(table, entry, REPETITION)
        repeated = tl.where(biased > 0, tl.div_rn(biased, factor), biased * factor)
        processed = tl.where((counted & 1) != 0, repeated, biased)
        often = (counted >> 1).to(tl.float32)
        penalty = record_float(table, entry, PRESENCE) + record_float(table, entry, FREQUENCY) * often
        processed = tl.where(counted > 1, processed - penalty, processed)
    at = record_int(table, entry, BARRED)
    if at != 0:
        word = tl.load(at.to(tl.pointer_type(tl.int32)) + (ids >> 5), mask=there, other=0)
        processed = tl.where(((word >> (ids & 31)) & 1) != 0, float("-inf"), processed)
    return raw, biased, tl.where(processed == 0, 0.0, processed)


@triton.jit
def mode_logits(table, entry, raw, biased, processed):
    """The logits that log-probabilities are taken from."""
    mode = record_int(table, entry, MODE)
    return tl.where(mode == 0, raw, tl.where(mode == 1, biased, processed))


@triton.jit
def mode_factor(table, entry):
    """What the difference of two such logits is multiplied with."""
    return tl.where(record_int(table, entry, MODE) == 2, record_float(table, entry, HEAT), 1.0)


@triton.jit
def is_idle(table, entry):
    """Whether a record samples nothing, as those of padding in a captured step."""
    return record_int(table, entry, ROW) < 0


@triton.jit
def has_cut(table, entry):
    """Whether a row that is sampled has top-k, top-p or min-p."""
    cut = (
        (record_int(table, entry, TOP_K) > 0)
        | (record_float(table, entry, TOP_P) < 1)
        | (record_float(table, entry, MIN_P) > 0)
    )
    return cut & (record_int(table, entry, RANDOM) != 0) & (record_int(table, entry, ROW) >= 0)


@triton.jit
def sort_key(value):
    """int32 in the order of the floats; its own inverse, but for the type."""
    bits = value.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def key_value(key):
    """The float of a key."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def exp_weight(value, best, factor):
    """The exponential of a logit below the highest; 0 for -inf, also where that is the highest."""
    return tl.where(value > float("-inf"), tl.exp((value - best) * factor), 0.0)


@triton.jit
def join_splits(floats, places, plane, at, there, factor):
    """The highest logit of a row, its first id, and each split's sum of weights relative to it."""
    highest = tl.load(floats + at, mask=there, other=float("-inf"))
    best = tl.max(highest, axis=0)
    first = tl.min(tl.where(there & (highest == best), tl.load(places + at, mask=there, other=0), HIGHEST), axis=0)
    return best, first, tl.load(floats + plane + at, mask=there, other=0.0) * exp_weight(highest, best, factor)


@triton.jit
def sampled_splits(table, entry, floats, places, rows, splits, S: tl.constexpr):
    """`join_splits` of what is sampled, and whether the row is a distribution."""
    plane, parts = rows.to(tl.int64) * splits, tl.arange(0, S)
    at, there = entry * splits + parts, parts < splits
    best, first, shares = join_splits(
        floats + 2 * plane, places + plane, plane, at, there, record_float(table, entry, HEAT)
    )  # fmt: skip
    odd = tl.max(tl.load(places + 2 * plane + at, mask=there, other=0), axis=0)
    return best, first, shares, (odd == 0) & (best > float("-inf")) & (best < float("inf"))
