"""How a checkpoint of the Llama or GPT-2 family becomes a GGUF file, the one format that llama.cpp reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

LLAMA_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GPT2_NAMES = {
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
TOP_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "wte": "token_embd",
    "wpe": "position_embd",
    "ln_f": "output_norm",
}
TYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "int8": "Q8_0"}
"""Our names of dtypes to GGUF's."""


def write_gguf(folder: Path, path: Path, dtype: str) -> None:
    """Write the model of a folder with its matrices in `dtype`. It gets no vocabulary: ids are all that is needed.

    Raises ValueError for another family or dtype. Needs the packages gguf and safetensors.
    """
    import gguf

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    family = config["model_type"]
    if family not in {"llama", "gpt2"} or dtype not in TYPES:
        raise ValueError(f"{family} in {dtype} cannot be written as GGUF here; known: llama and gpt2 in {list(TYPES)}")
    wanted = gguf.GGMLQuantizationType[TYPES[dtype]]
    writer = gguf.GGUFWriter(str(path), family)
    (_describe_llama if family == "llama" else _describe_gpt2)(writer, config)
    writer.add_tokenizer_model("none")
    for name, data in _tensors(folder):
        kind, shaped = gguf.GGMLQuantizationType.F32, _shaped(name, data, config)
        if shaped.ndim == 2 and not name.endswith("wpe.weight"):
            kind = wanted
        writer.add_tensor(gguf_name(name), gguf.quants.quantize(shaped, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_name(name: str) -> str:
    """`model.layers.3.mlp.up_proj.weight` to `blk.3.ffn_up.weight`. Raises ValueError for a part of another family."""
    bare, _, kind = name.removeprefix("transformer.").rpartition(".")
    if bare in TOP_NAMES:
        return f"{TOP_NAMES[bare]}.{kind}"
    words = bare.removeprefix("model.").split(".", 2)
    part = (LLAMA_NAMES | GPT2_NAMES).get(words[2]) if len(words) == 3 else None
    if part is None:
        raise ValueError(f"{name} has no name in GGUF")
    return f"blk.{words[1]}.{part}.{kind}"


def _tensors(folder: Path) -> Iterator[tuple[str, Any]]:
    """Names and float32 numpy arrays."""
    from safetensors import safe_open

    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="np") as opened:
            for name in opened.keys():  # noqa: SIM118  # no mapping
                if not name.endswith((".attn.bias", ".attn.masked_bias")):
                    yield name, opened.get_tensor(name).astype("float32")


def _shaped(name: str, data: Any, config: dict[str, Any]) -> Any:
    """Rows in the order in which llama.cpp rotates them (pairs side by side); GPT-2's matrices as [out, in]."""
    if name.endswith("q_proj.weight"):
        return _interleaved(data, config["num_attention_heads"])
    if name.endswith("k_proj.weight"):
        return _interleaved(data, config.get("num_key_value_heads") or config["num_attention_heads"])
    if ".c_" in name and data.ndim == 2:
        return data.T.copy()
    return data


def _interleaved(data: Any, heads: int) -> Any:
    rows = data.shape[0]
    return data.reshape(heads, 2, rows // heads // 2, -1).swapaxes(1, 2).reshape(rows, -1)


def _describe_llama(writer: Any, config: dict[str, Any]) -> None:
    heads = config["num_attention_heads"]
    rope = config.get("rope_parameters") or {"rope_theta": config.get("rope_theta", 10000.0)}
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads") or heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config.get("head_dim") or config["hidden_size"] // heads)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])


def _describe_gpt2(writer: Any, config: dict[str, Any]) -> None:
    writer.add_context_length(config["n_positions"])
    writer.add_embedding_length(config["n_embd"])
    writer.add_block_count(config["n_layer"])
    writer.add_feed_forward_length(config.get("n_inner") or 4 * config["n_embd"])
    writer.add_head_count(config["n_head"])
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    writer.add_vocab_size(config["vocab_size"])
