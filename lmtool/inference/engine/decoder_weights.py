"""A checkpoint's weights, taken out layer by layer for one of our own forward passes.

Letters: H query heads, KV key heads, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from lmtool.inference.engine.decoder_config import GPT2_LAYER

if TYPE_CHECKING:
    from lmtool.inference.engine.decoder_config import DecoderConfig

Weights: TypeAlias = MutableMapping[str, Tensor]
"""Name in the checkpoint to weight; what is used is taken out."""

Affine: TypeAlias = tuple[Tensor, Tensor | None]
"""Weight and bias: of a norm [size] each, of a product [out, in] and [out]."""


@dataclass(frozen=True, slots=True, eq=False)
class LayerWeights:
    """One decoder layer as the checkpoint has it."""

    norm: Affine
    qkv: tuple[Affine, ...]
    """To the heads of queries, keys and values, in this order: one for each, or one for all."""
    head_norm: Tensor | None
    """[H + KV, D], for query and key heads."""
    output: Affine
    mlp_norm: Affine
    gate: Affine | None
    up: Affine
    down: Affine


@dataclass(frozen=True, slots=True, eq=False)
class DecoderWeights:
    """A checkpoint, ready to be taken apart."""

    embedding: Tensor
    """[vocabulary, hidden]"""
    head: Tensor | None
    """[vocabulary, hidden]; None: the embedding."""
    position_embedding: Tensor | None
    """[context, hidden]; None where positions rotate queries and keys instead."""
    norm: Affine
    layers: Iterator[LayerWeights]
    """Each takes its weights when its turn comes, so that hardly more than one layer is in memory twice."""


def take_weights(config: DecoderConfig, weights: Weights) -> DecoderWeights:
    """The weights of a checkpoint that the config `accepts`."""
    layers = range(len(config.windows))
    if config.is_gpt2:
        return DecoderWeights(
            embedding=weights.pop("transformer.wte.weight"),
            head=None,
            position_embedding=weights.pop("transformer.wpe.weight"),
            norm=_take(weights, "transformer.ln_f"),
            layers=(_gpt2_layer(weights, f"transformer.h.{index}.") for index in layers),
        )
    return DecoderWeights(
        embedding=weights.pop("model.embed_tokens.weight"),
        head=weights.pop("lm_head.weight", None),
        position_embedding=None,
        norm=_take(weights, "model.norm"),
        layers=(_llama_layer(config, weights, f"model.layers.{index}.") for index in layers),
    )


def fuse(parts: Sequence[Affine]) -> Affine:
    """One product in place of several with the same input: their outputs, one behind the other."""
    biases = [bias for _, bias in parts if bias is not None]
    assert len(biases) in {0, len(parts)}, "some of several fused layers have a bias"
    if len(parts) == 1:
        return parts[0]
    return torch.cat([weight for weight, _ in parts]), torch.cat(biases) if biases else None


def _take(weights: Weights, name: str) -> Affine:
    return weights.pop(f"{name}.weight"), weights.pop(f"{name}.bias", None)


def _llama_layer(config: DecoderConfig, weights: Weights, prefix: str) -> LayerWeights:
    head_norm = None
    if config.head_norms:
        counts = (config.heads, config.kv_heads)
        norms = [weights.pop(f"{prefix}self_attn.{name}_norm.weight") for name in "qk"]
        head_norm = torch.cat([norm.expand(count, -1) for norm, count in zip(norms, counts, strict=True)])
    return LayerWeights(
        norm=_take(weights, f"{prefix}input_layernorm"),
        qkv=tuple(_take(weights, f"{prefix}self_attn.{name}_proj") for name in "qkv"),
        head_norm=head_norm,
        output=_take(weights, f"{prefix}self_attn.o_proj"),
        mlp_norm=_take(weights, f"{prefix}post_attention_layernorm"),
        gate=_take(weights, f"{prefix}mlp.gate_proj"),
        up=_take(weights, f"{prefix}mlp.up_proj"),
        down=_take(weights, f"{prefix}mlp.down_proj"),
    )


def _gpt2_layer(weights: Weights, prefix: str) -> LayerWeights:
    """GPT-2 stores products the other way round."""
    norm, qkv, output, mlp_norm, up, down = (_take(weights, f"{prefix}{part}") for part in GPT2_LAYER)
    turned = [(weight.t(), bias) for weight, bias in (qkv, output, up, down)]
    return LayerWeights(norm, (turned[0],), None, turned[1], mlp_norm, None, turned[2], turned[3])
