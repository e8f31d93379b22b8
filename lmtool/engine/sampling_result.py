"""What a step's logits gave: ids that stay on the device for the next step, and log-probabilities for the host.

All work on the device comes first and all reading last, so that a GPU goes on meanwhile. On CPU it is the same code,
and nothing is copied.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lmtool.engine.cpu.sampling import KernelRow, has_kernel, sample_by_kernel
from lmtool.engine.device_transfer import arrival, select_rows, to_device, to_host
from lmtool.engine.top_p import logsumexp, most_likely, top_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lmtool.engine.penalties import TokenCounts

_TOP_BUCKETS = (1, 5, 20, 256)
"""Alternatives are taken this many at a time, or all; a row's bucket depends on its own request alone."""

_CHUNK_BYTES = 2**21
"""Logits per chunk, so that intermediate results stay in the cache (32 rows of 128k in half the time)."""

Top = list[tuple[int, float]]


class SampledToken(NamedTuple):
    """The token of one row of logits."""

    token: int
    """The sampled or the scored id."""
    logprob: float
    """In nats, at most 0."""
    top_logprobs: tuple[tuple[int, float], ...] | None
    """(id, logprob), best first, then the chosen one if it is not among them; ids that cannot be sampled left out."""


class SamplingResult:
    """The tokens of R rows of logits, on their way to the host."""

    def __init__(
        self,
        tokens: Tensor,
        highest: Tensor | None,
        logprobs: Sequence[RowLogprobs],
        sampled: Sequence[SampledRows] = (),
    ) -> None:
        """Start the copies. tokens: [R] int64. logprobs, sampled: of each row once, in one or the other.

        highest: [R] float32, the highest logit of each row; where it is not finite, the row is no distribution: NaN
        wins over every number. None where no row is in `logprobs`.
        """
        self.tokens = tokens
        """[R] int64, on the logits' device; an id of the vocabulary also for a row that is no distribution."""
        self._tokens = to_host(tokens) if logprobs else None
        self._highest = None if highest is None else to_host(highest)
        self._logprobs = [own.to_host() for own in logprobs]
        self._sampled = [own.to_host() for own in sampled]
        self._wait = arrival(tokens.device)

    def read(self) -> list[SampledToken | None]:
        """One token a row; None for a row that is no distribution. Waits for the device."""
        self._wait()
        results: list[SampledToken | None] = [None] * len(self.tokens)
        if self._tokens is not None and self._highest is not None:
            tokens = self._tokens.tolist()
            finite = [math.isfinite(highest) for highest in self._highest.tolist()]
            for logprobs in self._logprobs:
                for row, logprob, top in logprobs.read():
                    if finite[row] and not math.isnan(logprob):
                        results[row] = SampledToken(tokens[row], logprob, _with_chosen(top, tokens[row], logprob))
        for sampled in self._sampled:
            for row, token, logprob, top in sampled.read():
                results[row] = SampledToken(token, logprob, _with_chosen(top, token, logprob))
        return results


@dataclass(frozen=True, slots=True)
class SampledRows:
    """Tokens of n rows of a batch, and their log-probabilities, as a GPU's kernels give them."""

    rows: list[int]
    """[n], in the batch."""
    top_counts: list[int | None]
    """[n], how many alternatives; None for none at all."""
    results: Tensor
    """[n, 4] int32: token, bits of its logprob, the likeliest id, bits of its logprob; NaN for no distribution."""
    members: list[int]
    """Which of the n have other alternatives than the likeliest id, in order of `tops`."""
    tops: list[TopTokens]
    """These alternatives; `TopTokens.members` are places in `members`."""
    counts: list[TokenCounts | None]
    """[n], those that the kernel has added the token to."""

    def to_host(self) -> SampledRows:
        """The same on the host, once what is queued on the device is done."""
        tops = [top.to_host() for top in self.tops]
        return SampledRows(self.rows, self.top_counts, to_host(self.results), self.members, tops, self.counts)

    def read(self) -> Iterator[tuple[int, int, float, Top | None]]:
        """Row, token, log-probability and alternatives of each row that is a distribution."""
        numbers = self.results.numpy()
        tokens, likeliest = numbers[:, 0].tolist(), numbers[:, 2].tolist()
        logprobs, highest = (numbers[:, at].view(np.float32).tolist() for at in (1, 3))
        tops: list[Top | None] = [
            None if count is None else [pair] if count == 1 else []
            for count, pair in zip(self.top_counts, zip(likeliest, highest, strict=True), strict=True)
        ]
        for own in self.tops:
            for at, top in own.read([self.top_counts[at] for at in self.members]):
                tops[self.members[at]] = top
        for place, row in enumerate(self.rows):
            if not math.isnan(logprobs[place]):
                if (counts := self.counts[place]) is not None:
                    counts.sampled = tokens[place]
                yield row, tokens[place], logprobs[place], tops[place]


