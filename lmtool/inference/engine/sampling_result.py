"""Results of a step's sampling: ids that stay on the device for the next step, and log-probabilities for the host.

All work on the device is queued before anything is read, so that a GPU keeps working meanwhile. On CPU the same code
runs, and nothing is copied.
"""

from __future__ import annotations

import math
import struct
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from lmtool.inference.engine.cpu.sampling import KernelRow, has_kernel, sample_by_kernel
from lmtool.inference.engine.device import arrival, select_rows, to_device, to_host
from lmtool.inference.engine.logits import logsumexp, most_likely, row_chunks, top_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lmtool.inference.engine.sampling_row import TokenCounts

_TOP_BUCKETS = (1, 5, 20, 256)
"""Alternatives are taken this many at a time, or all; a row's bucket depends on its own request alone."""

_RESULT = struct.Struct("ifif")

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
        self._count = len(tokens)
        self.selected: list[int] | None = None
        """Rows that are read; None for all."""

    def select(self, rows: list[int]) -> SamplingResult:
        """The tokens of these rows, at least one, alone: the others were sampled for nothing."""
        selected = copy(self)
        selected.tokens, selected.selected = select_rows(self.tokens, rows), rows
        return selected

    def read(self) -> list[SampledToken | None]:
        """One token a row; None for a row that is no distribution. Waits for the device."""
        self._wait()
        results: list[SampledToken | None] = [None] * self._count
        if self._tokens is not None and self._highest is not None:
            tokens = self._tokens.tolist()
            finite = [math.isfinite(highest) for highest in self._highest.tolist()]
            for logprobs in self._logprobs:
                for row, logprob, top in logprobs.read():
                    if finite[row] and not math.isnan(logprob):
                        results[row] = SampledToken(tokens[row], logprob, _with_chosen(top, tokens[row], logprob))
        for sampled in self._sampled:
            own = sampled.read()
            if len(own) == len(results):
                results = own
            else:
                for row, token_of_row in zip(sampled.rows, own, strict=True):
                    results[row] = token_of_row
        return results if self.selected is None else [results[row] for row in self.selected]


@dataclass(frozen=True, slots=True)
class SampledRows:
    """Tokens of n rows of a batch, and their log-probabilities, as kernels give them."""

    rows: Sequence[int]
    """[n], in the batch, in order."""
    top_counts: list[int | None]
    """[n], how many alternatives; None for none at all."""
    results: Tensor | list[tuple[int, float, int, float]]
    """n times token, its logprob, the likeliest id, its logprob; NaN for no distribution. A tensor is [n, 4] int32 and
    has the bits of logprobs."""
    members: list[int]
    """Indices of the rows with other alternatives than the likeliest id, in order of `tops`."""
    tops: list[TopTokens]
    """These alternatives; `TopTokens.members` are places in `members`."""
    counts: Sequence[tuple[TokenCounts, int] | None] = ()
    """[n], those that the kernel has added the token to, and the token's index in its stream; may be empty for none
    anywhere."""

    def to_host(self) -> SampledRows:
        """Copy on the host, complete once what is queued on the device is done."""
        tops = [top.to_host() for top in self.tops]
        results = to_host(self.results) if isinstance(self.results, Tensor) else self.results
        return SampledRows(self.rows, self.top_counts, results, self.members, tops, self.counts)

    def read(self) -> list[SampledToken | None]:
        """The token of each row; None for one that is no distribution."""
        results = self.results
        if isinstance(results, Tensor):
            results = list(_RESULT.iter_unpack(results.numpy().tobytes()))
        make_token, tokens = SampledToken._make, []
        for (token, logprob, likeliest, highest), count in zip(results, self.top_counts, strict=True):
            top: tuple[tuple[int, float], ...] | None = None
            if count == 1:
                top = ((likeliest, highest),) if likeliest == token else ((likeliest, highest), (token, logprob))
            elif count is not None:
                top = ((token, logprob),)  # where there are more, they follow
            tokens.append(None if math.isnan(logprob) else make_token((token, logprob, top)))
        self._list_alternatives(tokens)
        for counted, one in zip(self.counts, tokens, strict=False):
            if counted is not None and one is not None:
                counts, index = counted
                counts.note_read(index, one.token)
        return tokens

    def _list_alternatives(self, tokens: list[SampledToken | None]) -> None:
        """Give each token that has other alternatives than the likeliest id its own."""
        for own in self.tops:
            for at, top in own.read([self.top_counts[at] for at in self.members]):
                if (one := tokens[self.members[at]]) is not None:
                    tokens[self.members[at]] = one._replace(top_logprobs=_with_chosen(top, one.token, one.logprob))


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
        """Copy on the host, complete once what is queued on the device is done."""
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
        """Copy on the host, complete once what is queued on the device is done."""
        return TopTokens(self.members, to_host(self.ids), to_host(self.logprobs))

    def read(self, counts: Sequence[int | None]) -> Iterator[tuple[int, Top]]:
        """Each member and its alternatives, as many as `counts` says of it."""
        for at, ids, logprobs in zip(self.members, self.ids.tolist(), self.logprobs.tolist(), strict=True):
            pairs = list(zip(ids[: counts[at]], logprobs, strict=False))
            if pairs and pairs[-1][1] == -math.inf:  # the last one is the least likely
                pairs = [(token, logprob) for token, logprob in pairs if logprob > -math.inf]
            yield at, pairs


