"""What was drawn from a step's logits: ids that stay on the device for the next step, and numbers for the host.

All work on the device comes first and all reading last, so that a GPU goes on meanwhile. On CPU it is the same code,
and nothing is copied.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lmtool.engine.cpu.draws import Draw, can_draw, draw_by_kernel
from lmtool.engine.cuda.readback import arrival, to_host
from lmtool.engine.cuda.row_sums import logsumexp
from lmtool.engine.cuda.step_rows import to_device
from lmtool.engine.cumulative import highest, most_likely
from lmtool.engine.rows import rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_TOP_BUCKETS = (1, 5, 20, 256)
"""Alternatives are taken this many at a time; a row's bucket depends on what it asks for, not on its neighbours."""

_CHUNK_BYTES = 2**21
"""Logits that are looked at together: what is made of them stays in the cache (32 rows of 128k drawn in half the time).
"""

Top = list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Choice:
    """What one row of logits gave."""

    token: int
    """The drawn or the scored id."""
    logprob: float
    """In nats, at most 0."""
    top_logprobs: tuple[tuple[int, float], ...] | None
    """(id, logprob), best first, then the chosen one if it is not among them; ids that cannot be drawn left out."""


class Drawing:
    """What each of R rows of logits gave, on its way to the host."""

    def __init__(self, tokens: Tensor, highest: Tensor, numbers: Sequence[Numbers]) -> None:
        """Start the copies. tokens: [R] int64. numbers: of each row once.

        highest: [R] float32, the highest logit of each row; one that is no finite number tells that the row is no
        distribution: NaN wins over every number.
        """
        self.tokens = tokens
        """[R] int64, on the logits' device. An id of the vocabulary also for a row that gave none."""
        self._tokens = to_host(tokens)
        self._highest = to_host(highest)
        self._numbers = [own.to_host() for own in numbers]
        self._wait = arrival(tokens.device)

    def choices(self) -> list[Choice | None]:
        """One choice a row; None for a row that gave none. Waits for the device."""
        self._wait()
        tokens = self._tokens.tolist()
        finite = [math.isfinite(highest) for highest in self._highest.tolist()]
        results: list[Choice | None] = [None] * len(tokens)
        for numbers in self._numbers:
            for row, logprob, top in numbers.read():
                if finite[row] and not math.isnan(logprob):
                    results[row] = Choice(tokens[row], logprob, _with_chosen(top, tokens[row], logprob))
        return results


@dataclass(frozen=True, slots=True)
class Numbers:
    """Log-probabilities of n rows of a batch."""

    rows: list[int]
    """[n], in the batch."""
    wanted: list[int | None]
    """[n], how many alternatives; None for none at all."""
    logprobs: Tensor
    """[n] float32, nats."""
    best: list[Best]
    """The alternatives of those rows that want any."""

    def to_host(self) -> Numbers:
        """The same on the host, once what is queued on the device is done."""
        return Numbers(self.rows, self.wanted, to_host(self.logprobs), [best.to_host() for best in self.best])

    def read(self) -> Iterator[tuple[int, float, Top | None]]:
        """Row, log-probability and alternatives of each."""
        tops: list[Top | None] = [None if count is None else [] for count in self.wanted]
        for best in self.best:
            for at, ids, logprobs in zip(best.members, best.ids.tolist(), best.logprobs.tolist(), strict=True):
                pairs = zip(ids[: self.wanted[at]], logprobs, strict=False)
                tops[at] = [(token, logprob) for token, logprob in pairs if logprob > float("-inf")]
        return zip(self.rows, self.logprobs.tolist(), tops, strict=True)


@dataclass(frozen=True, slots=True)
class Best:
    """The likeliest ids of m of the n rows of `Numbers`, best first."""

    members: list[int]
    """[m], which of the n."""
    ids: Tensor
    """[m, k] int64"""
    logprobs: Tensor
    """[m, k] float32, nats; -inf for an id that cannot be drawn."""

    def to_host(self) -> Best:
        """The same on the host, once what is queued on the device is done."""
        return Best(self.members, to_host(self.ids), to_host(self.logprobs))


def numbers(
    logits: Tensor,
    places: list[int],
    tokens: Tensor,
    rows: list[int],
    wanted: list[int | None],
    normaliser: Tensor | None = None,
) -> Numbers:
    """Take log-probabilities under n distributions, nothing of which is read yet.

    logits: [N, V] float32. places: [n], which of them. tokens: [n] int64, the chosen ids. rows: which of the batch they
    are. wanted: how many alternatives of each, see `Numbers`. normaliser: [n] float32, log of the sum of exponentials,
    where it is known.
    """
    if normaliser is None:
        normaliser = _normaliser(logits, places)
    at = to_device(places, torch.int64, logits.device)
    values = logits[at, tokens] - normaliser
    logprobs = values.clamp(min=torch.finfo(values.dtype).min, max=0.0)
    return Numbers(rows, wanted, logprobs, list(_alternatives(logits, places, normaliser, wanted)))


def _normaliser(logits: Tensor, places: list[int]) -> Tensor:
    """[n] float32, log of the sum of exponentials of each row; to the bit what a row that is drawn by kernels has."""
    if can_draw(logits):
        return draw_by_kernel(logits, [Draw(place, 0) for place in places]).normaliser
    return torch.cat([logsumexp(rows_of(logits, part)) for part in parts_of(places, logits)])


def _alternatives(
    logits: Tensor, places: list[int], normaliser: Tensor, wanted: Sequence[int | None]
) -> Iterator[Best]:
    """The k most likely ids of each row that asks for k, rows of one bucket together."""
    for low, high in zip((0, *_TOP_BUCKETS), _TOP_BUCKETS, strict=False):
        members = [i for i, k in enumerate(wanted) if k is not None and low < k <= high]
        if members:
            values, ids = _best(rows_of(logits, [places[i] for i in members]), min(high, logits.shape[-1]))
            yield Best(members, ids, (values - rows_of(normaliser, members).unsqueeze(-1)).clamp(max=0.0))


def _best(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` highest of each row, best first: values [n, count] and ids [n, count]."""
    if count > 1:
        return highest(logits, count)
    ids = most_likely(logits).unsqueeze(1)
    return logits.gather(1, ids), ids


def _with_chosen(top: Top | None, token: int, logprob: float) -> tuple[tuple[int, float], ...] | None:
    if top is None:
        return None
    if all(other != token for other, _ in top):
        top.append((token, logprob))
    return tuple(top)


def parts_of(members: list[int], logits: Tensor) -> Iterator[list[int]]:
    """The rows a few at a time, so that what is made of them stays in a CPU's cache; a GPU takes all at once."""
    size = len(members) if logits.is_cuda else max(1, _CHUNK_BYTES // (logits.shape[-1] * logits.element_size()))
    for start in range(0, len(members), max(1, size)):
        yield members[start : start + size]
