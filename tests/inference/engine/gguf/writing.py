"""Writes small GGUF files: the weights of a transformers model, in any type, with what other programs write beside."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from transformers import PreTrainedModel

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
MIXED = {"attn_v": "Q6_K", "ffn_down": "Q6_K", "output": "Q6_K", "attn_output": "Q5_K", "": "Q4_K"}
"""As Q4_K_M is."""


def write(
    path: Path,
    model: PreTrainedModel,
    kinds: str | Mapping[str, str],
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Any] | None = None,
) -> None:
    """Write the model, whose weights become what the file says.

    kinds: the matrices' type, or types by parts of their names in GGUF. metadata: further keys, or others; None leaves
    a key out. tensors: further ones of float32, or others; None leaves one out.
    """
    config = model.config
    family = {"mistral": "llama"}.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(str(path), family)
    for key, value in ({**_described(config, family), **(metadata or {})}).items():
        _add(writer, key, value)
    given = tensors or {}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            own, rows = _own_name(name), _rows(name, config, family)
            if own in given:
                continue
            raw, kind = _stored(own, parameter.data[rows], kinds)
            parameter[rows] = torch.from_numpy(gguf.quants.dequantize(raw, kind).reshape(parameter.shape))
            writer.add_tensor(own, raw, raw_dtype=kind)
    for own, data in given.items():
        if data is not None:
            writer.add_tensor(own, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _described(config: Any, family: str) -> dict[str, Any]:
    heads = config.num_attention_heads
    keys = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "attention.key_length": getattr(config, "head_dim", None) or config.hidden_size // heads,
        "attention.value_length": getattr(config, "head_dim", None) or config.hidden_size // heads,
        "rope.freq_base": float(config.rope_parameters["rope_theta"]),
    }
    return {f"{family}.{key}": value for key, value in keys.items()}


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)


def _own_name(name: str) -> str:
    part, _, kind = name.rpartition(".")
    layer = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", part)
    return f"blk.{layer[1]}.{NAMES[layer[2]]}.{kind}" if layer else f"{NAMES[part]}.{kind}"


def _rows(name: str, config: Any, family: str) -> Tensor | slice:
    """The rows in the file's order: those that rotate together beside each other, in files of Llamas."""
    heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads if "k_proj" in name else 0
    if family != "llama" or not heads:
        return slice(None)
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return torch.arange(heads * size).view(heads, 2, size // 2).transpose(1, 2).flatten()


def _stored(own: str, weight: Tensor, kinds: str | Mapping[str, str]) -> tuple[np.ndarray, gguf.GGMLQuantizationType]:
    """The bytes of a weight, and their type."""
    by_part = {"": kinds} if isinstance(kinds, str) else kinds
    part = max((part for part in by_part if part in own), key=len)
    kind = gguf.GGMLQuantizationType["F32" if weight.dim() == 1 else by_part[part]]
    if kind.name.endswith("_K"):
        return blocks(kind, weight), kind
    return gguf.quants.quantize(weight.float().contiguous().numpy(), kind), kind


def blocks(kind: gguf.GGMLQuantizationType, like: Tensor) -> np.ndarray:
    """K-quants are nothing but bytes: any are blocks of about the size of `like`'s numbers once their scales are."""
    numbers, size = gguf.GGML_QUANT_SIZES[kind]
    out, inputs = like.shape
    generator = np.random.default_rng(out * inputs)
    found = generator.integers(0, 256, (out, inputs // numbers, size), dtype=np.uint8)
    scale = float(like.std())
    if kind.name == "Q6_K":  # ... 16 scales in int8, then theirs
        found[..., -2:] = np.array([scale / 1300], np.float16).view(np.uint8)
    else:  # their scale and that of the least numbers, then 8 of each in 6 bits
        factor = scale / (240 if kind.name == "Q4_K" else 480)
        least = 7.5 if kind.name == "Q4_K" else 15.5
        found[..., :4] = np.array([factor, least * factor], np.float16).view(np.uint8)
    return found.reshape(out, -1)
