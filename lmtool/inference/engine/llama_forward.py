"""A forward pass of our own for decoders of the Llama family: fewer and larger operations, no modules.

Letters: T tokens of the batch, H query heads, KV key heads, D head size, I inner size of the MLP, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from lmtool.inference.engine.batch_invariant import PackedLinear, even_silu
from lmtool.inference.engine.decoder import fuse, take_weights
from lmtool.inference.engine.model_runner import AttentionCall

if TYPE_CHECKING:
    from lmtool.inference.engine.decoder import Affine, DecoderConfig, DecoderWeights, Weights
    from lmtool.inference.engine.model_runner import Batch, BlockAttention

Product: TypeAlias = Callable[[Tensor], Tensor]
"""A linear layer: [T, in] to [T, out]."""

MakeProduct: TypeAlias = Callable[..., Product]
"""Makes a linear layer of its weight and bias, as `_product` does."""


@dataclass(frozen=True, slots=True, eq=False)
class LlamaLayer:
    """One decoder layer."""

    input_norm: Tensor
    """[hidden]"""
    qkv: Product
    """To the heads of queries, keys and values, in this order."""
    head_norm: Tensor | None
    """[H + KV, D], for query and key heads."""
    output: Product
    mlp_norm: Tensor
    """[hidden]"""
    gate_up: Product
    """To [T, 2 * I]."""
    down: Product
    window: int | None
    """How many positions back a query sees, itself included; None: all."""


class LlamaForward:
    """A `Forward` over tensors alone, without modules."""

    def __init__(
        self, config: DecoderConfig, weights: Weights, frequencies: Tensor, context: int, *, packed: bool
    ) -> None:
        """Take the weights out of `weights`, all of one dtype.

        frequencies: [D / 2] float32, radians a position. context: positions of the longest stream. packed: whether
        matrix products are oneDNN's, for CPU only.
        """
        checkpoint = take_weights(config, weights)
        self._config = config
        self._embedding = _own(checkpoint.embedding)
        self._norm = _own(checkpoint.norm[0])
        self.layers = llama_layers(checkpoint, config, partial(_product, packed=packed))
        head = self._embedding if checkpoint.head is None else checkpoint.head
        self._head = _product((head, None), packed=packed, own=checkpoint.head is None)
        self._silu = even_silu if self._embedding.device.type == "cpu" else silu
        self._scaling = config.head_dim**-0.5
        self._cos, self._sin = _rotations(frequencies, context, self._embedding)

    def logits(self, batch: Batch, attention: BlockAttention) -> Tensor:
        """See `Forward.logits`."""
        positions = batch.positions[0]
        cos = self._cos.index_select(0, positions).unsqueeze(1)
        sin = self._sin.index_select(0, positions).unsqueeze(1)
        hidden = self._embedding.index_select(0, batch.input_ids[0])
        for layer in self.layers:
            hidden += self._attend(layer, self._normed(hidden, layer.input_norm), cos, sin, attention)
            gate, up = layer.gate_up(self._normed(hidden, layer.mlp_norm)).chunk(2, dim=-1)
            hidden += layer.down(self._silu(gate) * up)
        if not batch.logits:
            return hidden.new_empty(0, 0)
        return self._head(self._normed(hidden.index_select(0, batch.logit_rows), self._norm))

    def _attend(self, layer: LlamaLayer, inputs: Tensor, cos: Tensor, sin: Tensor, attention: BlockAttention) -> Tensor:
        heads, kv_heads = self._config.heads, self._config.kv_heads
        tokens = len(inputs)
        projected = layer.qkv(inputs).view(tokens, heads + 2 * kv_heads, -1)
        rotated, value = projected[:, : heads + kv_heads], projected[:, heads + kv_heads :].transpose(0, 1)
        if layer.head_norm is not None:
            rotated = torch.rms_norm(rotated, (self._config.head_dim,), None, self._config.eps) * layer.head_norm
        rotated = _rotate(rotated, cos, sin).transpose(0, 1)
        call = AttentionCall(layer, rotated[:heads], rotated[heads:], value, self._scaling, layer.window)
        return layer.output(attention.attend(call).reshape(tokens, -1))

    def _normed(self, inputs: Tensor, weight: Tensor) -> Tensor:
        return torch.rms_norm(inputs, weight.shape, weight, self._config.eps)


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate [T, N, D] by cos and sin [T, 1, D], sin with the sign of the half that it belongs to."""
    tokens, count, size = heads.shape
    swapped = heads.reshape(tokens, count, 2, size // 2).flip(2).view(tokens, count, size)
    return swapped.mul_(sin).add_(heads * cos)  # two steps: a fused one rounds otherwise at the end of a tensor


def _rotations(frequencies: Tensor, context: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cos and signed sin [context, D] for every position, so that a position has the same bits in any batch."""
    angles = torch.outer(torch.arange(context, device=frequencies.device).float(), frequencies)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=-1).to(like), torch.cat((-sin, sin), dim=-1).to(like)


def llama_layers(checkpoint: DecoderWeights, config: DecoderConfig, make: MakeProduct) -> list[LlamaLayer]:
    """The layers of a checkpoint, whose weights are taken one layer after the other."""
    layers = []
    for weights, window in zip(checkpoint.layers, config.windows, strict=True):
        assert weights.gate is not None, "the Llama family has gates"
        layer = LlamaLayer(
            input_norm=_own(weights.norm[0]),
            qkv=make(fuse(weights.qkv), own=True),
            head_norm=weights.head_norm,
            output=make(weights.output),
            mlp_norm=_own(weights.mlp_norm[0]),
            gate_up=make(fuse([weights.gate, weights.up]), own=True),
            down=make(weights.down),
            window=window,
        )
        layers.append(layer)
    return layers


def _own(weight: Tensor) -> Tensor:
    """On CPU a copy, because the original may keep a whole checkpoint file mapped."""
    return weight.clone() if weight.device.type == "cpu" else weight


def _product(affine: Affine, *, packed: bool, own: bool = False) -> Product:
    """own: whether the tensors are copies already."""
    weight, bias = affine
    bias = bias if own or bias is None else _own(bias)
    if packed:
        return PackedLinear(weight, bias).forward
    return partial(linear, weight=weight if own else _own(weight), bias=bias)
