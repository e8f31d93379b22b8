"""What the compiled forward pass needs to know about a decoder, for the Llama family and for GPT-2.

Letters: H query heads, KV key heads, D head size, I inner size of the MLP.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from lmtool.engine.kv_cache import LayerShape

if TYPE_CHECKING:
    from lmtool.engine.lean_config import LeanConfig

Weights: TypeAlias = MutableMapping[str, Tensor]
"""Name in the checkpoint to weight; what is used is taken out."""

Affine: TypeAlias = tuple[Tensor, Tensor | None]
"""Weight and bias: of a norm [size] each, of a product [out, in] and [out]."""

_GPT2_LAYER = ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder's sizes and the kinds of its parts."""

    architecture: str
    """The class of transformers that computes the same."""
    vocabulary: int
    hidden: int
    inner: int
    """I"""
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    """Added in each norm."""
    centred: bool
    """Norms subtract the mean (layer norm), or do not (RMS norm)."""
    gated: bool
    """The MLP has SiLU gates, or a tanh-GELU."""
    windows: tuple[int | None, ...]
    """One for each layer: how many positions back a query sees, itself included; None: all."""

    @property
    def layer_shape(self) -> LayerShape:
        """What a layer stores for a position."""
        return LayerShape(self.kv_heads, self.head_dim, self.head_dim)

    @property
    def doubling_position(self) -> int:
        """The position of a text at which a token's attention takes as many multiplications as its products."""
        attended = self.heads * self.head_dim
        qkv = self.hidden * (attended + 2 * self.kv_heads * self.head_dim)
        products = qkv + attended * self.hidden + (3 if self.gated else 2) * self.hidden * self.inner
        return products // (2 * attended)

    @property
    def quarters(self) -> bool:
        """Whether every product's inputs can be multiplied four bytes at a time."""
        return all(size % 4 == 0 for size in (self.hidden, self.heads * self.head_dim, self.inner))


@dataclass(frozen=True, slots=True, eq=False)
class LayerWeights:
    """One decoder layer as the checkpoint has it."""

    norm: Affine
    qkv: Affine
    """To the heads of queries, keys and values, in this order."""
    head_norm: Tensor | None
    """[H + KV, D], for query and key heads."""
    output: Affine
    mlp_norm: Affine
    gate: Affine | None
    up: Affine
    down: Affine


@dataclass(frozen=True, slots=True, eq=False)
class Decoder:
    """A checkpoint, ready to be taken apart."""

    shape: Shape
    embedding: Tensor
    """[vocabulary, hidden]"""
    head: Tensor | None
    """[vocabulary, hidden]; None: the embedding."""
    position_embedding: Tensor | None
    """[context, hidden]; None where positions turn queries and keys instead."""
    norm: Affine
    layers: Iterator[LayerWeights]
    """Each takes its weights when its turn comes."""


def llama_shape(config: LeanConfig, architecture: str) -> Shape:
    """The shape of a decoder of the Llama family."""
    return Shape(
        architecture=architecture,
        vocabulary=config.vocabulary,
        hidden=config.hidden,
        inner=config.intermediate,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        eps=config.eps,
        centred=False,
        gated=True,
        windows=config.windows,
    )


def take_llama(shape: Shape, weights: Weights) -> Decoder:
    """The weights of a Llama, Mistral, Qwen2 or Qwen3."""
    return Decoder(
        shape=shape,
        embedding=weights.pop("model.embed_tokens.weight"),
        head=weights.pop("lm_head.weight", None),
        position_embedding=None,
        norm=(weights.pop("model.norm.weight"), None),
        layers=(_llama_layer(shape, weights, f"model.layers.{index}.") for index in range(len(shape.windows))),
    )


def _llama_layer(shape: Shape, weights: Weights, prefix: str) -> LayerWeights:
    def take(name: str) -> Affine:
        return weights.pop(f"{prefix}{name}.weight"), weights.pop(f"{prefix}{name}.bias", None)

    projections = [take(f"self_attn.{name}_proj") for name in "qkv"]
    biases = [bias for _, bias in projections if bias is not None]
    head_norm = None
    if f"{prefix}self_attn.q_norm.weight" in weights:
        counts = (shape.heads, shape.kv_heads)
        norms = [weights.pop(f"{prefix}self_attn.{name}_norm.weight") for name in "qk"]
        head_norm = torch.cat([norm.expand(count, -1) for norm, count in zip(norms, counts, strict=True)])
    return LayerWeights(
        norm=take("input_layernorm"),
        qkv=(torch.cat([weight for weight, _ in projections]), torch.cat(biases) if biases else None),
        head_norm=head_norm,
        output=take("self_attn.o_proj"),
        mlp_norm=take("post_attention_layernorm"),
        gate=take("mlp.gate_proj"),
        up=take("mlp.up_proj"),
        down=take("mlp.down_proj"),
    )


def gpt2_shape(raw: Mapping[str, Any]) -> Shape | None:
    """The shape in GPT-2's config.json, complete as transformers saves it; None for what is not computed here."""
    known = (
        raw.get("model_type") == "gpt2"
        and raw.get("activation_function") in ("gelu_new", "gelu_pytorch_tanh")
        and raw.get("scale_attn_weights") is True
        and not raw.get("scale_attn_by_inverse_layer_idx")
        and not raw.get("add_cross_attention")
        and raw.get("tie_word_embeddings", True)
        and not raw.get("quantization_config")
    )
    if not known:
        return None
    return Shape(
        architecture="GPT2LMHeadModel",
        vocabulary=raw["vocab_size"],
        hidden=raw["n_embd"],
        inner=raw["n_inner"] or 4 * raw["n_embd"],
        heads=raw["n_head"],
        kv_heads=raw["n_head"],
        head_dim=raw["n_embd"] // raw["n_head"],
        eps=raw["layer_norm_epsilon"],
        centred=True,
        gated=False,
        windows=(None,) * raw["n_layer"],
    )


def gpt2_names(shape: Shape) -> set[str]:
    """The names of all weights that such a checkpoint has."""
    parts = [f"h.{index}.{part}" for index in range(len(shape.windows)) for part in _GPT2_LAYER]
    affine = {f"transformer.{part}.{kind}" for part in [*parts, "ln_f"] for kind in ("weight", "bias")}
    return affine | {"transformer.wte.weight", "transformer.wpe.weight"}


def take_gpt2(shape: Shape, weights: Weights) -> Decoder:
    """The weights of a GPT-2, whose products are stored the other way round."""

    def take(name: str) -> Affine:
        return weights.pop(f"transformer.{name}.weight"), weights.pop(f"transformer.{name}.bias")

    def layer(index: int) -> LayerWeights:
        norm, qkv, output, mlp_norm, up, down = (take(f"h.{index}.{part}") for part in _GPT2_LAYER)
        turned = [(weight.t(), bias) for weight, bias in (qkv, output, up, down)]
        return LayerWeights(norm, turned[0], None, turned[1], mlp_norm, None, turned[2], turned[3])

    return Decoder(
        shape=shape,
        embedding=weights.pop("transformer.wte.weight"),
        head=None,
        position_embedding=weights.pop("transformer.wpe.weight"),
        norm=take("ln_f"),
        layers=(layer(index) for index in range(len(shape.windows))),
    )
