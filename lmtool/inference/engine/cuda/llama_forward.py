"""The forward pass of a decoder of the Llama family on a GPU: matrix products, paged attention, four fused kernels.

Letters: T tokens of the batch, H query heads, KV key heads, D head size, I inner size of the MLP, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lmtool.inference.engine.cuda.attention_backends import AttentionParams
from lmtool.inference.engine.cuda.kernels.elementwise import add_norm, silu_mul
from lmtool.inference.engine.cuda.kernels.kv_write import rotate_and_store
from lmtool.inference.engine.cuda.kernels.row_product import gated_row_product
from lmtool.inference.engine.cuda.paged_attention import PagedAttention
from lmtool.inference.engine.cuda.products import LibraryProduct, product
from lmtool.inference.engine.decoder_weights import take_weights
from lmtool.inference.engine.llama_forward import llama_layers

if TYPE_CHECKING:
    from lmtool.inference.engine.attention import BlockAttention
    from lmtool.inference.engine.batch import Batch
    from lmtool.inference.engine.cuda.products import Product
    from lmtool.inference.engine.decoder_config import DecoderConfig
    from lmtool.inference.engine.decoder_weights import Affine, Weights
    from lmtool.inference.engine.llama_forward import LlamaLayer


class CudaLlamaForward:
    """A `Forward` for `PagedAttention`."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: Weights,
        frequencies: Tensor,
        context: int,
        *,
        deterministic: bool,
        fp8: bool = False,
    ) -> None:
        """Take the weights out of `weights`. frequencies: [D / 2] float32, radians a position. context: in tokens.

        fp8: the layers' weights are rounded to e4m3; embedding and head stay.
        """

        def make(affine: Affine, *, own: bool = False) -> Product:  # noqa: ARG001  # here nothing is copied
            return product(*affine, deterministic=deterministic, fp8=fp8)

        self._config = config
        self._scaling = config.head_dim**-0.5
        checkpoint = take_weights(config, weights)
        self._embedding = checkpoint.embedding
        self._norm = checkpoint.norm[0]
        self.layers = llama_layers(checkpoint, config, make)
        head = self._embedding if checkpoint.head is None else checkpoint.head
        self._head = product(head, None, deterministic=deterministic)
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
            delta = layer.down(_gated(layer.gate_up, inputs))
        if not batch.logits:
            return hidden.new_empty(0, 0)
        rows = batch.logit_rows
        last = None if delta is None else delta.index_select(0, rows)
        return self._head(add_norm(hidden.index_select(0, rows), last, self._norm, eps))

    def _attend(self, layer: LlamaLayer, inputs: Tensor, positions: Tensor, attention: PagedAttention) -> Tensor:
        config, tokens = self._config, len(inputs)
        projected = layer.qkv(inputs).view(tokens, -1, config.head_dim)
        query = projected.new_empty(tokens, config.heads, config.head_dim)
        keys, values = attention.cache.memory(layer)
        scales = attention.cache.scales(layer)
        rotate_and_store(
            projected, query, keys, values, positions, attention.slots, self._cos, self._sin,
            layer.head_norm, config.eps, scales,
        )  # fmt: skip
        params = AttentionParams(self._scaling, layer.window)
        return attention.attend_stored(query, keys, values, params, scales).view(tokens, -1)


def _gated(gate_up: Product, inputs: Tensor) -> Tensor:
    """`silu(gate) * up`, [T, I]. gate_up: from [T, in] to [T, 2 * I], gates, then what they let by."""
    if isinstance(gate_up, LibraryProduct) and gate_up.takes_row(inputs):
        return gated_row_product(inputs, gate_up.weight, gate_up.bias)
    return silu_mul(gate_up(inputs))
