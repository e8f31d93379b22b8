"""One row of logits, and how to sample from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lmtool.core.types import SamplingParams
from lmtool.inference.engine.device import to_device
from lmtool.inference.engine.request_checks import bias_arrays

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

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
    """What the rows of a stream have in common; a GPU's sampler keeps on the device what it needs of it."""

    tokens: Sequence[int]
    """The stream's ids so far; grows."""
    prompt_length: int
    """How many of them are the prompt."""
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
    """How many alternatives to give; None gives none at all."""
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
    """[ceil(V / 32)] int32 on CPU, the constraint's mask, see `masks`."""
    logprob_ids: Sequence[int] = ()
    """The alternatives to give, in place of the most likely ids."""
    state: RowState | None = None
    """What lasts from step to step; without it, the row's own fields are uploaded each time."""
    packed: bytes = b""
    """What the C kernel reads of it, see `cpu.sampling.pack`; empty before it was sampled by that."""
    random: bool = False
    """Whether the C kernel needs a random number for it."""
    special: bool = False
    """Whether the C kernel needs more than that: its bias, its barred ids, or alternatives beside the likeliest id."""

    @property
    def penalises(self) -> bool:
        """Whether a token's logit depends on the tokens before it."""
        params = self.params
        return params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0

    @property
    def truncates(self) -> bool:
        """Whether top-k, top-p or min-p may leave tokens out."""
        return self.params.top_k > 0 or self.params.top_p < 1 or self.params.min_p > 0
