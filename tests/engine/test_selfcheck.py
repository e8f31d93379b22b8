"""The check at load notices whatever would make a model's flat pass differ from its plain one."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch import nn

from lmtool.engine import selfcheck
from lmtool.engine.kv_cache import KVCache, LayerShape
from lmtool.engine.model_runner import ModelRunner
from lmtool.engine.transformers_attention import IMPLEMENTATION, register
from lmtool.engine.transformers_forward import TransformersForward
from lmtool.errors import ModelLoadError

CPU = torch.device("cpu")


@pytest.fixture
def model(checkpoint):
    """A small Mistral with a sliding window."""
    register()
    with torch.inference_mode():
        return transformers.AutoModelForCausalLM.from_pretrained(checkpoint("mistral"), attn_implementation="eager")


def check(model):
    """Run the whole check."""
    with torch.inference_mode():
        reference = selfcheck.reference_logits(model, "m")
        layers = selfcheck.record_layers(model, "m", 256)
        cache = KVCache([(layer.layer, layer.shape) for layer in layers], selfcheck.CHECK_BLOCKS, torch.float32, CPU)
        selfcheck.check_runner(ModelRunner(TransformersForward(model), cache, CPU, 64, 16), "m", reference)
    return layers


def test_passes(model):
    """A good model passes; its layers are known with their shapes and windows, and it runs with our attention."""
    layers = check(model)
    assert [(layer.shape, layer.window) for layer in layers] == [(LayerShape(2, 8, 8), 24)] * 3
    assert model.config._attn_implementation == IMPLEMENTATION


def test_position_of_its_own(model, monkeypatch):
    """A model that does not use the positions it is given."""
    rotary = type(model.model.rotary_emb)
    original = rotary.forward
    monkeypatch.setattr(
        rotary, "forward", lambda self, x, position_ids: original(self, x, torch.arange(x.shape[1]).unsqueeze(0))
    )
    with pytest.raises(ModelLoadError, match="logits differ"):
        check(model)


def test_neighbours_that_meet(model):
    """A layer that mixes tokens of different streams."""

    class Mixing(nn.Module):
        def forward(self, inputs):
            return inputs + inputs.roll(1, dims=1)

    model.model.norm = nn.Sequential(model.model.norm, Mixing())
    with pytest.raises(ModelLoadError, match="logits differ"):
        check(model)


def test_mask_of_its_own(model, monkeypatch):
    """A model whose mask is not the sliding window that its layers tell, however little they differ."""
    attention = type(model.model.layers[0].self_attn)
    original = attention.forward

    def forward(self, *args, **kwargs):
        self.config.sliding_window += 1
        output = original(self, *args, **kwargs)
        self.config.sliding_window -= 1
        return output

    monkeypatch.setattr(attention, "forward", forward)
    with pytest.raises(ModelLoadError, match="neither causal nor a sliding window"):
        check(model)


def test_code_that_fails(model):
    """An exception inside the model becomes a refusal that names it."""

    class Broken(nn.Module):
        def forward(self, inputs):
            raise NotImplementedError("no such thing")

    model.model.norm = Broken()
    with pytest.raises(ModelLoadError, match=r"MistralForCausalLM.*no such thing"):
        check(model)
