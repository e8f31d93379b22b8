"""The forward pass: a plan in, the rows of logits that it needs out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from lmtool.engine.attention import BlockAttention
from lmtool.engine.batch import Batch, build

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from lmtool.engine.kv_cache import KVCache
    from lmtool.engine.plan import Plan


class Forward(Protocol):
    """A model's layers, however they are computed."""

    def logits(self, batch: Batch, attention: BlockAttention) -> Tensor:
        """Run a batch through all layers, whose attention is `attention`'s.

        Returns logits [rows, V] for the batch's `logit_rows`, empty where there are none.
        """


@dataclass(frozen=True, slots=True)
class ModelRunner:
    """A loaded model with its key-value cache. Used by one thread at a time, under `torch.inference_mode`."""

    forward: Forward
    cache: KVCache
    device: torch.device
    chunk_tokens: int
    """Where prompts are cut; the scheduler's value."""
    min_rows: int
    """Fewest rows of a matrix product for which a row's bits do not depend on the others."""
    free_cuts: bool = field(default=False, kw_only=True)
    """Whether a position's bits do not depend on how its text is cut into steps either."""
    kernels: str = field(default="torch", kw_only=True)
    """What computes, see `ModelInfo.kernels`."""
    doubling_position: int | None = field(default=None, kw_only=True)
    """Where a token takes twice as long as at the start of its text; None: not known."""

    def ready(self, max_streams: int, context: int) -> ModelRunner:  # noqa: ARG002  # a GPU's records its steps
        """What is to run steps of so many streams, of up to `context` positions; called once, after the checks."""
        return self

    @property
    def most_ahead(self) -> int:
        """Rows of the largest step that `run_ahead` takes; 0 where nothing runs ahead."""
        return 0

    def run_ahead(self, plan: Plan, ids: Tensor) -> Tensor:
        """Like `run`, for a plan made ahead of its time: one new position of each text, whose ids the host lacks yet.

        ids: [N] int64 on the device, one for each span. Nothing is waited for.
        """
        raise NotImplementedError

    def run(self, plan: Plan) -> Tensor:
        """Compute the plan's spans and store their keys and values.

        Returns logits [R, V] float32: one row for each position of each span's `logits`, in order.
        """
        batch = build(plan, self.chunk_tokens, self.min_rows, self.device)
        if len(batch.fresh_blocks):
            self.cache.clear(batch.fresh_blocks)
        attention = BlockAttention(self.cache, batch.slots, batch.groups)
        return self.forward.logits(batch, attention)[: batch.logits].float()
