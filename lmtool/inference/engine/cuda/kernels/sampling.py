"""Samples one token from each of many rows of logits, each row by its own parameters; nothing waits for the device.

Letters: R rows, V vocabulary, S splits of a row, B ids a split, P pivots.

Launches: `_scan` (highest logits and sums of exponentials of each split); for batches with top-k, top-p or min-p, those
of `top_p` (the few candidates among which the cut lies); then `_sample`. A split has B ids whatever the batch, and
parts are summed in order of ids: a row has the same bits in any batch.

Draws are the CPU's: the first id, in order of ids, at which the cumulative sum passes the row's uniform number. Sums
differ from the CPU's in their last bits: where the uniform number is within 1e-6 of an edge between two ids, or top-p
of a cumulative probability, either may be drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from lmtool.inference.engine.cuda.kernels.logits import (
    COUNTS,
    HEAT,
    HIGHEST,
    MIN_P,
    MODE,
    NO_KEY,
    RANDOM,
    TARGET,
    UNIFORM,
    collect_candidates,
    count_above_pivots,
    draw_candidate,
    draw_first,
    exp_weight,
    find_cut,
    has_cut,
    is_idle,
    is_kept,
    join_splits,
    logit_stages,
    mode_factor,
    mode_logits,
    record_float,
    record_int,
    sampled_splits,
    sort_key,
)

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
    """What `sample_rows` gives; all on the logits' device."""

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
    """Of one split: the highest logit, its first id and the sum of weights, of both the mode and what is sampled."""
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
