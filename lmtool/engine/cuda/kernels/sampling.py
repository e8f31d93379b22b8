"""Samples one token from each of many rows of logits, each row by its own parameters; nothing waits for the device.

Letters: R rows, V vocabulary, S splits of a row, B ids a split, P pivots.

Launches: `_scan` (highest logits and sums of exponentials of each split), for batches with top-k, top-p or min-p
`_pivots` and `_collect` (the few candidates among which the cut lies), then `_sample`. A split has B ids whatever the
batch, and parts are summed in order of ids: a row has the same bits in any batch.

The cut is exact, without a sort: the smallest float32 for which fewer than k tokens, or tokens of less probability
than top-p, are higher. It is found by bisection over the bits of the floats, as radix selection does, between two
pivots; of tokens as likely as the cut the first ones stay, as in a stable sort. Pivots narrow the search as in
"Dual Pivot Rejection Sampling" (FlashInfer, 2025), whose draws are random ones of their own. Ours are the CPU's: the
first id, in order of ids, at which the cumulative sum passes the row's uniform number. Sums differ from the CPU's in
their last bits: where the uniform number is within 1e-6 of an edge between two ids, either may be drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

SPLIT = 4096
"""B."""
PART = 128
"""Ids whose highest logit is noted; the k-th highest of these is a lower bound for top-k."""
TILE = 2048
"""Candidates looked at together."""
PIVOTS = 8
"""P, a power of two."""

FIELDS = tl.constexpr(16)
"""Numbers in a row's record, each of eight bytes; those behind are the places of each."""
ROW = tl.constexpr(0)
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

_NO_KEY = tl.constexpr(-2139095041)
"""`_key` of minus infinity."""
_HIGHEST = tl.constexpr(2147483647)

_SETTINGS = {"num_warps": 8, "enable_fp_fusion": False}
"""Without fusion, so that each kernel computes the same bits from the same logit."""


@dataclass(frozen=True, slots=True)
class Samples:
    """What `sample_rows` gives; all on the logits' device."""

    tokens: Tensor
    """[R] int64, of the vocabulary also for a row that is no distribution."""
    results: Tensor
    """[R, 4] int32: token, bits of its logprob, the likeliest id, bits of its logprob; NaN for no distribution."""
    shapes: Tensor
    """[R, 4] int32, for `all_logprobs`: bits of the highest logit and of the log of the sum of weights, the lowest key
    that stays, and the last id that stays of those with it."""


