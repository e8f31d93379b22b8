"""Samples the next token of every stream in a batch, any mix of parameters, and takes its log-probabilities.

Everything about a row depends on that row alone, its choice of fast or exact path included, and random numbers come
from (seed, position). So a stream is the same alone and in any batch.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from lmtool.core.logprobs.uniform import uniform
from lmtool.core.types import SamplingParams
from lmtool.inference.engine.cpu.sampling import KernelRow, KernelSamples, has_kernel, pack, sample_packed
from lmtool.inference.engine.device import put_rows, select_rows, to_device
from lmtool.inference.engine.logits import apply_masks, most_likely, penalise, row_chunks, sample_rows, truncate
from lmtool.inference.engine.sampling_result import (
    RowLogprobs,
    SampledRows,
    SampledToken,
    SamplingResult,
    TopTokens,
    alternatives,
    row_logprobs,
)
from lmtool.inference.engine.sampling_row import Row, uniforms

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lmtool.core.types import LogprobsMode
    from lmtool.inference.engine.cuda.sampling import Part

    Sample: TypeAlias = Callable[[Tensor, Sequence[Row]], Sequence[SampledToken | None]]
    GpuSampler: TypeAlias = Callable[[Tensor, Sequence[Row], list[int]], tuple[Tensor, list[SampledRows]]]

_logger = logging.getLogger(__name__)


def sample(logits: Tensor, rows: Sequence[Row]) -> list[SampledToken | None]:
    """Sample or score one token a row.

    logits: [R, V] float32, one row for each of `rows`. Changed in place.
    Returns one token a row; None for a row whose logits are not numbers (NaN, +inf, or all -inf), or that bars every
    id there is.

    Stages: the model's own logits (`raw`); plus `logit_bias`, -inf where `allowed` forbids (`biased`); then
    processors, repetition, presence and frequency penalties, barred ids, temperature, top-k, top-p of what is left,
    min-p (`processed`). A greedy row's `processed` distribution is the one before the temperature.
    """
    return start_sampling(logits, rows).read()


def start_sampling(logits: Tensor, rows: Sequence[Row]) -> SamplingResult:
    """`sample`, with nothing read from the device yet: a GPU is not waited for, unless a row's processors do.

    On a GPU kernels sample, see `cuda.sampling`; rows with processors, and all where there is no Triton, go through
    torch's operators.
    """
    by_kernel = _gpu_sampler(logits)
    if by_kernel is not None:
        return _start_on_gpu(logits, rows, by_kernel)
    logits = logits.float()
    simple = [i for i, row in enumerate(rows) if row.packed or _kernel_can_sample(row)] if has_kernel(logits) else []
    if not simple:
        return _start_by_stages(logits, rows)
    samples, sampled = _sample_by_kernel(logits, rows, simple)
    if len(simple) == len(rows):
        return SamplingResult(samples.tokens, None, [], [sampled])
    others = sorted({*range(len(rows))} - {*simple})
    tokens, highest = torch.zeros(len(rows), dtype=torch.int64), logits.new_zeros(len(rows))
    put_rows(tokens, simple, samples.tokens)
    put_rows(highest, others, select_rows(logits, others).amax(dim=-1))
    return SamplingResult(tokens, highest, _sample_by_stages(logits, rows, others, tokens), [sampled])


def _gpu_sampler(logits: Tensor) -> GpuSampler | None:
    return prepare_gpu(logits.device, logits.shape[-1], logits.dtype) if logits.is_cuda else None


@functools.cache
def prepare_gpu(device: torch.device, vocabulary: int, dtype: torch.dtype) -> GpuSampler | None:
    """Sampler by GPU kernels, compiled and checked; None without Triton, or if its results differ from torch's.

    vocabulary, dtype: of the logits. To be called before anything is served: compiling takes seconds.
    """
    try:
        from lmtool.inference.engine.cuda.sampling import sample_rows
    except ImportError:
        return None

    def by_kernel(logits: Tensor, rows: Sequence[Row], members: list[int]) -> tuple[Tensor, list[SampledRows]]:
        parts = sample_rows(logits, rows, members)
        tokens = parts[0].tokens if len(parts) == 1 else torch.cat([part.tokens for part in parts])
        return tokens, [_sampled_rows(part, rows) for part in parts]

    def ours(logits: Tensor, rows: Sequence[Row]) -> list[SampledToken | None]:
        tokens, sampled = by_kernel(logits, rows, list(range(len(rows))))
        return SamplingResult(tokens, None, [], sampled).read()

    def theirs(logits: Tensor, rows: Sequence[Row]) -> list[SampledToken | None]:
        return _start_by_stages(logits, rows).read()

    return by_kernel if kernels_work(ours, theirs, device, vocabulary, dtype) else None


def sampled_part(part: Part, rows: Sequence[Row]) -> SamplingResult:
    """The result of a batch that a GPU's kernels have sampled as a whole; nothing is read yet."""
    return SamplingResult(part.tokens, None, [], [_sampled_rows(part, rows)])