@dataclass(frozen=True, slots=True)
class RowLogprobs:
    """Log-probabilities of n rows of a batch."""

    rows: list[int]
    """[n], in the batch."""
    top_counts: list[int | None]
    """[n], how many alternatives; None for none at all."""
    logprobs: Tensor
    """[n] float32, nats."""
    tops: list[TopTokens]
    """The alternatives of the rows that have any."""

    def to_host(self) -> RowLogprobs:
        """The same on the host, once what is queued on the device is done."""
        return RowLogprobs(self.rows, self.top_counts, to_host(self.logprobs), [top.to_host() for top in self.tops])

    def read(self) -> Iterator[tuple[int, float, Top | None]]:
        """Row, log-probability and alternatives of each."""
        tops: list[Top | None] = [None if count is None else [] for count in self.top_counts]
        for own in self.tops:
            for at, top in own.read(self.top_counts):
                tops[at] = top
        return zip(self.rows, self.logprobs.tolist(), tops, strict=True)


@dataclass(frozen=True, slots=True)
class TopTokens:
    """The likeliest ids of m of the n rows of `RowLogprobs`, best first."""

    members: list[int]
    """[m], which of the n."""
    ids: Tensor
    """[m, k] int64"""
    logprobs: Tensor
    """[m, k] float32, nats; -inf for an id that cannot be sampled."""

    def to_host(self) -> TopTokens:
        """The same on the host, once what is queued on the device is done."""
        return TopTokens(self.members, to_host(self.ids), to_host(self.logprobs))

    def read(self, counts: Sequence[int | None]) -> Iterator[tuple[int, Top]]:
        """Each member and its alternatives, as many as `counts` says of it."""
        for at, ids, logprobs in zip(self.members, self.ids.tolist(), self.logprobs.tolist(), strict=True):
            pairs = list(zip(ids[: counts[at]], logprobs, strict=False))
            if pairs and pairs[-1][1] == -math.inf:  # the last one is the least likely
                pairs = [(token, logprob) for token, logprob in pairs if logprob > -math.inf]
            yield at, pairs


def alternatives(logprobs: Tensor, top_counts: Sequence[int | None], named: Sequence[Sequence[int]]) -> list[TopTokens]:
    """The alternatives of n rows; nothing is read from the device.

    logprobs: [n, V] float32. top_counts, named: as in `row_logprobs`.
    """
    chosen = {at: ids for at, ids in enumerate(named) if ids}
    likeliest = [None if at in chosen else count for at, count in enumerate(top_counts)]
    places, normaliser = list(range(len(logprobs))), logprobs.new_zeros(len(logprobs))
    return [*_alternatives(logprobs, places, normaliser, likeliest), *_named(logprobs, places, normaliser, chosen)]


