"""The forward pass through transformers' own modules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from lmtool.engine.transformers_attention import attending

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from lmtool.engine.attention import BlockAttention
    from lmtool.engine.batch import Batch


@dataclass(frozen=True, slots=True)
class TransformersForward:
    """A transformers model that was switched to our attention."""

    model: PreTrainedModel

    def logits(self, batch: Batch, attention: BlockAttention) -> Tensor:
        """See `Forward.logits`."""
        inputs = {
            "input_ids": batch.input_ids,
            "position_ids": batch.positions,
            "attention_mask": None,
            "use_cache": False,
        }
        with attending(attention):
            if not batch.logits:
                self.model.base_model(**inputs)
                return torch.empty(0, 0, device=batch.input_ids.device)
            logits: Tensor = self.model(**inputs, logits_to_keep=batch.logit_rows).logits
        return logits[0]
