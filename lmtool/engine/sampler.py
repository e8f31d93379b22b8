"""Draws the next token of every stream in a batch, any mix of parameters, and takes its log-probabilities.

Everything about a row depends on that row alone, its choice of fast or exact path included, and random numbers come
from (seed, position). So a stream is the same alone and in a crowd.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lmtool.engine.cpu import masking as cpu
from lmtool.engine.cuda import masking as cuda
from lmtool.engine.cuda.row_sums import logsumexp
from lmtool.engine.cumulative import draw, highest, most_likely, truncate
from lmtool.types import LogprobsMode, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from lmtool.logits_processors import Processors

_TOP_BUCKETS = (1, 5, 20, 256)
"""Alternatives are taken this many at a time; a row's bucket depends on what it asks for, not on its neighbours."""

_HUGE = 1e30
"""A bias beyond this is as good as infinite, and would become so in float32."""

_CHUNK_BYTES = 2**21
"""Logits that are looked at together: what is made of them stays in the cache (32 rows of 128k drawn in half the time).
"""


@dataclass(frozen=True, slots=True)
class Bias:
    """A `logit_bias` as tensors: a mask may hold as many ids as the vocabulary, and is added at every step."""

    ids: Tensor
    """[n] int64"""
    values: Tensor
    """[n] float32, nats"""

    @staticmethod
    def of(bias: Mapping[int, float], device: torch.device | None = None) -> Bias | None:
        """The tensors for a mapping; None for an empty one."""
        if not bias:
            return None
        values = torch.tensor(list(bias.values()), dtype=torch.float64).clamp(-_HUGE, _HUGE).float()
        return Bias(torch.tensor(list(bias), device=device), values.to(device))


@dataclass(frozen=True, slots=True)
class Row:
    """One row of logits and what is wanted from it."""

    params: SamplingParams = field(default_factory=SamplingParams)
    target: int | None = None
    """The id to score (SCORE); None draws one (GENERATE). A scored row uses nothing else but `top_logprobs`."""
    bias: Bias | None = None
    """The parameters' `logit_bias`."""
    top_logprobs: int | None = None
    """How many alternatives to give; None gives none at all."""
    seed: int = 0
    position: int = 0
    """Index in the stream of the token to be drawn."""
    barred: Collection[int] = ()
    """Ids that may not be drawn now: eos and stop ids before `min_tokens`."""
    seen: Collection[int] = ()
    """Ids in prompt or output; needed with a repetition penalty."""
    counts: Mapping[int, int] = field(default_factory=dict)
    """Generated id to how often; needed with a presence or frequency penalty."""
    output: Sequence[int] = ()
    """Ids generated so far; needed with `processors`."""
    processors: Processors | None = None
    """The stream's own, see `ports.LogitsProcessor`; what goes wrong shows in their `error`."""
    allowed: Tensor | None = None
    """[ceil(V / 32)] int32 on CPU, bit `i % 32` of word `i // 32` for id i: what a constraint lets come next."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What one row of logits gave."""

    token: int
    """The drawn or the scored id."""
    logprob: float
    """In nats, at most 0."""
    top_logprobs: tuple[tuple[int, float], ...] | None
    """(id, logprob), best first, then the chosen one if it is not among them; ids that cannot be drawn left out."""


def sample(logits: Tensor, rows: Sequence[Row]) -> list[Choice | None]:
    """Draw or score one token a row.

    logits: [R, V] float32, one row for each of `rows`. Changed in place.
    Returns one choice a row; None for a row whose logits are not numbers (NaN, +inf, or all -inf), or that bars every
    id there is.

    Stages: the model's own logits (`raw`); plus `logit_bias`, without what `allowed` forbids (`biased`); then
    processors, repetition, presence and frequency penalties, barred ids, temperature, top-k, top-p of what is left,
    min-p (`processed`). A greedy row's `processed` distribution is the one before the temperature.
    """
    stages = _Stages(logits, rows)
    tokens = stages.choose()
    results: list[Choice | None] = [None] * len(rows)
    for mode, members in stages.modes().items():
        distribution, at = stages.distribution(mode, members)
        for row, choice in zip(members, _describe(distribution, at, tokens, rows, members), strict=True):
            results[row] = choice if stages.finite[row] and not math.isnan(choice.logprob) else None
    return results