def row_logprobs(
    logits: Tensor,
    places: list[int],
    tokens: Tensor,
    rows: list[int],
    top_counts: list[int | None],
    normaliser: Tensor | None = None,
    named: Sequence[Sequence[int]] = (),
) -> RowLogprobs:
    """Log-probabilities under n distributions; nothing is read from the device.

    logits: [N, V] float32. places: [n], which of them. tokens: [n] int64, the chosen ids. rows: which of the batch they
    are. top_counts: see `RowLogprobs`. normaliser: [n] float32, log of the sum of exponentials, where it is known.
    named: [n], the ids that are a row's alternatives, none for the most likely ones; may be empty for none anywhere.
    """
    if normaliser is None:
        normaliser = _normaliser(logits, places)
    at = to_device(places, torch.int64, logits.device)
    values = logits[at, tokens] - normaliser
    logprobs = values.clamp(min=torch.finfo(values.dtype).min, max=0.0)
    if not any(named):
        return RowLogprobs(rows, top_counts, logprobs, [*_alternatives(logits, places, normaliser, top_counts)])
    chosen = {at: ids for at, ids in enumerate(named) if ids and top_counts[at] is not None}
    likeliest = [None if at in chosen else count for at, count in enumerate(top_counts)]
    tops = [*_alternatives(logits, places, normaliser, likeliest), *_named(logits, places, normaliser, chosen)]
    counts = [len(chosen[at]) if at in chosen else count for at, count in enumerate(top_counts)]
    return RowLogprobs(rows, counts, logprobs, tops)


def _normaliser(logits: Tensor, places: list[int]) -> Tensor:
    """[n] float32, log of the sum of exponentials of each row; to the bit that of a row sampled by kernels."""
    if has_kernel(logits):
        return sample_by_kernel(logits, [KernelRow(place, 0) for place in places]).normaliser
    return torch.cat([logsumexp(select_rows(logits, part)) for part in row_chunks(places, logits)])


def _alternatives(
    logits: Tensor, places: list[int], normaliser: Tensor, top_counts: Sequence[int | None]
) -> Iterator[TopTokens]:
    """The k most likely ids of each row, rows of one bucket together."""
    vocabulary, asked = logits.shape[-1], {count for count in top_counts if count}
    for low, high in zip((0, *_TOP_BUCKETS), (*_TOP_BUCKETS, vocabulary), strict=True):
        if not any(low < count <= high for count in asked):
            continue
        members = [i for i, k in enumerate(top_counts) if k is not None and low < k <= high]
        values, ids = _top(select_rows(logits, [places[i] for i in members]), min(high, vocabulary))
        yield TopTokens(members, ids, (values - select_rows(normaliser, members).unsqueeze(-1)).clamp(max=0.0))


def _named(
    logits: Tensor, places: list[int], normaliser: Tensor, chosen: Mapping[int, Sequence[int]]
) -> Iterator[TopTokens]:
    """Those ids of each row, best first. chosen: which of the rows, with ids."""
    for at, ids in chosen.items():
        columns = to_device(list(ids), torch.int64, logits.device)
        values, order = (logits[places[at], columns] - normaliser[at]).clamp(max=0.0).sort(descending=True, stable=True)
        yield TopTokens([at], columns[order].unsqueeze(0), values.unsqueeze(0))


def _top(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` highest of each row, best first: values [n, count] and ids [n, count]."""
    if count > 1:
        return top_tokens(logits, count)
    ids = most_likely(logits).unsqueeze(1)
    return logits.gather(1, ids), ids


def _with_chosen(top: Top | None, token: int, logprob: float) -> tuple[tuple[int, float], ...] | None:
    if top is None:
        return None
    for other, _ in top:
        if other == token:
            return tuple(top)
    return (*top, (token, logprob))


def row_chunks(rows: list[int], logits: Tensor) -> Iterator[list[int]]:
    """The rows a few at a time, so that intermediate results stay in a CPU's cache; a GPU takes all at once."""
    size = len(rows) if logits.is_cuda else max(1, _CHUNK_BYTES // (logits.shape[-1] * logits.element_size()))
    for start in range(0, len(rows), max(1, size)):
        yield rows[start : start + size]
