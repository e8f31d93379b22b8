"""Checkpoints are taken apart completely, and only those that are computed."""

from __future__ import annotations

import pytest

from lmtool.engine.cpu.decoder import gpt2_names, gpt2_shape, llama_shape, take_gpt2, take_llama
from lmtool.engine.lean_config import lean_config

LLAMAS = ["llama", "llama-tied", "mistral", "qwen2", "qwen3"]


@pytest.mark.parametrize("architecture", LLAMAS)
def test_llama_is_taken_whole(architecture, reference):
    """No weight is left over, so none was forgotten; fused layers have the sum of their outputs."""
    model = reference(architecture)
    shape = llama_shape(lean_config(model.config.to_dict()), type(model).__name__)
    weights = dict(model.named_parameters())
    decoder = take_llama(shape, weights)
    layers = list(decoder.layers)
    assert not weights
    assert len(layers) == len(shape.windows) == 3
    heads = shape.heads + 2 * shape.kv_heads
    assert layers[0].qkv[0].shape == (heads * shape.head_dim, shape.hidden)
    assert (decoder.head is None) == (architecture == "llama-tied")


def test_gpt2_is_taken_whole(reference):
    """The names are those of the checkpoint, and none is left over; products are turned to [out, in]."""
    model = reference("gpt2")
    shape = gpt2_shape(model.config.to_dict())
    weights = dict(model.named_parameters())
    assert set(weights) == gpt2_names(shape)
    layers = list(take_gpt2(shape, weights).layers)
    assert {name for name in weights if "wte" not in name} == set()
    assert layers[0].up[0].shape == (shape.inner, shape.hidden)


@pytest.mark.parametrize(
    "other",
    [
        {"activation_function": "relu"},
        {"scale_attn_weights": False},
        {"scale_attn_by_inverse_layer_idx": True},
        {"add_cross_attention": True},
        {"model_type": "opt"},
        {"quantization_config": {"quant_method": "gptq"}},
    ],
)
def test_what_is_not_computed(other, reference):
    """A GPT-2 that does anything else runs through transformers' modules."""
    assert gpt2_shape({**reference("gpt2").config.to_dict(), **other}) is None
