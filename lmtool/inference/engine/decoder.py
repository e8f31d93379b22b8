"""Decoders that our own forward passes compute (Llama family, GPT-2): sizes, weights by layer, and a pass in torch.

Letters: T tokens of the batch, H query heads, KV key heads, D head size, I inner size of the MLP, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from lmtool.inference.engine.batch_invariant import PackedLinear, even_silu
from lmtool.inference.engine.kv_cache import LayerShape
from lmtool.inference.engine.model_runner import AttentionCall

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from lmtool.inference.engine.model_runner import Batch, BlockAttention


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
    """True if the embedding is the output layer as well."""
    windows: tuple[int | None, ...]
    """One for each layer: how many positions back a query sees, itself included; None: all."""

    @property
    def is_gpt2(self) -> bool:
        """Layer norm, tanh-GELU and position embeddings; else RMS norm, SiLU gates and rotation."""
        return self.architecture == GPT2

    @property
    def head_norms(self) -> bool:
        """True if each query and key head is normed before it is rotated."""
        return self.architecture == LLAMA_FAMILY["qwen3"]

    @property
    def layer_shape(self) -> LayerShape:
        """Shape of what a layer stores for a position."""
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
        """True if a checkpoint with weights of these names has all that is needed and nothing else."""
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
    """One product in place of several with the same input: their outputs, one after the other."""
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
    """Number of positions that a query sees, itself included; None for all."""


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
