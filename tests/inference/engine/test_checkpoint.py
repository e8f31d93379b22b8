"""Reading a checkpoint through transformers: straight onto a device, with progress, and quantized weights refused."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel, core_model_loading, modeling_utils
from transformers.utils import logging as transformers_logging

from lmtool.core.errors import ModelLoadError
from lmtool.core.types import LoadProgress
from lmtool.inference.backends.registry import BackendConfig
from lmtool.inference.engine.checkpoint import Progress, copied, load_model, loading_onto, quiet
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.engine.engine_loader import load_engine
from lmtool.serving.config import ModelsConfig, ReplicasConfig, ServiceConfig
from lmtool.serving.replicas import commands

META = torch.device("meta")


def tensors(model):
    """Weights and buffers by name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


@pytest.mark.parametrize("architecture", ["llama-tied", "mixtral", "gemma3"])
def test_everything_is_on_the_device(architecture, checkpoint, monkeypatch):
    """Also what the checkpoint does not hold, tied weights and rotary frequencies; nothing is moved afterwards."""
    moved = []
    monkeypatch.setattr(torch.nn.Module, "to", lambda model, device: moved.append({t.device for t in own(model)}))

    def own(model):
        return tensors(model).values()

    model = load_model(str(checkpoint(architecture)), EngineConfig(dtype="bfloat16"), META, lambda _: None)
    assert moved == [{META}]
    assert {tensor.device for tensor in own(model)} == {META}
    assert not model.training


@pytest.mark.parametrize("architecture", ["gpt2", "llama3-rope", "mixtral"])
def test_the_same_weights(architecture, checkpoint):
    """They are those of a plain load, bit for bit."""
    folder = str(checkpoint(architecture))
    plain = transformers.AutoModelForCausalLM.from_pretrained(folder)
    with loading_onto(torch.device("cpu")):
        direct = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert tensors(direct).keys() == tensors(plain).keys()
    assert all(torch.equal(tensor, tensors(direct)[name]) for name, tensor in tensors(plain).items())


def test_conversion_is_up_to_the_device():
    """A tensor is copied as it is in the file: converted on the host, it would be there twice."""
    moves = []

    class InFile:
        def __getitem__(self, which):
            return self

        def to(self, where):
            moves.append(where)
            return self

    copied(InFile(), META, torch.bfloat16)
    copied(InFile(), dtype=torch.float16)
    assert moves == [META, torch.bfloat16, torch.float16]


def test_transformers_is_as_before(checkpoint):
    """Afterwards a load by others is their own again, also when this one failed."""
    convert, finish = (
        modeling_utils.convert_and_load_state_dict_in_model,
        vars(PreTrainedModel)["_finalize_model_loading"],
    )
    with contextlib.suppress(ValueError), loading_onto(META):
        assert modeling_utils.convert_and_load_state_dict_in_model is not convert
        raise ValueError("no")
    assert modeling_utils.convert_and_load_state_dict_in_model is convert
    assert vars(PreTrainedModel)["_finalize_model_loading"] is finish
    assert core_model_loading._materialize_copy is not copied


def test_a_transformers_that_works_differently(checkpoint, monkeypatch, caplog):
    """Weights are read as ever where its functions are not there, and once more where they take other arguments."""
    folder = str(checkpoint("gpt2"))
    with monkeypatch.context() as patch:
        patch.setattr("lmtool.inference.engine.checkpoint.modeling_utils", SimpleNamespace())
        with loading_onto(META):
            model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert {tensor.device for tensor in tensors(model).values()} == {torch.device("cpu")}

    def other(function, device, *arguments, **keywords):
        raise TypeError("unexpected keyword")

    monkeypatch.setattr("lmtool.inference.engine.checkpoint._with_device", other)
    model = load_model(folder, EngineConfig(), META, lambda _: None)
    assert {tensor.device for tensor in tensors(model).values()} == {META}
    assert "is read into the host's memory first: TypeError: unexpected keyword" in caplog.text


@pytest.fixture
def seen():
    """What was reported."""
    return []


def test_read(seen):
    """Bytes in proportion to the weights read, at most a hundred reports."""
    progress = Progress("m", 5000, seen.append)
    progress.start()
    assert list(progress.read(range(1000))) == list(range(1000))
    assert seen[0] == LoadProgress("m", "loading", 0, 5000, "reading m")
    assert len(seen) == 101
    assert seen[50].done_bytes == 2500
    assert seen[-1].done_bytes == 5000


def test_download(seen, capsys):
    """Files of the hub count together, from where a broken download goes on; reading them then has their size."""
    progress = Progress("m", 0, seen.append)
    bar = progress.bar()
    with bar(total=100, initial=40, unit="B", unit_scale=True, desc="model-1") as one:
        one.update(60)
    with bar(total=300, unit="B", desc="model-2") as two:
        two.update(300)
    assert [(one.done_bytes, one.total_bytes) for one in seen] == [(40, 100), (100, 100), (100, 400), (400, 400)]
    assert seen[0].message == "downloading m"
    list(progress.read("ab"))
    assert (seen[-1].done_bytes, seen[-1].total_bytes, seen[-1].message) == (400, 400, "reading m")
    assert capsys.readouterr() == ("", "")


def test_watching(seen, capsys):
    """Transformers' bar over the weights is followed while a load lasts; others draw nothing."""
    progress = Progress("m", 10, seen.append)
    with progress.watching():
        assert list(transformers_logging.tqdm("ab", desc="Loading weights")) == ["a", "b"]
        assert list(transformers_logging.tqdm("ab", desc="Something else")) == ["a", "b"]
    assert [one.done_bytes for one in seen] == [5, 10]
    assert capsys.readouterr() == ("", "")


def test_quiet():
    """Transformers' own log level is lowered for the length of a load only."""
    before = transformers_logging.get_verbosity()
    with quiet():
        assert transformers_logging.get_verbosity() == logging.ERROR
    assert transformers_logging.get_verbosity() == before


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
