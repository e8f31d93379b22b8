# ruff: noqa: ANN201  # functions of Triton have no types of Python's
"""Kernels over rows of logits: masks, log-sum-exp, and sampling of each row by its own parameters; none waits.

Letters: R rows of a batch, V vocabulary, S splits of a row, B ids a split, P pivots.

Launches of `sample_rows`: `_scan` (highest logits and sums of exponentials of each split); for batches with top-k,
top-p or min-p, those that find the few candidates among which the cut lies; then `_sample`. A split has B ids whatever
the batch, and parts are summed in order of ids: a row has the same bits in any batch.

Draws are the CPU's: the first id, in order of ids, at which the cumulative sum passes the row's uniform number. Sums
differ from the CPU's in their last bits: where the uniform number is within 1e-6 of an edge between two ids, or top-p
of a cumulative probability, either may be drawn.

Top-k, top-p and min-p need no sort, and their cut is exact: the smallest float32 for which fewer than k tokens, or
tokens of less probability than top-p, are higher. It is found by bisection over the bits of the floats, as in a radix
selection, between two pivots; of tokens as likely as the cut the first ones stay, as in a stable sort. Pivots narrow
the search down to few candidates, as in "Dual Pivot Rejection Sampling" (FlashInfer, 2025), whose draws are random ones
of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

_MASK_BLOCK = 1024


def apply_masks(logits: Tensor, rows: Tensor, words: Tensor) -> None:
    """Make -inf, in the given rows, every id whose bit is 0.

    logits: [R, V], contiguous, changed in place. rows: [n] int64. words: [n, ceil(V / 32)] int32, contiguous: bit
    `i % 32` of word `i // 32` for id i.
    """
    vocabulary = logits.shape[1]
    if len(rows):
        _apply_masks[(len(rows), triton.cdiv(vocabulary, _MASK_BLOCK))](
            logits, rows, words, vocabulary, words.shape[1], BLOCK=_MASK_BLOCK, num_warps=4
        )


@triton.jit(do_not_specialize=["rows", "words"])
def _apply_masks(logits, rows, words, vocabulary, width, BLOCK: tl.constexpr):
    """One block of one row's ids."""
    entry = tl.program_id(0).to(tl.int64)
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = ids < vocabulary
    word = tl.load(words + entry * width + ids // 32, mask=there, other=0)
    closed = ((word >> (ids % 32)) & 1) == 0
    row = tl.load(rows + entry)
    tl.store(logits + row * vocabulary + ids, float("-inf"), mask=there & closed)


_SUM_BLOCK = 4096


def logsumexp(logits: Tensor) -> Tensor:
    """[R] float32; torch's own picks its order of summing by the batch.

    logits: [R, V] float32, rows contiguous; NaN where a row holds NaN or plus infinity.
    """
    result = logits.new_empty(len(logits), dtype=torch.float32)
    if len(logits):
        _logsumexp[(len(logits),)](logits, result, logits.stride(0), logits.shape[1], BLOCK=_SUM_BLOCK, num_warps=8)
    return result


@triton.jit
def _logsumexp(logits, result, row_stride, vocabulary, BLOCK: tl.constexpr):
    """One row."""
    row = logits + tl.program_id(0).to(tl.int64) * row_stride
    ids = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, vocabulary, BLOCK):
        best = tl.maximum(best, tl.load(row + start + ids, mask=start + ids < vocabulary, other=float("-inf")))
    highest = tl.max(best, axis=0)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocabulary, BLOCK):
        own = tl.load(row + start + ids, mask=start + ids < vocabulary, other=float("-inf"))
        total += tl.exp(own - highest)
    tl.store(result + tl.program_id(0), highest + tl.log(tl.sum(total, axis=0)))


FIELDS = tl.constexpr(16)
"""Numbers in a row's record, each of eight bytes; those after are the places of each."""
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
    """Like `record_int`, for a float64 field."""
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
    """Factor on the difference of two such logits."""
    return tl.where(record_int(table, entry, MODE) == 2, record_float(table, entry, HEAT), 1.0)


@triton.jit
def is_idle(table, entry):
    """True if a record samples nothing, as those of padding in a captured step."""
    return record_int(table, entry, ROW) < 0


@triton.jit
def has_cut(table, entry):
    """True if a row that is sampled has top-k, top-p or min-p."""
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


