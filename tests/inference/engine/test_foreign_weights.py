"""Folders whose weights are not those of the model that config.json describes: adapters, quantized checkpoints."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lmtool.core.errors import ModelLoadError
from lmtool.inference.backends.registry import BackendConfig
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.engine.engine_loader import load_engine
from lmtool.serving.config import ModelsConfig, ReplicasConfig, ServiceConfig
from lmtool.serving.replicas import commands

QUANTIZED: dict[str, tuple[dict[str, Any], str]] = {
    "fp8": ({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}, "fp8, e4m3"),
    "compressed": (
        {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "config_groups": {}},
        "compressed-tensors, nvfp4-pack-quantized",
    ),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}, "awq, 4 bits"),
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "gptq, 4 bits"),
    "bitsandbytes, 4": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes, 4 bits"),
    "bitsandbytes, 8": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bitsandbytes, 8 bits"),
    "mxfp4": ({"quant_method": "mxfp4"}, "mxfp4"),
    "modelopt": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "modelopt, NVFP4"),
    "unnamed": ({"bits": 3}, "by a method that it does not name, 3 bits"),
}


@pytest.fixture
def folder(checkpoint: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy of a small model, to be changed."""
    return Path(shutil.copytree(checkpoint("llama"), tmp_path / "model"))


def refusal(folder: Path) -> ModelLoadError:
    with pytest.raises(ModelLoadError) as refused:
        load_engine(str(folder), EngineConfig(threads=1)).close()
    return refused.value


@pytest.mark.parametrize(("settings", "how"), QUANTIZED.values(), ids=QUANTIZED)
def test_quantized(folder: Path, settings: dict[str, Any], how: str) -> None:
    """It is said how the weights are quantized, why they cannot be loaded, and what can be served instead."""
    if settings.get("quant_method") in {"fp8", "mxfp4"} and importlib.util.find_spec("accelerate"):
        pytest.skip("transformers widens these on a CPU where accelerate is installed")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    error = refusal(folder)
    assert error.message.startswith(f"{folder} holds quantized weights ({how}), which cannot be loaded here: ")
    assert all(way in error.sentence for way in ("--quantize int8", "GGUF", "--backend vllm"))
    assert "belong together" not in error.sentence


def test_scales_without_a_configuration(folder: Path) -> None:
    """Weights whose scales nobody would read are refused: the check at load would compare them with themselves."""
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    weights[name] = weights[name].to(torch.float8_e4m3fn)
    weights["model.layers.0.mlp.up_proj.weight_scale"] = torch.ones(())
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert "model.layers.0.mlp.up_proj.weight_scale has no place in the model" in refusal(folder).message


def test_an_adapter(folder: Path) -> None:
    """An adapter is refused by name, whether weights are with it or not, by our engine and before vLLM starts."""
    adapter = {"peft_type": "LORA", "base_model_name_or_path": "org/base", "r": 4}
    (folder / "adapter_config.json").write_text(json.dumps(adapter))
    words = f"{folder} holds an adapter (LORA, of org/base) in adapter_config.json, and adapters are not applied here"
    assert refusal(folder).message == words
    service = ServiceConfig(ModelsConfig(str(folder)), backend=BackendConfig("vllm", "python"))
    with pytest.raises(ModelLoadError) as refused:
        commands(ReplicasConfig(), service, {})
    assert refused.value.message == words
    for file in ("model.safetensors", "config.json"):
        (folder / file).unlink()
        assert refusal(folder).message == words
