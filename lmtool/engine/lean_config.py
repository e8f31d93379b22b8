"""Which models the lean forward pass computes, and their shapes as it needs them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lmtool.engine.kv_cache import LayerShape

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FAMILIES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""`model_type` of a config.json to the class of transformers with which the lean pass agrees."""

_ROPES = frozenset({"default", "linear", "llama3"})
"""Kinds of rotary frequencies that are the same for every position and length."""

_PROJECTIONS = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LeanConfig:
    """A decoder of the Llama family."""

    family: str
    """A key of `FAMILIES`."""
    vocabulary: int
    hidden: int
    intermediate: int
    heads: int
    """Of queries."""
    kv_heads: int
    head_dim: int
    eps: float
    """Added to the mean square in each norm."""
    tied: bool
    """Whether the embedding is the output layer as well."""
    windows: tuple[int | None, ...]
    """One for each layer: how many positions back a query sees, itself included; None: all."""

    @property
    def head_norms(self) -> bool:
        """Whether each query and key head is normed before it is rotated."""
        return self.family == "qwen3"

    @property
    def layer_shape(self) -> LayerShape:
        """What a layer stores for a position."""
        return LayerShape(self.kv_heads, self.head_dim, self.head_dim)

    @property
    def products(self) -> list[tuple[int, int]]:
        """Shapes (out, in) of a layer's matrix products, then of the output layer."""
        inner = self.heads * self.head_dim
        return [
            (inner + 2 * self.kv_heads * self.head_dim, self.hidden),
            (self.hidden, inner),
            (2 * self.intermediate, self.hidden),
            (self.hidden, self.intermediate),
            (self.vocabulary, self.hidden),
        ]

    def accepts(self, names: Iterable[str]) -> bool:
        """Whether a checkpoint with weights of these names has all that is needed and nothing else."""
        needed = {"model.embed_tokens.weight", "model.norm.weight"}
        if not self.tied:
            needed.add("lm_head.weight")
        biases = set()
        for layer in range(len(self.windows)):
            prefix = f"model.layers.{layer}."
            norms = ("self_attn.q_norm", "self_attn.k_norm") if self.head_norms else ()
            parts = ("input_layernorm", "post_attention_layernorm", *_PROJECTIONS, *norms)
            needed |= {f"{prefix}{part}.weight" for part in parts}
            biases |= {f"{prefix}{part}.bias" for part in _PROJECTIONS}
        return needed <= set(names) <= needed | biases


def lean_config(raw: Mapping[str, Any]) -> LeanConfig | None:
    """The shapes in a config.json, complete as transformers saves it; None for what the lean pass does not compute."""
    rope = raw.get("rope_parameters") or {}
    known = (
        raw.get("model_type") in FAMILIES
        and raw.get("hidden_act") == "silu"
        and rope.get("rope_type") in _ROPES
        and rope.get("partial_rotary_factor") in (None, 1.0)
        and not raw.get("quantization_config")
    )
    if not known:
        return None
    heads = raw["num_attention_heads"]
    return LeanConfig(
        family=raw["model_type"],
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


def default_frequencies(head_dim: int, theta: float) -> Tensor:
    """[head_dim / 2] float32: radians a position, of the plain rotary embedding (arXiv:2104.09864)."""
    return 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim))