def _sampled_rows(part: Part, rows: Sequence[Row]) -> SampledRows:
    """A part's tokens with the alternatives that its rows ask for."""
    own, tops = [rows[i] for i in part.members], []
    if part.logprobs is not None:
        logprobs = part.logprobs
        tops = _listed(own, part.listed, logprobs, list(range(len(logprobs))), logprobs.new_zeros(len(logprobs)))
    return SampledRows(part.members, _top_counts(own), part.results, part.listed, tops, part.counts)


def _listed(
    rows: Sequence[Row], listed: list[int], logits: Tensor, places: list[int], normaliser: Tensor
) -> list[TopTokens]:
    """The alternatives of those rows that are listed. The rest: see `alternatives`."""
    own = [rows[at] for at in listed]
    tops, named = [row.top_logprobs for row in own], [row.logprob_ids for row in own]
    return alternatives(logits, places, normaliser, tops, named)


def _top_counts(rows: Sequence[Row]) -> list[int | None]:
    """Number of alternatives for each row."""
    return [
        len(row.logprob_ids) if row.logprob_ids and row.top_logprobs is not None else row.top_logprobs for row in rows
    ]


def _start_by_stages(logits: Tensor, rows: Sequence[Row]) -> SamplingResult:
    """Sample all rows by torch's operators."""
    tokens = torch.zeros(len(rows), dtype=torch.int64, device=logits.device)
    highest = logits.amax(dim=-1)
    return SamplingResult(tokens, highest, _sample_by_stages(logits, rows, list(range(len(rows))), tokens))


def _start_on_gpu(logits: Tensor, rows: Sequence[Row], by_kernel: GpuSampler) -> SamplingResult:
    """Sample by kernels all rows but those with processors."""
    own = [i for i, row in enumerate(rows) if row.processors is None or row.target is not None]
    sampled_ids, sampled = by_kernel(logits, rows, own) if own else (logits.new_zeros(0, dtype=torch.int64), [])
    others = sorted({*range(len(rows))} - {*own})
    if not others:
        return SamplingResult(sampled_ids, None, [], sampled)
    tokens = torch.zeros(len(rows), dtype=torch.int64, device=logits.device)
    if own:
        put_rows(tokens, own, sampled_ids)
    logits = logits.float()
    highest = logits.amax(dim=-1)
    return SamplingResult(tokens, highest, _sample_by_stages(logits, rows, others, tokens), sampled)


def _kernel_can_sample(row: Row) -> bool:
    """True if the row has nothing but a bias, a mask, barred ids, a temperature, top-k, top-p and min-p."""
    if row.target is not None:
        return True
    if row.processors is not None or row.penalises:
        return False
    mode = row.params.logprobs_mode
    if mode == "raw":
        return row.bias is None and row.allowed is None
    return mode == "biased" or (row.params.temperature <= 0 and not row.barred)


def _sample_by_kernel(logits: Tensor, rows: Sequence[Row], simple: list[int]) -> tuple[KernelSamples, SampledRows]:
    """Sample those of the rows that `_kernel_can_sample`."""
    whole = len(simple) == len(rows)
    own = rows if whole else [rows[i] for i in simple]
    packed = [row.packed or _pack(row) for row in own]
    special = [at for at, row in enumerate(own) if row.special]
    biased = [simple[at] for at in special if own[at].target is None and own[at].bias is not None]
    if biased:
        _add_bias(logits, rows, biased)
    barred = {at: own[at].barred for at in special if own[at].target is None}
    samples = sample_packed(logits, packed, {} if whole else dict(enumerate(simple)), _uniforms(own), barred)
    top_counts, tops = [row.top_logprobs for row in own], []
    listed = [at for at in special if own[at].lists]
    if listed:
        places, normaliser = [simple[at] for at in listed], select_rows(samples.normaliser, listed)
        top_counts, tops = _top_counts(own), _listed(own, listed, logits, places, normaliser)
    return samples, SampledRows(simple, top_counts, samples.results, listed, tops)


def _uniforms(rows: Sequence[Row]) -> dict[int, float]:
    """The random number of each row that needs one."""
    random = [at for at, row in enumerate(rows) if row.random]
    if not random:
        return {}
    drawn = uniforms([rows[at].seed for at in random], [rows[at].position for at in random])
    return dict(zip(random, drawn.tolist(), strict=True))


