"""Names and refusals of the GGUF writer; what it writes is read by llama.cpp in `test_llamacpp_peer.py`."""

from __future__ import annotations

import pytest

from lmtool.bench.peers.gguf_file import gguf_name


@pytest.mark.parametrize(
    ("name", "gguf"),
    [
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("lm_head.weight", "output.weight"),
        ("model.norm.weight", "output_norm.weight"),
        ("model.layers.11.self_attn.q_proj.weight", "blk.11.attn_q.weight"),
        ("model.layers.0.mlp.down_proj.weight", "blk.0.ffn_down.weight"),
        ("model.layers.0.post_attention_layernorm.weight", "blk.0.ffn_norm.weight"),
        ("transformer.wpe.weight", "position_embd.weight"),
        ("transformer.h.3.attn.c_attn.bias", "blk.3.attn_qkv.bias"),
        ("transformer.h.3.ln_2.weight", "blk.3.ffn_norm.weight"),
        ("transformer.ln_f.bias", "output_norm.bias"),
    ],
)
def test_names(name: str, gguf: str) -> None:
    """As llama.cpp knows the parts of the two families."""
    assert gguf_name(name) == gguf


def test_parts_of_other_families() -> None:
    """Refused with the name."""
    with pytest.raises(ValueError, match=r"model\.layers\.0\.mamba\.weight has no name"):
        gguf_name("model.layers.0.mamba.weight")
