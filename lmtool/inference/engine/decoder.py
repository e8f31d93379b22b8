"""Decoders that our own forward passes compute (Llama family, GPT-2): their sizes, and their weights by layer.

Letters: H query heads, KV key heads, D head size, I inner size of the MLP.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from lmtool.inference.engine.kv_cache import LayerShape

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


LLAMA_FAMILY = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""`model_type` of a config.json to the class of transformers that computes the same."""

GPT2 = "GPT2LMHeadModel"

_ROPES = frozenset({"default", "linear", "llama3"})
"""Kinds of rotary frequencies that are the same for every position and length."""

_PROJECTIONS = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
)  # fmt: skip

GPT2_LAYER = ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """A decoder's sizes and the kinds of its parts."""

    architecture: str
    """The class of transformers that computes the same."""
    vocabulary: int
    hidden: int
    intermediate: int
    """I"""
    heads: int
    """H"""
    kv_heads: int
    head_dim: int
    eps: float
    """Added in each norm."""
    tied: bool
    """Whether the embedding is the output layer as well."""
    windows: tuple[int | None, ...]
    """One for each layer: how many positions back a query sees, itself included; None: all."""

    @property
    def is_gpt2(self) -> bool:
        """Layer norm, tanh-GELU and position embeddings; else RMS norm, SiLU gates and rotation."""
        return self.architecture == GPT2

    @property
    def head_norms(self) -> bool:
        """Whether each query and key head is normed before it is rotated."""
        return self.architecture == LLAMA_FAMILY["qwen3"]

    @property
    def layer_shape(self) -> LayerShape:
        """What a layer stores for a position."""
        return LayerShape(self.kv_heads, self.head_dim, self.head_dim)

    @property
    def products(self) -> list[tuple[int, int]]:
        """Shapes (out, in) of a layer's matrix products, then of the output layer."""
        attention = self.heads * self.head_dim
        return [
            (attention + 2 * self.kv_heads * self.head_dim, self.hidden),
            (self.hidden, attention),
            (self.intermediate if self.is_gpt2 else 2 * self.intermediate, self.hidden),
            (self.hidden, self.intermediate),
            (self.vocabulary, self.hidden),
        ]

    @property
    def doubling_position(self) -> int:
        """The position of a text at which a token's attention takes as many multiplications as its products."""
        return sum(out * size for out, size in self.products[:-1]) // (2 * self.heads * self.head_dim)

    def accepts(self, names: Collection[str]) -> bool:
        """Whether a checkpoint with weights of these names has all that is needed and nothing else."""
        layers = range(len(self.windows))
        if self.is_gpt2:
            parts = [*(f"h.{index}.{part}" for index in layers for part in GPT2_LAYER), "ln_f"]
            affine = {f"transformer.{part}.{kind}" for part in parts for kind in ("weight", "bias")}
            return set(names) == affine | {"transformer.wte.weight", "transformer.wpe.weight"}
        norms = ("self_attn.q_norm", "self_attn.k_norm") if self.head_norms else ()
        parts = ["input_layernorm", "post_attention_layernorm", *_PROJECTIONS, *norms]
        needed = {f"model.layers.{index}.{part}.weight" for index in layers for part in parts}
        needed |= {"model.embed_tokens.weight", "model.norm.weight", *([] if self.tied else ["lm_head.weight"])}
        biases = {f"model.layers.{index}.{part}.bias" for index in layers for part in _PROJECTIONS}
        return needed <= set(names) <= needed | biases


def decoder_config(raw: Mapping[str, Any]) -> DecoderConfig | None:
    """The sizes in a config.json, complete as transformers saves it; None for what our passes do not compute."""
    if raw.get("quantization_config"):
        return None
    return _gpt2_config(raw) if raw.get("model_type") == "gpt2" else _llama_config(raw)


def matching_config(
    raw: Mapping[str, Any], architecture: str, names: Collection[str], layers: Sequence[tuple[LayerShape, int | None]]
) -> DecoderConfig | None:
    """The config of a loaded model whose every part we know; None for any other.

    raw: its config.json, complete. architecture: the class of transformers that it was loaded as. names: its weights.
    layers: what each attention layer stores, and its window.
    """
    config = decoder_config(raw)
    if config is None or architecture != config.architecture or not config.accepts(names):
        return None
    return config if list(layers) == [(config.layer_shape, window) for window in config.windows] else None


def _llama_config(raw: Mapping[str, Any]) -> DecoderConfig | None:
    rope = raw.get("rope_parameters") or {}
    known = (
        raw.get("model_type") in LLAMA_FAMILY
        and raw.get("hidden_act") == "silu"
        and rope.get("rope_type") in _ROPES
        and rope.get("partial_rotary_factor") in (None, 1.0)
    )
    if not known:
        return None
    heads = raw["num_attention_heads"]
    return DecoderConfig(
        architecture=LLAMA_FAMILY[raw["model_type"]],
        vocabulary=raw["vocab_size"],
        hidden=raw["hidden_size"],
        intermediate=raw["intermediate_size"],
        heads=heads,
        kv_heads=raw.get("num_key_value_heads") or heads,
        head_dim=raw.get("head_dim") or raw["hidden_size"] // heads,
        eps=raw["rms_norm_eps"],
        tied=bool(raw["tie_word_embeddings"]),
        windows=_windows(raw),
    )


def _windows(raw: Mapping[str, Any]) -> tuple[int | None, ...]:
    window: int | None = raw.get("sliding_window")
    layers: int = raw["num_hidden_layers"]
    if raw["model_type"] == "mistral":
        return (window,) * layers
    kinds = raw.get("layer_types") or ["full_attention"] * layers
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _gpt2_config(raw: Mapping[str, Any]) -> DecoderConfig | None:
    known = (
        raw.get("activation_function") in ("gelu_new", "gelu_pytorch_tanh")
        and raw.get("scale_attn_weights") is True
        and not raw.get("scale_attn_by_inverse_layer_idx")
        and not raw.get("add_cross_attention")
        and raw.get("tie_word_embeddings", True)
    )
    if not known:
        return None
    return DecoderConfig(
        architecture=GPT2,
        vocabulary=raw["vocab_size"],
        hidden=raw["n_embd"],
        intermediate=raw["n_inner"] or 4 * raw["n_embd"],
        heads=raw["n_head"],
        kv_heads=raw["n_head"],
        head_dim=raw["n_embd"] // raw["n_head"],
        eps=raw["layer_norm_epsilon"],
        tied=True,
        windows=(None,) * raw["n_layer"],
    )


def default_frequencies(head_dim: int, theta: float) -> Tensor:
    """[head_dim / 2] float32: radians a position, of the plain rotary embedding (arXiv:2104.09864)."""
    return 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim))


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
