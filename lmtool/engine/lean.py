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

from lmtool.engine.activations import even_silu
from lmtool.engine.attention import AttentionCall
from lmtool.engine.linear import PackedLinear

if TYPE_CHECKING:
    from lmtool.engine.attention import BlockAttention
    from lmtool.engine.batch import Batch
    from lmtool.engine.lean_config import LeanConfig

    Weights: TypeAlias = dict[str, Tensor]
    """Name in the checkpoint to weight, all of one dtype."""

Product: TypeAlias = Callable[[Tensor], Tensor]
"""A linear layer: [T, in] to [T, out]."""


@dataclass(frozen=True, slots=True, eq=False)
class LeanLayer:
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


class LeanModel:
    """A `Forward` over tensors alone, without modules."""

    def __init__(
        self, config: LeanConfig, weights: Weights, frequencies: Tensor, context: int, *, packed: bool
    ) -> None:
        """Take the weights out of `weights`, one after the other, so that hardly more than one is in memory twice.

        frequencies: [D / 2] float32, radians a position. context: positions of the longest stream. packed: whether
        matrix products are oneDNN's, for CPU only.
        """
        taken = _Taken(weights, packed=packed)
        self._config = config
        self._embedding = taken.tensor("model.embed_tokens.weight")
        self._norm = taken.tensor("model.norm.weight")
        self.layers = [_layer(config, taken, index) for index in range(len(config.windows))]
        tied = config.tied
        self._head = _product(self._embedding, None, packed=packed) if tied else taken.product("", "lm_head")
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

    def _attend(self, layer: LeanLayer, inputs: Tensor, cos: Tensor, sin: Tensor, attention: BlockAttention) -> Tensor:
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


def _layer(config: LeanConfig, taken: _Taken, index: int) -> LeanLayer:
    prefix = f"model.layers.{index}."
    head_norm = None
    if config.head_norms:
        norms = [taken.tensor(f"{prefix}self_attn.{name}_norm.weight") for name in "qk"]
        counts = (config.heads, config.kv_heads)
        head_norm = torch.cat([norm.expand(count, -1) for norm, count in zip(norms, counts, strict=True)])
    return LeanLayer(
        input_norm=taken.tensor(f"{prefix}input_layernorm.weight"),
        qkv=taken.product(f"{prefix}self_attn.", "q_proj", "k_proj", "v_proj"),
        head_norm=head_norm,
        output=taken.product(f"{prefix}self_attn.", "o_proj"),
        mlp_norm=taken.tensor(f"{prefix}post_attention_layernorm.weight"),
        gate_up=taken.product(f"{prefix}mlp.", "gate_proj", "up_proj"),
        down=taken.product(f"{prefix}mlp.", "down_proj"),
        window=config.windows[index],
    )


class _Taken:
    """Weights on their way out of a checkpoint."""

    def __init__(self, weights: Weights, *, packed: bool) -> None:
        self._weights = weights
        self._packed = packed

    def tensor(self, name: str) -> Tensor:
        """The weight itself."""
        return _own(self._weights.pop(name))

    def product(self, prefix: str, *names: str) -> Product:
        """One product in place of several with the same input: their outputs, one behind the other."""
        weights = [self._weights.pop(f"{prefix}{name}.weight") for name in names]
        biases = [self._weights.pop(f"{prefix}{name}.bias", None) for name in names]
        given = [bias for bias in biases if bias is not None]
        assert len(given) in {0, len(names)}, "some of several fused layers have a bias"
        bias = torch.cat(given) if given else None
        if len(weights) > 1:
            return _product(torch.cat(weights), bias, packed=self._packed)
        return _product(weights[0] if self._packed else _own(weights[0]), bias, packed=self._packed)


def _own(weight: Tensor) -> Tensor:
    """On CPU a copy, because the original may keep a whole checkpoint file mapped."""
    return weight.clone() if weight.device.type == "cpu" else weight


def _product(weight: Tensor, bias: Tensor | None, *, packed: bool) -> Product:
    return PackedLinear(weight, bias).forward if packed else partial(linear, weight=weight, bias=bias)