def sample_rows(logits: Tensor, table: Tensor, masks: Tensor, *, cuts: bool) -> Samples:
    """Sample or score a token a row.

    logits: [N, V], float32 or bfloat16, rows contiguous. table: [R, 16] int64, a record a row, see
    `lmtool.engine.cuda.sampling`. masks: [n, ceil(V / 32)] int32, those that records name. cuts: whether any row has
    top-k, top-p or min-p.
    """
    rows, vocabulary = len(table), logits.shape[1]
    splits = triton.cdiv(vocabulary, SPLIT)

    def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=logits.device)

    floats, places = empty(4, rows, splits, dtype=torch.float32), empty(3, rows, splits)
    maxima = empty(rows, splits * (SPLIT // PART), dtype=torch.float32)
    source = (logits, table, masks, logits.stride(0), masks.shape[1], vocabulary, rows, splits)
    wide = triton.next_power_of_2(splits)
    _scan[(rows, splits)](*source, floats, places, maxima, B=SPLIT, PART_IDS=PART, **_SETTINGS)
    values, ids = empty(2, *((rows, vocabulary) if cuts else (1, 1)), dtype=torch.float32), empty(1)
    bracket = empty(rows, 5)
    if cuts:
        ids = empty(rows, vocabulary)
        counts, masses = empty(rows, splits, 2 * PIVOTS), empty(rows, splits, PIVOTS, dtype=torch.float32)
        pivots = empty(rows, PIVOTS)
        _pivots[(rows, splits)](
            *source, floats, places, maxima, counts, masses, pivots, maxima.shape[1],
            B=SPLIT, S=wide, P=PIVOTS, MAXIMA=triton.next_power_of_2(maxima.shape[1]), **_SETTINGS,
        )  # fmt: skip
        _collect[(rows, splits)](
            *source, floats, places, counts, masses, pivots, values, ids, bracket,
            B=SPLIT, S=wide, P=PIVOTS, **_SETTINGS,
        )  # fmt: skip
    samples = Samples(empty(rows, dtype=torch.int64), empty(rows, 4), empty(rows, 4))
    _sample[(rows,)](
        *source, floats, places, values, ids, bracket, samples.tokens, samples.results, samples.shapes,
        B=SPLIT, S=wide, TILE_IDS=TILE, CUTS=cuts, **_SETTINGS,
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


@triton.jit
def _integer(table, entry, field: tl.constexpr):
    """A field of a row's record."""
    return tl.load(table + entry * FIELDS + field)


@triton.jit
def _real(table, entry, field: tl.constexpr):
    """The same, where it is a float64."""
    return tl.load(table + entry * FIELDS + field).to(tl.float64, bitcast=True).to(tl.float32)


@triton.jit
def _stages(logits, table, masks, row_stride, words, entry, ids, there):
    """Logits of these ids, -inf where there are none: raw, biased, and with penalties and barred ids."""
    row = logits + _integer(table, entry, ROW) * row_stride
    raw = tl.load(row + ids, mask=there, other=float("-inf")).to(tl.float32)
    at = _integer(table, entry, BIAS)
    biased = raw + tl.load(at.to(tl.pointer_type(tl.float32)) + ids, mask=there & (at != 0), other=0.0)
    index = _integer(table, entry, MASK)
    word = tl.load(masks + index * words + (ids >> 5), mask=there & (index >= 0), other=-1)
    biased = tl.where(((word >> (ids & 31)) & 1) != 0, biased, float("-inf"))
    at = _integer(table, entry, COUNTS)
    counted = tl.load(at.to(tl.pointer_type(tl.int32)) + ids, mask=there & (at != 0), other=0)
    factor = _real(table, entry, REPETITION)
    repeated = tl.where(biased > 0, tl.div_rn(biased, factor), biased * factor)
    processed = tl.where((counted & 1) != 0, repeated, biased)
    often = (counted >> 1).to(tl.float32)
    penalty = _real(table, entry, PRESENCE) + _real(table, entry, FREQUENCY) * often
    processed = tl.where(counted > 1, processed - penalty, processed)
    at = _integer(table, entry, BARRED)
    word = tl.load(at.to(tl.pointer_type(tl.int32)) + (ids >> 5), mask=there & (at != 0), other=0)
    processed = tl.where(((word >> (ids & 31)) & 1) != 0, float("-inf"), processed)
    return raw, biased, tl.where(processed == 0, 0.0, processed)


@triton.jit
def _of_mode(table, entry, raw, biased, processed):
    """The logits that log-probabilities are taken from."""
    mode = _integer(table, entry, MODE)
    return tl.where(mode == 0, raw, tl.where(mode == 1, biased, processed))


@triton.jit
def _factor_of_mode(table, entry):
    """What the difference of two such logits is multiplied with."""
    return tl.where(_integer(table, entry, MODE) == 2, _real(table, entry, HEAT), 1.0)


@triton.jit
def _cuts(table, entry):
    """Whether a row has top-k, top-p or min-p."""
    cut = (_integer(table, entry, TOP_K) > 0) | (_real(table, entry, TOP_P) < 1) | (_real(table, entry, MIN_P) > 0)
    return cut & (_integer(table, entry, RANDOM) != 0)


@triton.jit
def _key(value):
    """int32 in the order of the floats; its own inverse, but for the type."""
    bits = value.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _value(key):
    """The float of a key."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _weight(value, best, factor):
    """The exponential of a logit below the highest; 0 for -inf, also where that is the highest."""
    return tl.where(value > float("-inf"), tl.exp((value - best) * factor), 0.0)


@triton.jit
def _scan(
    logits, table, masks, row_stride, words, vocabulary, rows, splits, floats, places, maxima,
    B: tl.constexpr, PART_IDS: tl.constexpr,
):  # fmt: skip
    """Of one split: the highest logit, its first id and the sum of weights, of both the mode and what is sampled."""
    entry, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    ids = split * B + tl.arange(0, B)
    raw, biased, processed = _stages(logits, table, masks, row_stride, words, entry, ids, ids < vocabulary)
    own = _of_mode(table, entry, raw, biased, processed)
    plane, at = rows.to(tl.int64) * splits, entry * splits + split
    best = tl.max(own, axis=0)
    tl.store(floats + at, best)
    tl.store(floats + plane + at, tl.sum(_weight(own, best, _factor_of_mode(table, entry)), axis=0))
    tl.store(places + at, tl.min(tl.where(own == best, ids, _HIGHEST), axis=0))
    best = tl.max(processed, axis=0)
    tl.store(floats + 2 * plane + at, best)
    tl.store(floats + 3 * plane + at, tl.sum(_weight(processed, best, _real(table, entry, HEAT)), axis=0))
    tl.store(places + plane + at, tl.min(tl.where(processed == best, ids, _HIGHEST), axis=0))
    odd = (raw != raw) | (raw == float("inf"))
    tl.store(places + 2 * plane + at, tl.max(odd.to(tl.int32), axis=0))
    parts = tl.max(tl.reshape(processed, [B // PART_IDS, PART_IDS]), axis=1)
    tl.store(maxima + at * (B // PART_IDS) + tl.arange(0, B // PART_IDS), parts)


@triton.jit
def _joined(floats, places, plane, at, there, factor):
    """The highest logit of a row, its first id, and each split's sum of weights relative to it."""
    highest = tl.load(floats + at, mask=there, other=float("-inf"))
    best = tl.max(highest, axis=0)
    first = tl.min(tl.where(there & (highest == best), tl.load(places + at, mask=there, other=0), _HIGHEST), axis=0)
    return best, first, tl.load(floats + plane + at, mask=there, other=0.0) * _weight(highest, best, factor)


@triton.jit
def _sampled_from(table, entry, floats, places, rows, splits, S: tl.constexpr):
    """`_joined` of what is sampled, and whether the row is a distribution."""
    plane, parts = rows.to(tl.int64) * splits, tl.arange(0, S)
    at, there = entry * splits + parts, parts < splits
    best, first, shares = _joined(
        floats + 2 * plane, places + plane, plane, at, there, _real(table, entry, HEAT)
    )  # fmt: skip
    odd = tl.max(tl.load(places + 2 * plane + at, mask=there, other=0), axis=0)
    return best, first, shares, (odd == 0) & (best > float("-inf")) & (best < float("inf"))


@triton.jit
def _lowest_weight(table, entry, total, vocabulary):
    """Lower bounds of the weights that top-p and min-p leave, with some room for rounding."""
    top_p = _real(table, entry, TOP_P)
    return tl.where(top_p < 1, (1 - top_p) * 0.5 * total / vocabulary, 0.0), _real(table, entry, MIN_P) * 0.999


@triton.jit
def _kth_part(maxima, entry, number, k, MAXIMA: tl.constexpr):
    """The key of the k-th highest of the parts' highest logits; that of -inf where there are fewer parts."""
    parts = tl.arange(0, MAXIMA)
    keys = _key(tl.load(maxima + entry * number + parts, mask=parts < number, other=float("-inf")))
    low, high = tl.min(keys, axis=0).to(tl.int64), tl.max(keys, axis=0).to(tl.int64)
    while low < high:
        middle = low + ((high - low) >> 1)
        fits = tl.sum((keys > middle.to(tl.int32)).to(tl.int32), axis=0) < k
        high = tl.where(fits, middle, high)
        low = tl.where(fits, low, middle + 1)
    return low.to(tl.int32)


@triton.jit
def _pivots(
    logits, table, masks, row_stride, words, vocabulary, rows, splits, floats, places, maxima,
    counts, masses, pivots, number,
    B: tl.constexpr, S: tl.constexpr, P: tl.constexpr, MAXIMA: tl.constexpr,
):  # fmt: skip
    """Of one split: how many ids, and how much weight, are above each of a row's pivots."""
    entry, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    best, _, shares, sound = _sampled_from(table, entry, floats, places, rows, splits, S)
    if sound & _cuts(table, entry):
        heat, k = _real(table, entry, HEAT), _integer(table, entry, TOP_K)
        ids = split * B + tl.arange(0, B)
        _, _, logit = _stages(logits, table, masks, row_stride, words, entry, ids, ids < vocabulary)
        weights, keys = _weight(logit, best, heat), _key(logit)
        kth = tl.maximum(_kth_part(maxima, entry, number, k, MAXIMA) - 1, _NO_KEY)
        by_top_p, by_min_p = _lowest_weight(table, entry, tl.sum(shares, axis=0), vocabulary)
        depth = tl.log(tl.maximum(tl.maximum(by_top_p, by_min_p), 1e-37)) / heat
        at = entry * splits + split
        for j in tl.static_range(P):
            own = _key(best + depth * (j / (P - 1)))
            pivot = tl.where(k > 0, kth if j > 0 else _HIGHEST, own).to(tl.int32)
            above = keys > pivot
            tl.store(counts + at * 2 * P + j, tl.sum(above.to(tl.int32), axis=0))
            tl.store(masses + at * P + j, tl.sum(tl.where(above, weights, 0.0), axis=0))
            if split == 0:
                tl.store(pivots + entry * P + j, pivot)
        tl.store(counts + at * 2 * P + P, tl.sum((keys > _NO_KEY).to(tl.int32), axis=0))


@triton.jit
def _collect(
    logits, table, masks, row_stride, words, vocabulary, rows, splits, floats, places,
    counts, masses, pivots, values, found, bracket,
    B: tl.constexpr, S: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Write down, in order, one split's candidates: ids above the pivot below the cut, and the logits up to the next.

    The first plane of `values` has the logits of all candidates, the second those between the two pivots.
    """
    entry, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    best, _, shares, sound = _sampled_from(table, entry, floats, places, rows, splits, S)
    if sound & _cuts(table, entry):
        k, top_p, total = _integer(table, entry, TOP_K), _real(table, entry, TOP_P), tl.sum(shares, axis=0)
        parts, js = tl.arange(0, S), tl.arange(0, P)
        every = (entry * splits + parts)[:, None]
        there = (parts < splits)[:, None] & (js >= 0)[None, :]
        above = tl.sum(tl.load(counts + every * 2 * P + js[None, :], mask=there, other=0), axis=0)
        mass = tl.sum(tl.load(masses + every * P + js[None, :], mask=there, other=0.0), axis=0)
        goal = tl.where(k > 0, k.to(tl.float32), tl.where(top_p < 1, tl.maximum(top_p * total, 1e-30), float("inf")))
        fits = tl.sum((tl.where(k > 0, above.to(tl.float32), mass) < goal).to(tl.int32), axis=0)
        by_top_p, by_min_p = _lowest_weight(table, entry, total, vocabulary)
        lowest = tl.where((k <= 0) & (by_min_p > 0) & (by_min_p >= by_top_p), P - 1, P)
        upper, lower = fits - 1, tl.minimum(fits, lowest)
        low = tl.load(pivots + entry * P + lower, mask=lower < P, other=_NO_KEY)
        high = tl.load(pivots + entry * P + upper)
        own = (entry * splits + parts) * 2 * P
        candidates = tl.load(counts + own + lower, mask=parts < splits, other=0)
        between = candidates - tl.load(counts + own + upper, mask=parts < splits, other=0)
        ids = split * B + tl.arange(0, B)
        _, _, logit = _stages(logits, table, masks, row_stride, words, entry, ids, ids < vocabulary)
        keys, row = _key(logit), entry * vocabulary
        chosen = keys > low
        place = row + tl.sum(tl.where(parts < split, candidates, 0), axis=0) + tl.cumsum(chosen.to(tl.int32), axis=0) - 1
        tl.store(values + place, logit, mask=chosen)
        tl.store(found + place, ids, mask=chosen)
        inner = chosen & (keys <= high)
        row += rows.to(tl.int64) * vocabulary
        place = row + tl.sum(tl.where(parts < split, between, 0), axis=0) + tl.cumsum(inner.to(tl.int32), axis=0) - 1
        tl.store(values + place, logit, mask=inner)
        if split == 0:
            mass_above = tl.sum(tl.where((js == upper) & (k <= 0), mass, 0.0), axis=0)
            tl.store(bracket + entry * 5, low)
            tl.store(bracket + entry * 5 + 1, tl.minimum(high, _key(best)))
            tl.store(bracket + entry * 5 + 2, tl.sum(candidates, axis=0))
            tl.store(bracket + entry * 5 + 3, tl.sum(between, axis=0))
            tl.store(bracket + entry * 5 + 4, mass_above.to(tl.int32, bitcast=True))


@triton.jit
def _above(values, number, key, best, heat, by_count, TILE_IDS: tl.constexpr):
    """How many of the values are above a key, or how much weight."""
    total = tl.zeros([TILE_IDS], tl.float32)
    for first in range(0, number, TILE_IDS):
        at = first + tl.arange(0, TILE_IDS)
        value = tl.load(values + at, mask=at < number, other=float("-inf"))
        total += tl.where(_key(value) > key, tl.where(by_count, 1.0, _weight(value, best, heat)), 0.0)
    return tl.sum(total, axis=0)


@triton.jit
def _search(values, number, low, high, base, goal, best, heat, by_count, TILE_IDS: tl.constexpr):
    """The smallest key of low to high above which there is less than the goal."""
    low, high = low.to(tl.int64), high.to(tl.int64)
    while low < high:
        middle = low + ((high - low) >> 1)
        fits = base + _above(values, number, middle.to(tl.int32), best, heat, by_count, TILE_IDS) < goal
        high = tl.where(fits, middle, high)
        low = tl.where(fits, low, middle + 1)
    return low.to(tl.int32)


@triton.jit
def _cut(table, entry, bracket, values, total, best, heat, TILE_IDS: tl.constexpr):
    """The lowest key that stays after top-k and top-p, and how many of those with it stay."""
    low, high = tl.load(bracket + entry * 5), tl.load(bracket + entry * 5 + 1)
    number = tl.load(bracket + entry * 5 + 3)
    base = tl.load(bracket + entry * 5 + 4).to(tl.float32, bitcast=True)
    k, top_p = _integer(table, entry, TOP_K).to(tl.float32), _real(table, entry, TOP_P)
    cut, ties, mass = low, tl.zeros([], tl.float32) + float("inf"), total
    if k > 0:
        cut = _search(values, number, low, high, 0.0, k, best, heat, True, TILE_IDS)
        ties = k - _above(values, number, cut, best, heat, True, TILE_IDS)
        mass = _above(values, number, cut, best, heat, False, TILE_IDS) + ties * _weight(_value(cut), best, heat)
    if top_p < 1:
        goal, least = tl.maximum(top_p * mass, 1e-30), cut
        cut = _search(values, number, least, high, base, goal, best, heat, False, TILE_IDS)
        left = goal - base - _above(values, number, cut, best, heat, False, TILE_IDS)
        more = tl.maximum(tl.ceil(left / tl.maximum(_weight(_value(cut), best, heat), 1e-37)), 1.0)
        ties = tl.where(cut == least, tl.minimum(ties, more), more)
    return cut, ties


@triton.jit
def _draw(weights, ids, before, goal):
    """The first id at which the cumulative sum passes the goal, and the last one of any weight."""
    passed = (before + tl.cumsum(weights.to(tl.float64), axis=0) > goal) & (weights > 0)
    first = tl.min(tl.where(passed, ids, _HIGHEST), axis=0)
    return first, tl.max(tl.where(weights > 0, ids, -1), axis=0)


@triton.jit
def _stays(keys, ids, cut, last):
    """Whether a token is above the cut, or among the first ones at it."""
    return (keys > cut) | ((keys == cut) & (ids <= last))


@triton.jit
def _draw_candidate(
    table, entry, values, found, number, cut, ties, uniform, best, heat, TILE_IDS: tl.constexpr
):  # fmt: skip
    """An id of the candidates that stay; the sum of their weights; the last id that stays at the cut."""
    seen, last, total = 0, -1, tl.zeros([], tl.float64)
    for first in range(0, number, TILE_IDS):
        at = first + tl.arange(0, TILE_IDS)
        equal = (_key(tl.load(values + at, mask=at < number, other=float("-inf"))) == cut) & (at < number)
        ids = tl.load(found + at, mask=at < number, other=-1)
        stays = equal & ((seen + tl.cumsum(equal.to(tl.int32), axis=0)).to(tl.float32) <= ties)
        last = tl.maximum(last, tl.max(tl.where(stays, ids, -1), axis=0))
        seen += tl.sum(equal.to(tl.int32), axis=0)
    least = tl.minimum(_real(table, entry, MIN_P), 1.0)
    for first in range(0, number, TILE_IDS):
        weights, _ = _staying(values, found, first, number, cut, last, least, best, heat, TILE_IDS)
        total += tl.sum(weights.to(tl.float64), axis=0)
    before, token, end = tl.zeros([], tl.float64), tl.zeros([], tl.int32) + _HIGHEST, tl.zeros([], tl.int32) - 1
    for first in range(0, number, TILE_IDS):
        weights, ids = _staying(values, found, first, number, cut, last, least, best, heat, TILE_IDS)
        passed, own = _draw(weights, ids, before, uniform * total)
        token, end = tl.minimum(token, passed), tl.maximum(end, own)
        before += tl.sum(weights.to(tl.float64), axis=0)
    return tl.where(token == _HIGHEST, end, token), total, last


@triton.jit
def _staying(values, found, first, number, cut, last, least, best, heat, TILE_IDS: tl.constexpr):
    """Weights of a tile of candidates, 0 for those that do not stay, and their ids."""
    at = first + tl.arange(0, TILE_IDS)
    value = tl.load(values + at, mask=at < number, other=float("-inf"))
    ids = tl.load(found + at, mask=at < number, other=-1)
    weights = _weight(value, best, heat)
    return tl.where(_stays(_key(value), ids, cut, last) & (weights >= least), weights, 0.0), ids


@triton.jit
def _draw_any(
    logits, table, masks, row_stride, words, vocabulary, splits, entry, shares, uniform, best, heat,
    B: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    """An id of the whole row: first the split in which the cumulative sum passes, then the id in it."""
    parts, wide = tl.arange(0, S), shares.to(tl.float64)
    goal = uniform * tl.sum(wide, axis=0)
    split, last = _draw(shares, parts, 0.0, goal)
    split = tl.where(split == _HIGHEST, last, split)
    before = tl.sum(tl.where(parts < split, wide, 0.0), axis=0)
    ids = split * B + tl.arange(0, B)
    _, _, logit = _stages(logits, table, masks, row_stride, words, entry, ids, (ids < vocabulary) & (ids >= 0))
    token, last = _draw(_weight(logit, best, heat), ids, before, goal)
    return tl.where(token == _HIGHEST, last, token)


@triton.jit
def _sample(
    logits, table, masks, row_stride, words, vocabulary, rows, splits, floats, places, values, found, bracket,
    tokens, results, shapes,
    B: tl.constexpr, S: tl.constexpr, TILE_IDS: tl.constexpr, CUTS: tl.constexpr,
):  # fmt: skip
    """Sample one row, and take the log-probabilities of the sampled and of the likeliest id."""
    entry = tl.program_id(0).to(tl.int64)
    best, likeliest, shares, sound = _sampled_from(table, entry, floats, places, rows, splits, S)
    heat = _real(table, entry, HEAT)
    total = tl.sum(shares, axis=0)
    token, mass, cut, last = likeliest, total.to(tl.float64), tl.zeros([], tl.int32) + _NO_KEY, tl.zeros([], tl.int32) - 1
    if sound & (_integer(table, entry, RANDOM) != 0):
        uniform = _integer(table, entry, UNIFORM).to(tl.float64, bitcast=True)
        if _cuts(table, entry):
            if CUTS:
                own = values + entry * vocabulary
                inner = own + rows.to(tl.int64) * vocabulary
                cut, ties = _cut(table, entry, bracket, inner, total, best, heat, TILE_IDS)
                number = tl.load(bracket + entry * 5 + 2)
                token, mass, last = _draw_candidate(
                    table, entry, own, found + entry * vocabulary, number, cut, ties, uniform, best, heat, TILE_IDS
                )  # fmt: skip
        else:
            token = _draw_any(
                logits, table, masks, row_stride, words, vocabulary, splits, entry, shares, uniform, best, heat, B, S
            )  # fmt: skip
    target = _integer(table, entry, TARGET).to(tl.int32)
    token = tl.where(target >= 0, target, tl.where(sound & (token >= 0) & (token < vocabulary), token, 0))
    plane, parts = rows.to(tl.int64) * splits, tl.arange(0, S)
    factor = _factor_of_mode(table, entry)
    highest, first, own = _joined(floats, places, plane, entry * splits + parts, parts < splits, factor)
    normaliser = tl.log(tl.where(_integer(table, entry, MODE) == 2, mass.to(tl.float32), tl.sum(own, axis=0)))
    raw, biased, processed = _stages(logits, table, masks, row_stride, words, entry, token, token >= 0)
    chosen = (_of_mode(table, entry, raw, biased, processed) - highest) * factor - normaliser
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
    at = _integer(table, entry, COUNTS)
    counts = (at != 0) & sound & (target < 0)
    place = at.to(tl.pointer_type(tl.int32)) + token
    tl.atomic_add(place, 2, mask=counts, sem="relaxed")
    tl.atomic_or(place, 1, mask=counts, sem="relaxed")


@triton.jit
def _all_logprobs(
    logits, table, masks, row_stride, words, vocabulary, shapes, chosen, result, B: tl.constexpr
):  # fmt: skip
    """One split of one row."""
    entry = tl.load(chosen + tl.program_id(0)).to(tl.int64)
    ids = tl.program_id(1) * B + tl.arange(0, B)
    raw, biased, processed = _stages(logits, table, masks, row_stride, words, entry, ids, ids < vocabulary)
    own = _of_mode(table, entry, raw, biased, processed)
    highest = tl.load(shapes + entry * 4).to(tl.float32, bitcast=True)
    normaliser = tl.load(shapes + entry * 4 + 1).to(tl.float32, bitcast=True)
    cut, last = tl.load(shapes + entry * 4 + 2), tl.load(shapes + entry * 4 + 3)
    below = (own - highest) * _factor_of_mode(table, entry)
    stays = _stays(_key(own), ids, cut, last) & (tl.exp(below) >= tl.minimum(_real(table, entry, MIN_P), 1.0))
    dropped = (_integer(table, entry, MODE) == 2) & _cuts(table, entry) & (stays == 0)
    logprob = tl.where(dropped, float("-inf"), tl.minimum(below - normaliser, 0.0))
    tl.store(result + tl.program_id(0).to(tl.int64) * vocabulary + ids, logprob, mask=ids < vocabulary)
