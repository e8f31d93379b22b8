"""Sizes in the files of a stranger's model, compared with its weights before anything is made of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from lmtool.core.errors import ModelLoadError
from lmtool.inference.engine.model_folder import WeightSizes, check_folder, check_sizes
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
