"""Forward passes over pages on a GPU: paged attention, and decoders of the Llama family with fused kernels.

Letters: T tokens of the batch, H query heads, KV key heads, D head size, I inner size of the MLP, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lmtool.inference.engine.cuda.attention_backends import AttentionBackend, AttentionParams
from lmtool.inference.engine.cuda.kernels.elementwise import add_norm, kv_write, rotate_and_store, silu_mul
from lmtool.inference.engine.cuda.kernels.products import gated_row_product
from lmtool.inference.engine.cuda.products import LibraryProduct, product
from lmtool.inference.engine.decoder import llama_layers, take_weights
from lmtool.inference.engine.model_runner import AttentionCall, BlockAttention

if TYPE_CHECKING:
    from lmtool.inference.engine.cuda.products import Product
    from lmtool.inference.engine.cuda.step_rows import StepRows
    from lmtool.inference.engine.decoder import Affine, DecoderConfig, LlamaLayer, Weights
    from lmtool.inference.engine.kv_cache import PagedCache
    from lmtool.inference.engine.model_runner import Batch


class PagedAttention(BlockAttention):
    """Attention of one step."""

    def __init__(self, cache: PagedCache, rows: StepRows, backend: AttentionBackend) -> None:
        super().__init__(cache, rows.slots, [])
        self._rows = rows
        self._backend = backend

    @property
    def slots(self) -> Tensor:
        """[T] int64, where the batch's tokens are stored; negative for padding."""
        return self._rows.slots

    def attend(self, call: AttentionCall) -> Tensor:
        """Store the new keys and values, then [T, H, Dv]; anything for padding."""
        keys, values = self.cache.memory(call.layer)
        scales = self.cache.scales(call.layer)
        kv_write(call.key.transpose(0, 1), call.value.transpose(0, 1), keys, values, self.slots, scales)
        params = AttentionParams(call.scaling, call.sliding_window, call.softcap)
        return self.attend_stored(call.query.transpose(0, 1), keys, values, params, scales)

    def attend_stored(
        self, query: Tensor, keys: Tensor, values: Tensor, params: AttentionParams, scales: Tensor | None = None
    ) -> Tensor:
        """The attention output [T, H, Dv] over a layer's stored keys and values. query: [T, H, D].

        keys, values, scales: see `PagedCache`.
        """
        query = query.contiguous()
        singles, parts = self._rows.singles, self._rows.parts
        if parts is None:
            assert singles is not None
            return self._backend.decode(query, keys, values, singles, params, scales)
        empty = query.new_zeros if parts.padded else query.new_empty
        output = empty((*query.shape[:2], values.shape[3]))
        if singles is not None:
            decoded = self._backend.decode(query[: parts.first], keys, values, singles, params, scales)
            output[: parts.first] = decoded
        self._backend.prefill(query, keys, values, parts, params, output, scales)
        return output


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
