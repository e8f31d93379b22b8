"""Runs the forward pass: a plan in, its rows of logits out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from lmtool.inference.engine.attention import BlockAttention
from lmtool.inference.engine.batch import Batch, build
from lmtool.inference.engine.kv_cache import BLOCK_TOKENS

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from lmtool.core.types import ModelInfo
    from lmtool.inference.engine.kv_cache import KVCache
    from lmtool.inference.engine.plan import Plan


class Forward(Protocol):
    """A way to compute a model's layers."""

    def logits(self, batch: Batch, attention: BlockAttention) -> Tensor:
        """Run a batch through all layers, with attention by `attention`.

        Returns logits [rows, V] for the batch's `logit_rows`, empty where there are none.
        """


@dataclass(frozen=True, slots=True)
class ModelRunner:
    """A loaded model with its key-value cache. Used by one thread at a time, under `torch.inference_mode`."""

    forward: Forward
    cache: KVCache
    device: torch.device
    chunk_tokens: int
    """Prompts are cut at multiples of this position, as in the scheduler."""
    min_rows: int
    """Fewest rows of a matrix product for which a row's bits do not depend on the others."""
    free_cuts: bool = field(default=False, kw_only=True)
    """Whether a position's bits do not depend on the cuts of its text either."""
    kernels: str = field(default="torch", kw_only=True)
    """See `ModelInfo.kernels`."""
    doubling_position: int | None = field(default=None, kw_only=True)
    """See `Limits.doubling_position`."""

    def prepared(self, max_streams: int, context: int, *, samples: bool = False) -> ModelRunner:  # noqa: ARG002  # a GPU's captures graphs
        """Prepare for up to `max_streams` streams of up to `context` positions, such as capturing CUDA graphs.

        samples: whether the kernels that sample on a GPU work, see `sampler.prepare_gpu`, and may be captured, too.
        """
        return self

    def close(self) -> None:
        """Free keys and values; nothing may be computed afterwards."""
        self.cache.free()

    @property
    def block_bytes(self) -> int | None:
        """Bytes of one block of the key-value cache; None: not known."""
        return self.cache.block_bytes

    @property
    def max_ahead_rows(self) -> int:
        """Rows of the largest step that `run_ahead` takes; 0 where nothing runs ahead."""
        return 0

    def run_ahead(self, plan: Plan, ids: Tensor) -> Tensor:
        """Like `run`, for a plan of one new position of each text, whose ids the host does not know yet.

        ids: [N] int64 on the device, one for each span. Does not wait for the device.
        """
        raise NotImplementedError

    @property
    def samples_ahead(self) -> bool:
        """Whether it is a `run_ahead.AheadSampler`, any of whose passes samples."""
        return False

    def run(self, plan: Plan) -> Tensor:
        """Compute the plan's spans and store their keys and values.

        Returns logits [R, V] float32: one row for each position of each span's `logits`, in order.
        """
        batch = build(plan, self.chunk_tokens, self.min_rows, self.device)
        if plan.fresh_blocks:
            self.cache.clear(batch.fresh_blocks)
        attention = BlockAttention(self.cache, batch.slots, batch.groups)
        logits = self.forward.logits(batch, attention)
        return (logits if logits.shape[0] == batch.logits else logits[: batch.logits]).float()


@dataclass(frozen=True, slots=True)
class RunnableModel:
    """A model in memory, ready for the engine."""

    runner: ModelRunner
    blocks: int
    """Of the runner's key-value cache."""
    info: ModelInfo
    contents: str | None = None
    """See `fingerprint.contents_digest`; None where the code that computes it is not known."""


CHUNK_TOKENS = BLOCK_TOKENS
"""Prompts are cut, and cached, at multiples of this position: as little as the cache can hold.

A step computes any number of chunks; one is small enough for streams beside a long prompt to keep their pace.
"""