class _Stages:
    """The logits of a batch at each stage, copied only for the rows where two stages differ and both are needed."""

    def __init__(self, logits: Tensor, rows: Sequence[Row]) -> None:
        self._rows = rows
        self.finite: list[bool] = _isfinite(logits)
        biased = [i for i, row in enumerate(rows) if row.target is None and row.bias is not None]
        held = [i for i, row in enumerate(rows) if row.allowed is not None]
        self._raw_rows = [i for i in sorted({*biased, *held}) if rows[i].params.logprobs_mode == "raw"]
        self._raw = logits[self._raw_rows] if self._raw_rows else None
        self._biased = _add_bias(logits, rows, biased) if biased else logits
        if held:
            _forbid(self._biased, rows, held)
        shaped = [i for i, row in enumerate(rows) if row.target is None and _shapes(row)]
        self._drawn_rows = [i for i in shaped if rows[i].params.temperature > 0]
        self._still_rows = [i for i in shaped if rows[i].params.temperature <= 0]
        self._shaped: Tensor | None = None

    @property
    def _shaped_rows(self) -> list[int]:
        return [*self._drawn_rows, *self._still_rows]

    def choose(self) -> Tensor:
        """[R] int64, on the logits' device."""
        rows = self._rows
        device = self._biased.device
        greedy = [i for i, row in enumerate(rows) if row.target is None and not _shapes(row)]
        if len(greedy) == len(rows):
            return most_likely(self._biased)
        tokens = torch.zeros(len(rows), dtype=torch.int64, device=device)
        if greedy:
            tokens[greedy] = most_likely(self._biased[greedy])
        scored = [i for i, row in enumerate(rows) if row.target is not None]
        if scored:
            tokens[scored] = torch.tensor([rows[i].target for i in scored], device=device)
        wanted = any(rows[i].params.logprobs_mode == "processed" for i in self._shaped_rows)
        distributions = []
        for kind, members in ((_drawn, self._drawn_rows), (_still, self._still_rows)):
            for part in _parts(members, self._biased):
                distribution, tokens[part] = kind(_rows_of(self._biased, part), [rows[i] for i in part])
                distributions += [distribution] if wanted else []
        self._shaped = torch.cat(distributions) if wanted else None
        return tokens

    def modes(self) -> dict[LogprobsMode, list[int]]:
        """Rows by the stage that their log-probabilities come from; stages that are the same become one."""
        members: dict[LogprobsMode, list[int]] = {"raw": [], "biased": [], "processed": []}
        saved, shaped = set(self._raw_rows), set(self._shaped_rows)
        for i, row in enumerate(self._rows):
            if i in saved:
                members["raw"].append(i)
            elif i in shaped and row.params.logprobs_mode == "processed":
                members["processed"].append(i)
            else:
                members["biased"].append(i)
        return {mode: rows for mode, rows in members.items() if rows}

    def distribution(self, mode: LogprobsMode, members: list[int]) -> tuple[Tensor, list[int]]:
        """A tensor of logits and the rows in it that are `members`."""
        if mode == "raw":
            assert self._raw is not None
            return self._raw, list(range(len(members)))
        if mode == "processed":
            assert self._shaped is not None
            place = {row: index for index, row in enumerate(self._shaped_rows)}
            return self._shaped, [place[row] for row in members]
        return self._biased, members


def _shapes(row: Row) -> bool:
    """Whether anything but the bias comes between the model and the choice."""
    return row.params.temperature > 0 or _penalises(row) or row.processors is not None


