"""Sizes in a model's configuration, and families that can or cannot be served."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import lmtool
from lmtool.core.errors import ModelLoadError
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.engine.engine_loader import load_engine
from lmtool.inference.engine.model_folder import DENSE, EXPERTS, UNSUPPORTED, WeightSizes, check_folder, check_sizes
from tests.conftest import STORIES

HUGE = 10**9
LAYERS = (
    *("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "num_nextn_predict_layers", "depth"),
    "num_hidden_groups",
)
SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size", "num_attention_heads", "head_dim"),
    *(
        "num_key_value_heads",
        "n_embd",
        "n_inner",
        "n_head",
        "d_model",
        "num_experts",
        "num_local_experts",
        "n_positions",
    ),
    *("n_routed_experts", "kv_lora_rank", "qk_rope_head_dim", "r", "ssm_state_size", "type_vocab_size"),
)


@pytest.mark.parametrize("name", [*LAYERS, *SIZES, "max_position_embeddings"])
@pytest.mark.parametrize("within", ["", "text_config"])
def test_more_than_the_weights_have(name: str, within: str, tmp_path: Path) -> None:
    """Each size is refused by its name, in the configuration or in one within it, without anything being made."""
    folder = shutil.copytree(STORIES, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (config.setdefault(within, {}) if within else config)[name] = HUGE if name in LAYERS else 10**12
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match=f"config.json says {name} 10+; its weights have"):
        check_folder(folder)


def test_adapters_and_long_files(tmp_path: Path) -> None:
    """An adapter is refused by name before anything of its ranks is made; no endless JSON file is read."""
    folder = shutil.copytree(STORIES, tmp_path / "model")
    shutil.copy(folder / "model.safetensors", folder / "adapter_model.safetensors")
    for adapter in ({"r": HUGE * 1000}, {"rank_pattern": {"q_proj": HUGE * 1000}}, {"r": 8, "lora_alpha": 16}):
        (folder / "adapter_config.json").write_text(json.dumps(adapter))
        with pytest.raises(ModelLoadError, match=r"in adapter_config.json, and adapters are not applied here"):
            check_folder(folder)
    for name in ("adapter_config.json", "generation_config.json"):
        with (folder / name).open("wb") as file:
            file.truncate(2**40)
        with pytest.raises(ModelLoadError, match=f"{name} has more than"):
            check_folder(folder)
        (folder / name).unlink()


@pytest.mark.parametrize(
    "config",
    [
        {"num_hidden_layers": 126, "hidden_size": 16384, "vocab_size": 128256, "intermediate_size": 53248},
        {"num_hidden_layers": 61, "n_routed_experts": 256, "vocab_size": 129280, "max_position_embeddings": 163840},
        {"text_config": {"num_hidden_layers": 48, "max_position_embeddings": 10_485_760}, "image_size": 336},
        {
            "max_window_layers": 10**6,
            "layer_types": ["full_attention"] * 62,
            "sliding_window": 4096,
            "rope_theta": 10_000_000_000,
            "block_size": 2**24,
        },
        {"vocab_size": 262144, "hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262144},
    ],
)
def test_real_models_of_unknown_weights(config: dict[str, Any]) -> None:
    """Nothing is said of sizes that published models have, before their weights are here; absurd ones are refused."""
    check_sizes("config.json", config)
    for name in ("num_hidden_layers", "vocab_size"):
        with pytest.raises(ModelLoadError, match=name):
            check_sizes("config.json", config | {name: HUGE})
    with pytest.raises(ModelLoadError, match="num_hidden_layers"):
        check_sizes("config.json", {"num_hidden_layers": 40}, WeightSizes(39, 64))


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("value", ["x", float("nan"), 1.5, {"a": 1}, True, [1, "x"], 10.0**300])
def test_ids_of_another_type(file: str, value: object, tmp_path: Path) -> None:
    """Ids that end a text are whole numbers; anything else is refused by name, whole numbers and null are not."""
    folder = shutil.copytree(STORIES, tmp_path / "model")
    content = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(content | {"eos_token_id": value}))
    with pytest.raises(ModelLoadError, match=f"{file} says eos_token_id .*; expected a token id, or a list of them"):
        check_folder(folder)
    (folder / file).write_text(json.dumps(content | {"eos_token_id": [2, 3], "bos_token_id": None}))
    check_folder(folder)


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


@pytest.mark.parametrize(("reason", "family"), [(why, one) for why, kinds in UNSUPPORTED.items() for one in kinds])
def test_unsupported(reason: str, family: str, tmp_path: Path) -> None:
    """What is not computed here is refused by architecture and reason before weights are read, with what may work."""
    known = transformers.AutoConfig.for_model(family)
    known.update({"is_decoder": True})
    known.save_pretrained(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"no weights")
    architecture = transformers.AutoModelForCausalLM._model_mapping[type(known)].__name__
    with pytest.raises(ModelLoadError) as refused:
        load_engine(str(tmp_path), EngineConfig(threads=1))
    assert refused.value.message == f"{tmp_path} ({architecture}) cannot be served: {reason}"
    assert "--backend llamacpp" in refused.value.sentence
    assert "--backend vllm" in refused.value.sentence


MLA: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}


@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3", "youtu"])
def test_latent_attention(family: str, tmp_path: Path) -> None:
    """Served like others; a configuration with which transformers' own code fails is refused as that."""
    known = transformers.AutoConfig.for_model(family)
    sizes = {name: value for name, value in (SHAPE | MLA).items() if hasattr(known, name)}
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(family, **sizes))
    model.save_pretrained(tmp_path)
    load_engine(str(tmp_path), EngineConfig(kernels="none", threads=1, kv_cache_bytes=1 << 20)).close()
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_key_value_heads": 2}))
    with pytest.raises(ModelLoadError, match="cannot be served: transformers' own code fails on it: RuntimeError"):
        load_engine(str(tmp_path), EngineConfig(kernels="none", threads=1, kv_cache_bytes=1 << 20))


def test_the_manual() -> None:
    """It lists the same families."""
    page = (Path(lmtool.__file__).parent / "docs/serving.md").read_text(encoding="utf-8")
    for kind, families in (("dense", DENSE), ("mixtures of experts", EXPERTS)):
        [row] = re.findall(rf"^\| {kind} \| (.+) \|$", page, re.MULTILINE)
        assert row == ", ".join(f"`{family}`" for family in families)
