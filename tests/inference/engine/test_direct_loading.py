"""Weights that are read straight onto their device. The `meta` device stands for a GPU: it has no memory at all."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
import torch
import transformers
from transformers import PreTrainedModel, core_model_loading, modeling_utils

from lmtool.inference.engine.checkpoint import copied, load_model, loading_onto
from lmtool.inference.engine.config import EngineConfig

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