def _pack(row: Row) -> bytes:
    """Note what the C kernel reads of a row, and whether it needs more than that."""
    params = row.params
    row.special = row.lists or row.bias is not None or bool(row.barred)
    if row.target is not None:
        row.packed = pack(KernelRow(-1, row.target))
    else:
        cuts = params.top_k, params.top_p, params.min_p
        row.random = params.temperature > 0
        row.packed = pack(KernelRow(-1, None, params.temperature, 0.0, row.allowed, (), row.lists, *cuts))
    return row.packed


def _sample_by_stages(logits: Tensor, rows: Sequence[Row], members: list[int], tokens: Tensor) -> list[RowLogprobs]:
    """Sample those rows that are members, into `tokens`, [R] int64; their log-probabilities."""
    stages = _Stages(logits, rows, members)
    stages.sample(tokens)
    results = []
    for mode, own in stages.modes().items():
        tops = [rows[i].top_logprobs for i in own]
        named, distribution = [rows[i].logprob_ids for i in own], stages.distribution(mode, own)
        results.append(row_logprobs(*distribution, select_rows(tokens, own), own, tops, named=named))
    return results


class _Stages:
    """The logits of a batch at each stage, copied only for the rows where two stages differ and both are needed."""

    def __init__(self, logits: Tensor, rows: Sequence[Row], members: list[int]) -> None:
        """members: which of the rows are sampled."""
        self._rows = rows
        self._members = members
        biased = [i for i in members if rows[i].target is None and rows[i].bias is not None]
        masked = [i for i in members if rows[i].target is None and rows[i].allowed is not None]
        self._raw_rows = [i for i in sorted({*biased, *masked}) if rows[i].params.logprobs_mode == "raw"]
        self._raw = select_rows(logits, self._raw_rows).clone() if self._raw_rows else None
        self._biased = _add_bias(logits, rows, biased) if biased else logits
        if masked:
            masks = torch.stack([mask for i in masked if (mask := rows[i].allowed) is not None])
            apply_masks(self._biased, masked, masks)
        shaped = [i for i in members if rows[i].target is None and _shapes(rows[i])]
        self._random_rows = [i for i in shaped if rows[i].params.temperature > 0]
        self._greedy_rows = [i for i in shaped if rows[i].params.temperature <= 0]
        self._shaped: Tensor | None = None

    @property
    def _shaped_rows(self) -> list[int]:
        return [*self._random_rows, *self._greedy_rows]

    def sample(self, tokens: Tensor) -> None:
        """Sample into `tokens`, [R] int64 on the logits' device."""
        rows = self._rows
        greedy = [i for i in self._members if rows[i].target is None and not _shapes(rows[i])]
        if greedy:
            put_rows(tokens, greedy, most_likely(select_rows(self._biased, greedy)))
        targets = {i: target for i in self._members if (target := rows[i].target) is not None}
        if targets:
            put_rows(tokens, list(targets), to_device(list(targets.values()), torch.int64, tokens.device))
        processed = any(rows[i].params.logprobs_mode == "processed" for i in self._shaped_rows)
        distributions = []
        for kind, members in ((_sample_random, self._random_rows), (_sample_greedy, self._greedy_rows)):
            for part in row_chunks(members, self._biased):
                distribution, sampled = kind(select_rows(self._biased, part), [rows[i] for i in part])
                put_rows(tokens, part, sampled)
                distributions += [distribution] if processed else []
        self._shaped = torch.cat(distributions) if processed else None

    def modes(self) -> dict[LogprobsMode, list[int]]:
        """Rows by the stage that their log-probabilities come from; equal stages become one."""
        members: dict[LogprobsMode, list[int]] = {"raw": [], "biased": [], "processed": []}
        saved, shaped = set(self._raw_rows), set(self._shaped_rows)
        for i in self._members:
            if i in saved:
                members["raw"].append(i)
            elif i in shaped and self._rows[i].params.logprobs_mode == "processed":
                members["processed"].append(i)
            else:
                members["biased"].append(i)
        return {mode: rows for mode, rows in members.items() if rows}

    def distribution(self, mode: LogprobsMode, members: list[int]) -> tuple[Tensor, list[int]]:
        """[N, V], and which of its rows are the logits of `members` at this stage."""
        if mode == "raw":
            assert self._raw is not None
            return self._raw, list(range(len(members)))
        if mode == "processed":
            assert self._shaped is not None
            place = {row: index for index, row in enumerate(self._shaped_rows)}
            return self._shaped, [place[row] for row in members]
        return self._biased, members