@triton.jit
def _lowest_weight(table, entry, total, vocabulary):
    """Lower bounds of the weights that top-p and min-p leave, with some room for rounding."""
    top_p = record_float(table, entry, TOP_P)
    return tl.where(top_p < 1, (1 - top_p) * 0.5 * total / vocabulary, 0.0), record_float(table, entry, MIN_P) * 0.999


@triton.jit
def _kth_part(maxima, entry, number, k, MAXIMA: tl.constexpr):
    """The key of the k-th highest of the parts' highest logits; that of -inf where there are fewer parts."""
    parts = tl.arange(0, MAXIMA)
    keys = sort_key(tl.load(maxima + entry * number + parts, mask=parts < number, other=float("-inf")))
    low, high = tl.min(keys, axis=0).to(tl.int64), tl.max(keys, axis=0).to(tl.int64)
    while low < high:
        middle = low + ((high - low) >> 1)
        fits = tl.sum((keys > middle.to(tl.int32)).to(tl.int32), axis=0) < k
        high = tl.where(fits, middle, high)
        low = tl.where(fits, low, middle + 1)
    return low.to(tl.int32)


@triton.jit(do_not_specialize=["rows", "splits", "words", "masks", "number"])
def count_above_pivots(
    logits, table, masks, row_stride, words, vocabulary, rows, splits, floats, places, maxima,
    counts, masses, pivots, number,
    B: tl.constexpr, S: tl.constexpr, P: tl.constexpr, MAXIMA: tl.constexpr,
):  # fmt: skip
    """Number and weight of the ids of one split above each of a row's pivots."""
    entry, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if has_cut(table, entry) == 0:  # a captured step launches this whatever its rows are
        return
    best, _likeliest, shares, sound = sampled_splits(table, entry, floats, places, rows, splits, S)
    if sound:
        heat, k = record_float(table, entry, HEAT), record_int(table, entry, TOP_K)
        ids = split * B + tl.arange(0, B)
        _raw, _biased, logit = logit_stages(logits, table, masks, row_stride, words, entry, ids, ids < vocabulary)
        weights, keys = exp_weight(logit, best, heat), sort_key(logit)
        kth = tl.zeros([], tl.int32) + NO_KEY
        if k > 0:
            kth = tl.maximum(_kth_part(maxima, entry, number, k, MAXIMA) - 1, NO_KEY)
        by_top_p, by_min_p = _lowest_weight(table, entry, tl.sum(shares, axis=0), vocabulary)
        depth = tl.log(tl.maximum(tl.maximum(by_top_p, by_min_p), 1e-37)) / heat
        at = entry * splits + split
        for j in tl.static_range(P):
            own = sort_key(best + depth * (j / (P - 1)))
            pivot = tl.where(k > 0, kth if j > 0 else HIGHEST, own).to(tl.int32)
            above = keys > pivot
            tl.store(counts + at * 2 * P + j, tl.sum(above.to(tl.int32), axis=0))
            tl.store(masses + at * P + j, tl.sum(tl.where(above, weights, 0.0), axis=0))
            if split == 0:
                tl.store(pivots + entry * P + j, pivot)
        tl.store(counts + at * 2 * P + P, tl.sum((keys > NO_KEY).to(tl.int32), axis=0))


