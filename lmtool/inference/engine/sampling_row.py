"""Rows of logits and how to sample from them: parameters, random numbers, and token counts on a device."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lmtool.core.logprobs.uniform import uniform
from lmtool.core.types import SamplingParams
from lmtool.inference.engine.device import to_device
from lmtool.inference.engine.request_checks import bias_arrays

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from lmtool.core.logits_processors import Processors


_HUGE = 1e30
"""A bias beyond this is as good as infinite, and would become so in float32."""


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
        ids, nats = bias_arrays(bias)
        device = torch.device("cpu") if device is None else device
        values = nats.clip(-_HUGE, _HUGE).astype(np.float32)
        return Bias(to_device(ids, torch.int64, device), to_device(values, torch.float32, device))


@dataclass(slots=True, eq=False)
class RowState:
    """State shared by the rows of a stream; a GPU's sampler keeps its part of it on the device."""

    tokens: Sequence[int]
    """The stream's ids so far; grows."""
    prompt_length: int
    """Length of the prompt, in ids."""
    on_device: object = None
    """A `cuda.sampling.DeviceRow`, used there alone."""


@dataclass(slots=True)
class Row:
    """One row of logits and how to sample from it; once it was sampled from, its `position` alone may change."""

    params: SamplingParams = field(default_factory=SamplingParams)
    target: int | None = None
    """The id to score (SCORE); None samples one (GENERATE). A scored row uses nothing else but `top_logprobs`."""
    bias: Bias | None = None
    """The parameters' `logit_bias`."""
    top_logprobs: int | None = None
    """Number of alternatives to return; None returns none."""
    seed: int = 0
    position: int = 0
    """Index of the token to be sampled, counted from the prompt's first."""
    barred: Collection[int] = ()
    """Ids that may not be sampled now: eos and stop ids before `min_tokens`."""
    known_ids: Collection[int] = ()
    """Ids in prompt or output; needed with a repetition penalty."""
    counts: Mapping[int, int] = field(default_factory=dict)
    """Generated id to how often; needed with a presence or frequency penalty."""
    output: Sequence[int] = ()
    """Ids generated so far; needed with `processors`."""
    processors: Processors | None = None
    """The stream's own, see `lmtool.logits_processors`; what fails is in their `error`."""
    allowed: Tensor | None = None
    """[ceil(V / 32)] int32 on CPU, the constraint's mask, see `step`."""
    logprob_ids: Sequence[int] = ()
    """The alternatives to give, in place of the most likely ids."""
    state: RowState | None = None
    """State kept from step to step; without it, the row's own fields are uploaded each time."""
    packed: bytes = b""
    """The row as the C kernel reads it, see `cpu.sampling.pack`; empty before the kernel first samples it."""
    random: bool = False
    """True if the C kernel needs a random number for it."""
    special: bool = False
    """True if the C kernel needs more than that: its bias, its barred ids, or alternatives beside the likeliest id."""

    @property
    def penalises(self) -> bool:
        """True if a token's logit depends on the tokens before it."""
        params = self.params
        return params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0

    @property
    def truncates(self) -> bool:
        """True if top-k, top-p or min-p may leave tokens out."""
        return self.params.top_k > 0 or self.params.top_p < 1 or self.params.min_p > 0

    @property
    def lists(self) -> bool:
        """True if other alternatives than the likeliest id are requested."""
        return self.top_logprobs is not None and (self.top_logprobs > 1 or bool(self.logprob_ids))


_MANY = 16
"""Pairs from which on making them together is faster."""

_MASK = (1 << 64) - 1


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> NDArray[np.float64]:
    """[n] in [0, 1): `uniform` of each pair, to the bit."""
    if len(seeds) < _MANY:
        return np.array([uniform(*pair) for pair in zip(seeds, positions, strict=True)], np.float64)
    own = _mix(np.array([seed & _MASK for seed in seeds], np.uint64)) + np.array(positions, np.uint64) + np.uint64(1)
    return (_mix(own) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    value = value + np.uint64(0x9E3779B97F4A7C15)  # arrays of such numbers wrap around in silence
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@dataclass(slots=True, eq=False)
class TokenCounts:
    """Counts of each id in a stream, on a device, where a kernel adds each id that it samples."""

    counts: Tensor
    """[V] int32: 1 where the stream has the id, prompt included, and 2 for each time that it was generated."""
    counted: int = 0
    """Tokens of the stream that are counted, those that are being sampled included."""
    sampled: dict[int, int | None] = field(default_factory=dict)
    """The last of these by index: the ids that the kernel added, once they were read; None before that, and where
    nothing was sampled."""

    @staticmethod
    def of(known_ids: Collection[int], counts: Mapping[int, int], vocabulary: int, device: torch.device) -> TokenCounts:
        """The counts of a row that belongs to no stream."""
        host = torch.zeros(vocabulary, dtype=torch.int32)
        host[list(known_ids)] = 1
        for token, count in counts.items():
            host[token] += 2 * count
        return TokenCounts(to_device(host, torch.int32, device))

    def update(self, tokens: Sequence[int], prompt_length: int, position: int) -> None:
        """Count what is known before the token at `position` is sampled, whose id the kernel will add.

        tokens: the stream's, up to there; without the last one where a kernel has added that already and it was not
        read yet, see `follows`. What was sampled, and then dropped instead of recorded, is taken back.
        """
        if not self.follows(tokens, position):
            assert len(tokens) >= position, "an id that only the device knows"
            self.counts.zero_()
            self.counted = 0
            self.sampled.clear()
        new = tokens[self.counted : position]
        if new:
            device, prompt = self.counts.device, max(prompt_length - self.counted, 0)
            ids = to_device(new, torch.int64, device)
            if generated := len(new) - prompt:
                twos = torch.full((generated,), 2, dtype=torch.int32, device=device)
                self.counts.index_add_(0, ids[prompt:], twos)
            self.counts.index_put_((ids,), self.counts[ids] | 1)
        self.counted = position + 1
        self.sampled = {index: token for index, token in self.sampled.items() if index >= len(tokens)}
        self.sampled[position] = None

    def follows(self, tokens: Sequence[int], position: int) -> bool:
        """True if nothing must be taken back before the token at `position` is sampled, and all before it is known.

        tokens: the stream's that were recorded; what is sampled after them is counted, but not read yet.
        """
        if position != self.counted and not self.counted <= position <= len(tokens):
            return False
        recorded = len(tokens)
        return all(index >= recorded or tokens[index] == token for index, token in self.sampled.items())

    def note_read(self, index: int, token: int) -> None:
        """Note which id the kernel has added at this index; one of a step that was dropped since is of no effect."""
        if index in self.sampled:
            self.sampled[index] = token
