"""The forward pass: a plan in, the rows of logits that it needs out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lmtool.engine.attention import BlockAttention, attending
from lmtool.engine.batch import Batch, build

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from lmtool.engine.kv_cache import KVCache
    from lmtool.engine.scheduler import Plan


@dataclass(frozen=True, slots=True)
class ModelRunner:
    """A loaded model with its key-value cache. Used by one thread at a time, under `torch.inference_mode`."""

    model: PreTrainedModel
    cache: KVCache
    device: torch.device
    chunk_tokens: int
    """Where prompts are cut; the scheduler's value."""
    min_rows: int
    """Fewest rows of a matrix product for which a row's bits do not depend on the others."""

    def run(self, plan: Plan) -> Tensor:
        """Compute the plan's spans and store their keys and values.

        Returns logits [R, V] float32: one row for each position of each span's `logits`, in order.
        """
        batch = build(plan, self.chunk_tokens, self.min_rows, self.device)
        if len(batch.fresh_blocks):
            self.cache.clear(batch.fresh_blocks)
        with attending(BlockAttention(self.cache, batch.slots, batch.groups)):
            return self._forward(batch)

    def _forward(self, batch: Batch) -> Tensor:
        inputs = {
            "input_ids": batch.input_ids,
            "position_ids": batch.positions,
            "attention_mask": None,
            "use_cache": False,
        }
        if not batch.logits:
            self.model.base_model(**inputs)
            return torch.empty(0, 0, device=self.device)
        logits: Tensor = self.model(**inputs, logits_to_keep=batch.logit_rows).logits
        return logits[0, : batch.logits].float()