@triton.jit(do_not_specialize=["rows", "splits", "words", "masks"])
def collect_candidates(
    logits, table, masks, row_stride, words, vocabulary, rows, splits, floats, places,
    counts, masses, pivots, values, candidate_ids, bracket,
    B: tl.constexpr, S: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Write down, in order, one split's candidates: ids above the pivot below the cut, and the logits up to the next.

    The first plane of `values` has the logits of all candidates, the second those between the two pivots.
    """
    entry, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if has_cut(table, entry) == 0:
        return
    best, _likeliest, shares, sound = sampled_splits(table, entry, floats, places, rows, splits, S)
    if sound:
        k, top_p, total = record_int(table, entry, TOP_K), record_float(table, entry, TOP_P), tl.sum(shares, axis=0)
        parts, js = tl.arange(0, S), tl.arange(0, P)
        every = (entry * splits + parts)[:, None]
        there = (parts < splits)[:, None] & (js >= 0)[None, :]
        above = tl.sum(tl.load(counts + every * 2 * P + js[None, :], mask=there, other=0), axis=0)
        mass = tl.sum(tl.load(masses + every * P + js[None, :], mask=there, other=0.0), axis=0)
        goal = tl.where(k > 0, k.to(tl.float32), tl.where(top_p < 1, tl.maximum(top_p * total, 1e-30), float("inf")))
        fits = tl.sum((tl.where(k > 0, above.to(tl.float32), mass) < goal).to(tl.int32), axis=0)
        by_top_p, by_min_p = _lowest_weight(table, entry, total, vocabulary)
        lowest = tl.where((k <= 0) & (by_min_p > 0) & (by_min_p >= by_top_p), P - 1, P)
        upper, lower = tl.where(k > 0, 0, fits - 1), tl.minimum(fits, lowest)
        low = tl.load(pivots + entry * P + lower, mask=lower < P, other=NO_KEY)
        high = tl.load(pivots + entry * P + upper)
        own = (entry * splits + parts) * 2 * P
        candidates = tl.load(counts + own + lower, mask=parts < splits, other=0)
        between = candidates - tl.load(counts + own + upper, mask=parts < splits, other=0)
        ids = split * B + tl.arange(0, B)
        _raw, _biased, logit = logit_stages(logits, table, masks, row_stride, words, entry, ids, ids < vocabulary)
        keys, row = sort_key(logit), entry * vocabulary
        chosen = keys > low
        place = (
            row + tl.sum(tl.where(parts < split, candidates, 0), axis=0) + tl.cumsum(chosen.to(tl.int32), axis=0) - 1
        )
        tl.store(values + place, logit, mask=chosen)
        tl.store(candidate_ids + place, ids, mask=chosen)
        inner = chosen & (keys <= high)
        row += rows.to(tl.int64) * vocabulary
        place = row + tl.sum(tl.where(parts < split, between, 0), axis=0) + tl.cumsum(inner.to(tl.int32), axis=0) - 1
        tl.store(values + place, logit, mask=inner)
        if split == 0:
            mass_above = tl.sum(tl.where((js == upper) & (k <= 0), mass, 0.0), axis=0)
            tl.store(bracket + entry * 5, low)
            tl.store(bracket + entry * 5 + 1, tl.minimum(high, sort_key(best)))
            tl.store(bracket + entry * 5 + 2, tl.sum(candidates, axis=0))
            tl.store(bracket + entry * 5 + 3, tl.sum(between, axis=0))
            tl.store(bracket + entry * 5 + 4, mass_above.to(tl.int32, bitcast=True))


@triton.jit
def _above(values, number, key, best, heat, TILE_IDS: tl.constexpr, BY_COUNT: tl.constexpr):
    """Number or weight of the values above a key."""
    total = tl.zeros([TILE_IDS], tl.float32)
    for first in range(0, number, TILE_IDS):
        at = first + tl.arange(0, TILE_IDS)
        value = tl.load(values + at, mask=at < number, other=float("-inf"))
        size = tl.full([TILE_IDS], 1.0, tl.float32) if BY_COUNT else exp_weight(value, best, heat)
        total += tl.where(sort_key(value) > key, size, 0.0)
    return tl.sum(total, axis=0)


@triton.jit
def _search(values, number, low, high, base, goal, best, heat, TILE_IDS: tl.constexpr, BY_COUNT: tl.constexpr):
    """The smallest key of low to high above which there is less than the goal."""
    low, high = low.to(tl.int64), high.to(tl.int64)
    while low < high:
        middle = low + ((high - low) >> 1)
        fits = base + _above(values, number, middle.to(tl.int32), best, heat, TILE_IDS, BY_COUNT=BY_COUNT) < goal
        high = tl.where(fits, middle, high)
        low = tl.where(fits, low, middle + 1)
    return low.to(tl.int32)


@triton.jit
def find_cut(table, entry, bracket, values, total, best, heat, TILE_IDS: tl.constexpr):
    """The lowest key that stays after top-k and top-p, and how many of those with it stay."""
    low, high = tl.load(bracket + entry * 5), tl.load(bracket + entry * 5 + 1)
    number = tl.load(bracket + entry * 5 + 3)
    base = tl.load(bracket + entry * 5 + 4).to(tl.float32, bitcast=True)
    k, top_p = record_int(table, entry, TOP_K).to(tl.float32), record_float(table, entry, TOP_P)
    cut, ties, mass = low, tl.zeros([], tl.float32) + float("inf"), total
    if k > 0:
        cut = _search(values, number, low, high, 0.0, k, best, heat, TILE_IDS, BY_COUNT=True)
        ties = k - _above(values, number, cut, best, heat, TILE_IDS, BY_COUNT=True)
        mass = _above(values, number, cut, best, heat, TILE_IDS, BY_COUNT=False) + ties * exp_weight(
            key_value(cut), best, heat
        )
    if top_p < 1:
        goal, least = tl.maximum(top_p * mass, 1e-30), cut
        cut = _search(values, number, least, high, base, goal, best, heat, TILE_IDS, BY_COUNT=False)
        left = goal - base - _above(values, number, cut, best, heat, TILE_IDS, BY_COUNT=False)
        more = tl.maximum(tl.ceil(left / tl.maximum(exp_weight(key_value(cut), best, heat), 1e-37)), 1.0)
        ties = tl.where(cut == least, tl.minimum(ties, more), more)
    return cut, ties


@triton.jit
def draw_first(weights, ids, before, goal):
    """The first id at which the cumulative sum passes the goal, and the last one of any weight."""
    passed = (before + tl.cumsum(weights.to(tl.float64), axis=0) > goal) & (weights > 0)
    first = tl.min(tl.where(passed, ids, HIGHEST), axis=0)
    return first, tl.max(tl.where(weights > 0, ids, -1), axis=0)


@triton.jit
def is_kept(keys, ids, cut, last):
    """True if a token is above the cut, or among the first ones at it."""
    return (keys > cut) | ((keys == cut) & (ids <= last))


@triton.jit
def draw_candidate(
    table, entry, values, candidate_ids, number, cut, ties, uniform, best, heat, TILE_IDS: tl.constexpr
):  # fmt: skip
    """An id of the candidates that stay; the sum of their weights; the last id that stays at the cut."""
    seen, last, total = 0, -1, tl.zeros([], tl.float64)
    for first in range(0, number, TILE_IDS):
        at = first + tl.arange(0, TILE_IDS)
        equal = (sort_key(tl.load(values + at, mask=at < number, other=float("-inf"))) == cut) & (at < number)
        ids = tl.load(candidate_ids + at, mask=at < number, other=-1)
        stays = equal & ((seen + tl.cumsum(equal.to(tl.int32), axis=0)).to(tl.float32) <= ties)
        last = tl.maximum(last, tl.max(tl.where(stays, ids, -1), axis=0))
        seen += tl.sum(equal.to(tl.int32), axis=0)
    least = tl.minimum(record_float(table, entry, MIN_P), 1.0)
    for first in range(0, number, TILE_IDS):
        weights, ids = _staying(values, candidate_ids, first, number, cut, last, least, best, heat, TILE_IDS)
        total += tl.sum(weights.to(tl.float64), axis=0)
    before, token, end = tl.zeros([], tl.float64), tl.zeros([], tl.int32) + HIGHEST, tl.zeros([], tl.int32) - 1
    for first in range(0, number, TILE_IDS):
        weights, ids = _staying(values, candidate_ids, first, number, cut, last, least, best, heat, TILE_IDS)
        passed, own = draw_first(weights, ids, before, uniform * total)
        token, end = tl.minimum(token, passed), tl.maximum(end, own)
        before += tl.sum(weights.to(tl.float64), axis=0)
    return tl.where(token == HIGHEST, end, token), total, last


@triton.jit
def _staying(values, candidate_ids, first, number, cut, last, least, best, heat, TILE_IDS: tl.constexpr):
    """Weights of a tile of candidates, 0 for those that do not stay, and their ids."""
    at = first + tl.arange(0, TILE_IDS)
    value = tl.load(values + at, mask=at < number, other=float("-inf"))
    ids = tl.load(candidate_ids + at, mask=at < number, other=-1)
    weights = exp_weight(value, best, heat)
    return tl.where(is_kept(sort_key(value), ids, cut, last) & (weights >= least), weights, 0.0), ids


SPLIT = 4096
"""B."""
PART = 128
"""Ids whose highest logit is noted; the k-th highest of these is a lower bound for top-k."""
TILE = 2048
"""Candidates looked at together."""
PIVOTS = 8
"""P, a power of two."""

_SPLITS, _MAXIMA = 64, 2048
"""Splits of a row, and maxima of parts, for which kernels are compiled at least: those of 262,144 ids."""

_SETTINGS = {"num_warps": 8, "enable_fp_fusion": False}
"""Without fusion, so that each kernel computes the same bits from the same logit."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Results of `sample_rows`; all on the logits' device."""

    tokens: Tensor
    """[R] int64, of the vocabulary also for a row that is no distribution."""
    results: Tensor
    """[R, 4] int32: token, bits of its logprob, the likeliest id, bits of its logprob; NaN for no distribution."""
    shapes: Tensor
    """[R, 4] int32, for `all_logprobs`: bits of the highest logit and of the log of the sum of weights, the lowest key
    that stays, and the last id that stays of those with it."""


def sample_rows(logits: Tensor, table: Tensor, masks: Tensor, *, cuts: bool, samples: Samples | None = None) -> Samples:
    """Sample or score a token a row; for a record whose row is below 0 nothing is done.

    logits: [N, V], float32 or bfloat16, rows contiguous. table: [R, 16] int64, a record a row, see
    `lmtool.inference.engine.cuda.sampling`. masks: [n, ceil(V / 32)] int32, those that records name.
    cuts: whether any row has top-k, top-p or min-p. samples: where to write what is returned.
    """
    rows, vocabulary = len(table), logits.shape[1]
    splits = triton.cdiv(vocabulary, SPLIT)

    def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=logits.device)

    floats, places = empty(4, rows, splits, dtype=torch.float32), empty(3, rows, splits)
    maxima = empty(rows, splits * (SPLIT // PART), dtype=torch.float32)
    source = (logits, table, masks, logits.stride(0), masks.shape[1], vocabulary, rows, splits)
    wide = max(_SPLITS, triton.next_power_of_2(splits))
    _scan[(rows, splits)](*source, floats, places, maxima, B=SPLIT, PART_IDS=PART, **_SETTINGS)
    values, ids = empty(2, *((rows, vocabulary) if cuts else (1, 1)), dtype=torch.float32), empty(1)
    bracket = empty(rows, 5)
    if cuts:
        ids = empty(rows, vocabulary)
        counts, masses = empty(rows, splits, 2 * PIVOTS), empty(rows, splits, PIVOTS, dtype=torch.float32)
        pivots = empty(rows, PIVOTS)
        count_above_pivots[(rows, splits)](
            *source, floats, places, maxima, counts, masses, pivots, maxima.shape[1],
            B=SPLIT, S=wide, P=PIVOTS, MAXIMA=max(_MAXIMA, triton.next_power_of_2(maxima.shape[1])), **_SETTINGS,
        )  # fmt: skip
        collect_candidates[(rows, splits)](
            *source, floats, places, counts, masses, pivots, values, ids, bracket,
            B=SPLIT, S=wide, P=PIVOTS, **_SETTINGS,
        )  # fmt: skip
    samples = samples or Samples(empty(rows, dtype=torch.int64), empty(rows, 4), empty(rows, 4))
    _sample[(rows,)](
        *source, floats, places, values, ids, bracket, samples.tokens, samples.results, samples.shapes,
        B=SPLIT, S=wide, TILE_IDS=TILE, CUTS=cuts, **{**_SETTINGS, "num_warps": 16},
    )  # fmt: skip
    return samples


def all_logprobs(logits: Tensor, table: Tensor, masks: Tensor, shapes: Tensor, chosen: Tensor) -> Tensor:
    """[n, V] float32, the log-probabilities of every id in `chosen` rows; -inf for one that cannot be sampled.

    logits, table, masks: as for `sample_rows`. shapes: what it returned. chosen: [n] int64, places in the table.
    """
    vocabulary = logits.shape[1]
    result = torch.empty(len(chosen), vocabulary, dtype=torch.float32, device=logits.device)
    grid = (len(chosen), triton.cdiv(vocabulary, SPLIT))
    _all_logprobs[grid](
        logits, table, masks, logits.stride(0), masks.shape[1], vocabulary, shapes, chosen, result,
        B=SPLIT, **_SETTINGS,
    )  # fmt: skip
    return result


def count_tokens(table: Tensor, results: Tensor) -> None:
    """Add each row's id to the counts that its record names, for the next step; the last thing done with a table.

    results: [R, 4] int32, see `Samples`. Rows without counts, those that are no distribution, and records whose row is
    below 0 add nothing.
    """
    _count[(len(table),)](table, results, num_warps=1)


@triton.jit(do_not_specialize=["rows", "splits", "words", "masks"])
def _scan(
    logits, table, masks, row_stride, words, vocabulary, rows, splits, floats, places, maxima,
    B: tl.constexpr, PART_IDS: tl.constexpr,
):  # fmt: skip
    """Highest logit, its first id and the sum of weights of one split, for both the mode and what is sampled."""
    entry, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if is_idle(table, entry):
        return
    ids = split * B + tl.arange(0, B)
    raw, biased, processed = logit_stages(logits, table, masks, row_stride, words, entry, ids, ids < vocabulary)
    own = mode_logits(table, entry, raw, biased, processed)
    plane, at = rows.to(tl.int64) * splits, entry * splits + split
    best = tl.max(own, axis=0)
    tl.store(floats + at, best)
    tl.store(floats + plane + at, tl.sum(exp_weight(own, best, mode_factor(table, entry)), axis=0))
    tl.store(places + at, tl.min(tl.where(own == best, ids, HIGHEST), axis=0))
    best = tl.max(processed, axis=0)
    tl.store(floats + 2 * plane + at, best)
    tl.store(floats + 3 * plane + at, tl.sum(exp_weight(processed, best, record_float(table, entry, HEAT)), axis=0))
    tl.store(places + plane + at, tl.min(tl.where(processed == best, ids, HIGHEST), axis=0))
    odd = (raw != raw) | (raw == float("inf"))
    tl.store(places + 2 * plane + at, tl.max(odd.to(tl.int32), axis=0))
    parts = tl.max(tl.reshape(processed, [B // PART_IDS, PART_IDS]), axis=1)
    tl.store(maxima + at * (B // PART_IDS) + tl.arange(0, B // PART_IDS), parts)


@triton.jit
def _draw_any(
    logits, table, masks, row_stride, words, vocabulary, entry, shares, uniform, best, heat,
    B: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    """An id of the whole row: first the split in which the cumulative sum passes, then the id in it."""
    parts, wide = tl.arange(0, S), shares.to(tl.float64)
    goal = uniform * tl.sum(wide, axis=0)
    split, last = draw_first(shares, parts, 0.0, goal)
    split = tl.where(split == HIGHEST, last, split)
    before = tl.sum(tl.where(parts < split, wide, 0.0), axis=0)
    ids = split * B + tl.arange(0, B)
    there = (ids < vocabulary) & (ids >= 0)
    _raw, _biased, logit = logit_stages(logits, table, masks, row_stride, words, entry, ids, there)
    token, last = draw_first(exp_weight(logit, best, heat), ids, before, goal)
    return tl.where(token == HIGHEST, last, token)


@triton.jit(do_not_specialize=["rows", "splits", "words", "masks"])
def _sample(
    logits, table, masks, row_stride, words, vocabulary, rows, splits, floats, places, values, candidate_ids, bracket,
    tokens, results, shapes,
    B: tl.constexpr, S: tl.constexpr, TILE_IDS: tl.constexpr, CUTS: tl.constexpr,
):  # fmt: skip
    """Sample one row, and take the log-probabilities of the sampled and of the likeliest id."""
    entry = tl.program_id(0).to(tl.int64)
    if is_idle(table, entry):
        return
    best, likeliest, shares, sound = sampled_splits(table, entry, floats, places, rows, splits, S)
    heat = record_float(table, entry, HEAT)
    total = tl.sum(shares, axis=0)
    token, mass, cut, last = (
        likeliest,
        total.to(tl.float64),
        tl.zeros([], tl.int32) + NO_KEY,
        tl.zeros([], tl.int32) - 1,
    )
    if sound & (record_int(table, entry, RANDOM) != 0):
        uniform = record_int(table, entry, UNIFORM).to(tl.float64, bitcast=True)
        if has_cut(table, entry):
            if CUTS:
                own = values + entry * vocabulary
                inner = own + rows.to(tl.int64) * vocabulary
                cut, ties = find_cut(table, entry, bracket, inner, total, best, heat, TILE_IDS)
                number = tl.load(bracket + entry * 5 + 2)
                token, mass, last = draw_candidate(
                    table, entry, own, candidate_ids + entry * vocabulary, number, cut, ties, uniform, best, heat,
                    TILE_IDS,
                )  # fmt: skip
        else:
            token = _draw_any(
                logits, table, masks, row_stride, words, vocabulary, entry, shares, uniform, best, heat, B, S
            )  # fmt: skip
    target = record_int(table, entry, TARGET).to(tl.int32)
    token = tl.where(target >= 0, target, tl.where(sound & (token >= 0) & (token < vocabulary), token, 0))
    plane, parts = rows.to(tl.int64) * splits, tl.arange(0, S)
    factor = mode_factor(table, entry)
    highest, first, own = join_splits(floats, places, plane, entry * splits + parts, parts < splits, factor)
    normaliser = tl.log(tl.where(record_int(table, entry, MODE) == 2, mass.to(tl.float32), tl.sum(own, axis=0)))
    raw, biased, processed = logit_stages(logits, table, masks, row_stride, words, entry, token, token >= 0)
    chosen = (mode_logits(table, entry, raw, biased, processed) - highest) * factor - normaliser
    chosen = tl.minimum(tl.maximum(chosen, -3.4028234663852886e38), 0.0)
    sound = sound & (highest > float("-inf")) & (normaliser == normaliser)
    tl.store(tokens + entry, token.to(tl.int64))
    tl.store(results + entry * 4, token)
    tl.store(results + entry * 4 + 1, tl.where(sound, chosen, float("nan")).to(tl.int32, bitcast=True))
    tl.store(results + entry * 4 + 2, tl.where(sound, first, 0))
    tl.store(results + entry * 4 + 3, tl.minimum(-normaliser, 0.0).to(tl.int32, bitcast=True))
    tl.store(shapes + entry * 4, highest.to(tl.int32, bitcast=True))
    tl.store(shapes + entry * 4 + 1, normaliser.to(tl.int32, bitcast=True))
    tl.store(shapes + entry * 4 + 2, cut)
    tl.store(shapes + entry * 4 + 3, last)


@triton.jit
def _count(table, results):
    """Add one row's id to its stream's counts."""
    entry = tl.program_id(0).to(tl.int64)
    at = record_int(table, entry, COUNTS)
    logprob = tl.load(results + entry * 4 + 1).to(tl.float32, bitcast=True)
    sampled = (at != 0) & (logprob == logprob) & (is_idle(table, entry) == 0)
    place = at.to(tl.pointer_type(tl.int32)) + tl.load(results + entry * 4)
    tl.atomic_add(place, 2, mask=sampled, sem="relaxed")
    tl.atomic_or(place, 1, mask=sampled, sem="relaxed")


@triton.jit(do_not_specialize=["words", "masks"])
def _all_logprobs(
    logits, table, masks, row_stride, words, vocabulary, shapes, chosen, result, B: tl.constexpr
):  # fmt: skip
    """One split of one row."""
    entry = tl.load(chosen + tl.program_id(0)).to(tl.int64)
    ids = tl.program_id(1) * B + tl.arange(0, B)
    raw, biased, processed = logit_stages(logits, table, masks, row_stride, words, entry, ids, ids < vocabulary)
    own = mode_logits(table, entry, raw, biased, processed)
    highest = tl.load(shapes + entry * 4).to(tl.float32, bitcast=True)
    normaliser = tl.load(shapes + entry * 4 + 1).to(tl.float32, bitcast=True)
    cut, last = tl.load(shapes + entry * 4 + 2), tl.load(shapes + entry * 4 + 3)
    below = (own - highest) * mode_factor(table, entry)
    stays = is_kept(sort_key(own), ids, cut, last) & (
        tl.exp(below) >= tl.minimum(record_float(table, entry, MIN_P), 1.0)
    )
    dropped = (record_int(table, entry, MODE) == 2) & has_cut(table, entry) & (stays == 0)
    logprob = tl.where(dropped, float("-inf"), tl.minimum(below - normaliser, 0.0))
    tl.store(result + tl.program_id(0).to(tl.int64) * vocabulary + ids, logprob, mask=ids < vocabulary)
