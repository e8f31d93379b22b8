"""The families that are said to work: each is served, and the manual lists the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import lmtool
from lmtool.engine.config import EngineConfig
from lmtool.engine.engine_loader import load_engine
from lmtool.engine.families import DENSE, EXPERTS
from lmtool.errors import ModelLoadError

SHAPE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "head_dim": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.25,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 128,
    "ffn_dim": 48,
    "word_embed_proj_dim": 32,
}
"""Sizes, by all their names."""
SMALL = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
STATEFUL: dict[str, Any] = {
    "lfm2": transformers.Lfm2Config(
        **SMALL, intermediate_size=48, num_key_value_heads=2, layer_types=["conv", "full_attention"]
    ),
    "minimax": transformers.MiniMaxConfig(
        **SMALL,
        intermediate_size=48,
        num_key_value_heads=2,
        head_dim=8,
        num_local_experts=2,
        layer_types=["linear_attention", "full_attention"],
    ),
    "mamba": transformers.MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, state_size=4),
}


@pytest.mark.parametrize("family", [*DENSE, *EXPERTS])
def test_served(family: str, tmp_path: Path) -> None:
    """A random checkpoint passes the check; rows of mixtures of experts are said to depend on the batch."""
    known = transformers.AutoConfig.for_model(family)
    sizes = {name: value for name, value in SHAPE.items() if hasattr(known, name)}
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(family, **sizes))
    model.save_pretrained(tmp_path)
    engine = load_engine(str(tmp_path), EngineConfig(kernels="none", threads=1, kv_cache_bytes=1 << 20))
    engine.close()
    assert engine.info_now.batch_invariant is (family in DENSE)


@pytest.mark.parametrize("family", STATEFUL)
def test_stateful(family: str, tmp_path: Path) -> None:
    """Layers with a state are the reason of a refusal, before weights are read; a family may have models without."""
    STATEFUL[family].save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\x02" + bytes(7) + b"{}")
    with pytest.raises(ModelLoadError, match="some of its layers keep a state of the text"):
        load_engine(str(tmp_path), EngineConfig(threads=1))


def test_the_manual() -> None:
    """It lists the same families."""
    page = (Path(lmtool.__file__).parent / "docs/serving.md").read_text(encoding="utf-8")
    for kind, families in (("dense", DENSE), ("mixtures of experts", EXPERTS)):
        [row] = re.findall(rf"^\| {kind} \| (.+) \|$", page, re.MULTILINE)
        assert row == ", ".join(f"`{family}`" for family in families)