def alternatives(
    logits: Tensor,
    places: list[int],
    normaliser: Tensor,
    top_counts: Sequence[int | None],
    named: Sequence[Sequence[int]],
) -> list[TopTokens]:
    """The alternatives of n rows; nothing is read from the device.

    normaliser: [n] float32, log of the sum of exponentials. The rest: as for `row_logprobs`.
    """
    chosen = {at: ids for at, ids in enumerate(named) if ids and top_counts[at] is not None}
    likeliest = [None if at in chosen else count for at, count in enumerate(top_counts)]
    return [*_alternatives(logits, places, normaliser, likeliest), *_named(logits, places, normaliser, chosen)]


def row_logprobs(
    logits: Tensor,
    places: list[int],
    tokens: Tensor,
    rows: list[int],
    top_counts: list[int | None],
    named: Sequence[Sequence[int]] = (),
) -> RowLogprobs:
    """Log-probabilities under n distributions; nothing is read from the device.

    logits: [N, V] float32. places: [n], which of them. tokens: [n] int64, the chosen ids. rows: which of the batch they
    are. top_counts: see `RowLogprobs`. named: [n], the ids that are a row's alternatives, none for the most likely
    ones; may be empty for none anywhere.
    """
    normaliser = _normaliser(logits, places)
    at = to_device(places, torch.int64, logits.device)
    values = logits[at, tokens] - normaliser
    logprobs = values.clamp(min=torch.finfo(values.dtype).min, max=0.0)
    if not any(named):
        return RowLogprobs(rows, top_counts, logprobs, [*_alternatives(logits, places, normaliser, top_counts)])
    counts = [count if count is None else len(ids) or count for count, ids in zip(top_counts, named, strict=True)]
    return RowLogprobs(rows, counts, logprobs, alternatives(logits, places, normaliser, top_counts, named))


def _normaliser(logits: Tensor, places: list[int]) -> Tensor:
    """[n] float32, log of the sum of exponentials of each row; to the bit that of a row sampled by kernels."""
    if has_kernel(logits):
        return sample_by_kernel(logits, [KernelRow(place, 0) for place in places]).normaliser
    return torch.cat([logsumexp(select_rows(logits, part)) for part in row_chunks(places, logits)])


def _alternatives(
    logits: Tensor, places: list[int], normaliser: Tensor, top_counts: Sequence[int | None]
) -> Iterator[TopTokens]:
    """The k most likely ids of each row, rows of one bucket together."""
    vocabulary, requested = logits.shape[-1], {count for count in top_counts if count}
    for low, high in zip((0, *_TOP_BUCKETS), (*_TOP_BUCKETS, vocabulary), strict=True):
        if not any(low < count <= high for count in requested):
            continue
        members = [i for i, k in enumerate(top_counts) if k is not None and low < k <= high]
        values, ids = _top(select_rows(logits, [places[i] for i in members]), min(high, vocabulary))
        yield TopTokens(members, ids, (values - select_rows(normaliser, members).unsqueeze(-1)).clamp(max=0.0))


def _named(
    logits: Tensor, places: list[int], normaliser: Tensor, chosen: Mapping[int, Sequence[int]]
) -> Iterator[TopTokens]:
    """Requested ids of each row, best first. chosen: index of the row, to its ids."""
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
