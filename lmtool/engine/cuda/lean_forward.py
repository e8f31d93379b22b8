"""The forward pass of a decoder of the Llama family on a GPU: matrix products, paged attention, four fused kernels.

Letters: T tokens of the batch, H query heads, KV key heads, D head size, I inner size of the MLP, V vocabulary.

Has run in Triton's interpreter only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lmtool.engine.cuda.backends import Asked
from lmtool.engine.cuda.kernels.add_norm import add_norm
from lmtool.engine.cuda.kernels.rotary import rotate_and_store
from lmtool.engine.cuda.kernels.silu_mul import silu_mul
from lmtool.engine.cuda.paged_attention import PagedAttention
from lmtool.engine.cuda.products import product

if TYPE_CHECKING:
    from lmtool.engine.attention import BlockAttention
    from lmtool.engine.batch import Batch
    from lmtool.engine.cuda.products import Product
    from lmtool.engine.lean_config import LeanConfig

FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""`LeanConfig.family` of what this pass computes."""


@dataclass(frozen=True, slots=True, eq=False)
class CudaLayer:
    """One decoder layer."""

    input_norm: Tensor
    """[hidden]"""
    qkv: Product
    """To [T, (H + 2 * KV) * D]: heads of queries, keys and values."""
    head_norm: Tensor | None
    """[H + KV, D], for query and key heads."""
    output: Product
    mlp_norm: Tensor
    """[hidden]"""
    gate_up: Product
    """To [T, 2 * I]."""
    down: Product
    asked: Asked


class CudaLeanModel:
    """A `Forward` for `PagedAttention`."""

    def __init__(
        self, config: LeanConfig, weights: dict[str, Tensor], frequencies: Tensor, context: int, *, deterministic: bool
    ) -> None:
        """Take the weights out of `weights`. frequencies: [D / 2] float32, radians a position. context: in tokens."""
        make = partial(product, deterministic=deterministic)
        self._config = config
        self._embedding = weights.pop("model.embed_tokens.weight")
        self._norm = weights.pop("model.norm.weight")
        self.layers = [
            _layer(config, weights, f"model.layers.{index}.", window, make)
            for index, window in enumerate(config.windows)
        ]
        self._head = make(self._embedding if config.tied else weights.pop("lm_head.weight"), None)
        angles = torch.outer(torch.arange(context, device=frequencies.device).float(), frequencies)
        self._cos, self._sin = angles.cos(), angles.sin()

    def logits(self, batch: Batch, attention: BlockAttention) -> Tensor:
        """See `Forward.logits`; attention must be a `PagedAttention`."""
        assert isinstance(attention, PagedAttention)
        eps = self._config.eps
        hidden = self._embedding.index_select(0, batch.input_ids[0])
        delta: Tensor | None = None
        for layer in self.layers:
            inputs = add_norm(hidden, delta, layer.input_norm, eps)
            delta = layer.output(self._attend(layer, inputs, batch.positions[0], attention))
            inputs = add_norm(hidden, delta, layer.mlp_norm, eps)
            delta = layer.down(silu_mul(layer.gate_up(inputs)))
        if not batch.logits:
            return hidden.new_empty(0, 0)
        rows = batch.logit_rows
        last = None if delta is None else delta.index_select(0, rows)
        return self._head(add_norm(hidden.index_select(0, rows), last, self._norm, eps))

    def _attend(self, layer: CudaLayer, inputs: Tensor, positions: Tensor, attention: PagedAttention) -> Tensor:
        config, tokens = self._config, len(inputs)
        projected = layer.qkv(inputs).view(tokens, -1, config.head_dim)
        query = projected.new_empty(tokens, config.heads, config.head_dim)
        keys, values = attention.pages(layer)
        rotate_and_store(
            projected, query, keys, values, positions, attention.slots, self._cos, self._sin,
            layer.head_norm, config.eps,
        )  # fmt: skip
        return attention.look(query, keys, values, layer.asked).view(tokens, -1)


def _layer(
    config: LeanConfig, weights: dict[str, Tensor], prefix: str, window: int | None, make: partial[Product]
) -> CudaLayer:
    def fused(*names: str) -> Product:
        """One product in place of several with the same input: their outputs, one behind the other."""
        parts = [weights.pop(f"{prefix}{name}.weight") for name in names]
        biases = [weights.pop(f"{prefix}{name}.bias", None) for name in names]
        given = [bias for bias in biases if bias is not None]
        assert len(given) in {0, len(names)}, "some of several fused layers have a bias"
        return make(torch.cat(parts) if len(parts) > 1 else parts[0], torch.cat(given) if given else None)

    head_norm = None
    if config.head_norms:
        norms = [weights.pop(f"{prefix}self_attn.{name}_norm.weight") for name in "qk"]
        counts = (config.heads, config.kv_heads)
        head_norm = torch.cat([norm.expand(count, -1) for norm, count in zip(norms, counts, strict=True)])
    return CudaLayer(
        input_norm=weights.pop(f"{prefix}input_layernorm.weight"),
        qkv=fused("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        head_norm=head_norm,
        output=fused("self_attn.o_proj"),
        mlp_norm=weights.pop(f"{prefix}post_attention_layernorm.weight"),
        gate_up=fused("mlp.gate_proj", "mlp.up_proj"),
        down=fused("mlp.down_proj"),
        asked=Asked(config.head_dim**-0.5, window),
    )