def _shapes(row: Row) -> bool:
    """True if the row has a stage after the bias."""
    return row.params.temperature > 0 or _adjusts(row)


def _adjusts(row: Row) -> bool:
    """True if processors, penalties or barred ids change the logits."""
    return row.processors is not None or bool(row.barred) or row.penalises


def _add_bias(logits: Tensor, rows: Sequence[Row], biased: list[int]) -> Tensor:
    """Add each row's own bias. logits: [R, V], changed in place."""
    own = [(i, bias) for i in biased if (bias := rows[i].bias) is not None]
    at = torch.cat([torch.full_like(bias.ids, i) for i, bias in own])
    index = (at, torch.cat([bias.ids for _, bias in own]))
    return logits.index_put_(index, torch.cat([bias.values for _, bias in own]), accumulate=True)


def _sample_random(logits: Tensor, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
    """Rows with a temperature: their distribution, [n, V], and a sample of it, [n]. logits: [n, V]."""
    temperature = to_device([row.params.temperature for row in rows], torch.float32, logits.device)
    heated = _adjusted(logits, rows) / temperature.clamp(min=1e-5).unsqueeze(-1)
    uniforms = [uniform(row.seed, row.position) for row in rows]
    cut = [i for i, row in enumerate(rows) if row.truncates]
    if cut:
        put_rows(heated, cut, truncate(select_rows(heated, cut), [rows[i].params for i in cut]))
    return heated, sample_rows(heated, to_device(uniforms, torch.float64, logits.device))


def _sample_greedy(logits: Tensor, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
    """Greedy rows: adjusted logits and their argmax."""
    adjusted = _adjusted(logits, rows)
    return adjusted, most_likely(adjusted)


def _adjusted(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    """Apply processors, penalties and barred ids. logits: [n, V]; copied where anything changes."""
    if not any(_adjusts(row) for row in rows):
        return logits
    logits = logits.clone()
    for own, row in zip(logits, rows, strict=True):
        if row.processors is not None:
            row.processors.apply(row.output, own)
        if row.penalises or row.barred:
            penalise(own, row.params, row.known_ids, row.counts, row.barred)
    return logits


_TOLERANCE = 1e-3
"""Nats between two logprobs; those of torch's operators are sums in float32, too."""


def kernels_work(
    by_kernel: Sample, by_stages: Sample, device: torch.device, vocabulary: int, dtype: torch.dtype
) -> bool:
    """True if kernels give for rows of several kinds what torch's operators give; a warning says why not.

    vocabulary, dtype: of the logits that will be sampled from. Waits for the device.
    """
    generator = torch.Generator(device).manual_seed(1)
    try:
        for rows in _kinds():
            shape = (len(rows) + 1, vocabulary)
            logits = torch.randn(shape, generator=generator, device=device).mul_(2).to(dtype)
            for own in (logits[:-1], logits[1:]):  # perhaps one is aligned, and the other not: two compilations
                problem = _difference(by_kernel(own, rows), by_stages(own.to(torch.float32, copy=True), rows))
                if problem is not None:
                    _logger.warning("tokens are sampled without Triton, and slower: %s", problem)
                    return False
    except torch.OutOfMemoryError:
        raise
    except Exception as problem:  # noqa: BLE001  # whatever a compiler raises, there is another way
        _logger.warning("tokens are sampled without Triton, and slower: %s", problem)
        return False
    return True


def _kinds() -> tuple[list[Row], list[Row]]:
    """Rows with all that kernels do, and rows for which fewer of them are launched."""
    mixed: list[dict[str, Any]] = [{}, {"top_p": 0.9}, {"top_k": 20, "top_p": 0.8}, {"min_p": 0.1}]
    mixed += [{"presence_penalty": 0.5, "repetition_penalty": 1.5, "logprobs_mode": "processed"}, {"temperature": 0}]
    rows = [
        Row(
            SamplingParams(**{"temperature": 1.0, **params}), top_logprobs=2, seed=seed, known_ids=(1, 2), counts={2: 1}
        )
        for seed, params in enumerate(mixed)
    ]
    return rows, [Row(SamplingParams(temperature=1.0), top_logprobs=1), Row(target=1)]


def _difference(ours: Sequence[SampledToken | None], theirs: Sequence[SampledToken | None]) -> str | None:
    """Difference of two results, in words; None if they are equal but for rounding."""
    for own, other in zip(ours, theirs, strict=True):
        if own is None or other is None or own.token != other.token:
            return f"it drew {own}, not {other}"
        if abs(own.logprob - other.logprob) > _TOLERANCE:
            return f"its logprob of {own.token} is {own.logprob}, not {other.logprob}"
    return None