def _penalises(row: Row) -> bool:
    params = row.params
    penalised = params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0
    return penalised or bool(row.barred)


def _isfinite(logits: Tensor) -> list[bool]:
    """Whether each row has a distribution: no NaN, no +inf, something above -inf."""
    highest = logits.amax(dim=-1)  # NaN wins over every number
    finite: list[bool] = torch.isfinite(highest).tolist()
    return finite


def _add_bias(logits: Tensor, rows: Sequence[Row], biased: list[int]) -> Tensor:
    """Add each row's own bias. logits: [R, V], changed in place."""
    own = [(i, bias) for i in biased if (bias := rows[i].bias) is not None]
    at = torch.cat([torch.full_like(bias.ids, i) for i, bias in own])
    index = (at, torch.cat([bias.ids for _, bias in own]))
    return logits.index_put_(index, torch.cat([bias.values for _, bias in own]), accumulate=True)


def _forbid(logits: Tensor, rows: Sequence[Row], held: list[int]) -> None:
    """Make -inf what rows do not allow. logits: [R, V], changed in place.

    Without kernels, eight ids at a time by a table: 12 times as fast as shifting bits.
    """
    words = torch.stack([allowed for i in held if (allowed := rows[i].allowed) is not None])
    by_kernel = {"cpu": cpu.forbid_by_kernel, "cuda": cuda.forbid_by_kernel}.get(logits.device.type)
    if by_kernel is not None and by_kernel(logits, held, words):
        return
    table = _FORBIDDEN.to(logits.device)
    octets = words.view(torch.uint8).to(logits.device, torch.int32)
    for part in _parts(list(range(len(held))), logits):
        added = table.index_select(0, octets[part[0] : part[-1] + 1].flatten()).view(len(part), -1)
        for row, own in zip(part, added, strict=True):
            logits[held[row]] += own[: logits.shape[-1]]


def _forbidden() -> Tensor:
    bits = torch.arange(256).unsqueeze(1) >> torch.arange(8) & 1
    return torch.zeros(256, 8).masked_fill_(bits == 0, float("-inf"))


_FORBIDDEN = _forbidden()
"""[256, 8] float32: what eight ids get for a byte of a mask, lowest bit first; 0 or -inf."""


def _parts(members: list[int], logits: Tensor) -> Iterator[list[int]]:
    """The rows a few at a time, so that what is made of them stays in a CPU's cache; a GPU takes all at once."""
    size = len(members) if logits.is_cuda else max(1, _CHUNK_BYTES // (logits.shape[-1] * logits.element_size()))
    for start in range(0, len(members), max(1, size)):
        yield members[start : start + size]


def _rows_of(logits: Tensor, members: list[int]) -> Tensor:
    """[n, V]: these rows, as a view where they follow each other."""
    first, last = members[0], members[-1]
    return logits[first : last + 1] if last - first + 1 == len(members) else logits[members]


def _drawn(logits: Tensor, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
    """The distribution of rows with a temperature, [n, V], and what is drawn from it, [n]. logits: [n, V]."""
    temperature = torch.tensor([row.params.temperature for row in rows], device=logits.device)
    heated = _corrected(logits, rows) / temperature.clamp(min=1e-5).unsqueeze(-1)
    uniforms = [uniform(row.seed, row.position) for row in rows]
    cut = [i for i, row in enumerate(rows) if _truncates(row.params)]
    if cut:
        heated[cut] = truncate(heated[cut], [rows[i].params for i in cut])
    return heated, draw(heated, torch.tensor(uniforms, dtype=torch.float64, device=logits.device))


def _still(logits: Tensor, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
    """The same of rows without a temperature, and their most likely tokens."""
    corrected = _corrected(logits, rows)
    return corrected, most_likely(corrected)


def _corrected(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    """Apply processors, penalties and barred ids. logits: [n, V]; copied where anything changes."""
    if not any(row.processors is not None or _penalises(row) for row in rows):
        return logits
    logits = logits.clone()
    for own, row in zip(logits, rows, strict=True):
        if row.processors is not None:
            row.processors.apply(row.output, own)
        if _penalises(row):
            _penalise(own, row)
    return logits


def _truncates(params: SamplingParams) -> bool:
    return params.top_k > 0 or params.top_p < 1 or params.min_p > 0


def _penalise(logits: Tensor, row: Row) -> None:
    """logits: [V], changed in place."""
    params, device = row.params, logits.device
    if params.repetition_penalty != 1 and row.seen:
        ids = torch.tensor(list(row.seen), device=device)
        values = logits[ids]
        logits[ids] = torch.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    if (params.presence_penalty or params.frequency_penalty) and row.counts:
        ids = torch.tensor(list(row.counts), device=device)
        often = torch.tensor(list(row.counts.values()), dtype=logits.dtype, device=device)
        logits[ids] -= params.presence_penalty + params.frequency_penalty * often
    if row.barred:
        logits[list(row.barred)] = float("-inf")


def _describe(logits: Tensor, at: list[int], tokens: Tensor, rows: Sequence[Row], members: list[int]) -> list[Choice]:
    """Log-probabilities of `members`, which are the rows `at` of `logits` [n, V]."""
    whole = at == list(range(len(logits)))
    own = logits if whole else logits[at]
    chosen = tokens if len(members) == len(tokens) else tokens[members]
    normaliser = torch.cat([logsumexp(own[part[0] : part[-1] + 1]) for part in _parts(list(range(len(own))), own)])
    values = own.gather(1, chosen.unsqueeze(1)).squeeze(1) - normaliser
    lowest = torch.finfo(values.dtype).min
    logprobs: list[float] = values.clamp(min=lowest, max=0.0).tolist()
    ids: list[int] = chosen.tolist()
    tops = _alternatives(own, normaliser, [rows[i].top_logprobs for i in members])
    return [
        Choice(token, logprob, _with_chosen(top, token, logprob))
        for token, logprob, top in zip(ids, logprobs, tops, strict=True)
    ]


def _alternatives(
    logits: Tensor, normaliser: Tensor, wanted: Sequence[int | None]
) -> list[list[tuple[int, float]] | None]:
    """The k most likely ids of each row that asks for k, best first."""
    result: list[list[tuple[int, float]] | None] = [None if k is None else [] for k in wanted]
    for low, high in zip((0, *_TOP_BUCKETS), _TOP_BUCKETS, strict=False):
        members = [i for i, k in enumerate(wanted) if k is not None and low < k <= high]
        if not members:
            continue
        own = logits if len(members) == len(logits) else logits[members]
        values, ids = _best(own, min(high, logits.shape[-1]))
        logprobs = (values - normaliser[members].unsqueeze(-1)).clamp(max=0.0).tolist()
        for i, row_ids, row_logprobs in zip(members, ids.tolist(), logprobs, strict=True):
            best = zip(row_ids[: wanted[i]], row_logprobs, strict=False)
            result[i] = [(token, logprob) for token, logprob in best if logprob > float("-inf")]
    return result


def _best(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` highest of each row, best first: values [n, count] and ids [n, count]."""
    if count > 1:
        return highest(logits, count)
    ids = most_likely(logits).unsqueeze(1)
    return logits.gather(1, ids), ids


def _with_chosen(
    top: list[tuple[int, float]] | None, token: int, logprob: float
) -> tuple[tuple[int, float], ...] | None:
    if top is None:
        return None
    if all(other != token for other, _ in top):
        top.append((token, logprob))
    return tuple(top)


_MASK = (1 << 64) - 1


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on nothing but its arguments.

    Two rounds of the SplitMix64 finalizer (Steele, Lea and Flood, OOPSLA 2014), 53 bits of it.
    """
    return (_mix(_mix(seed & _MASK) + position + 1) >> 11) * 2.0**-53


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
