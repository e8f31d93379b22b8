"""The lean pass takes exactly the models that it computes right."""

from __future__ import annotations

import pytest
import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from lmtool.engine.lean_config import default_frequencies, lean_config

SHAPE = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def raw(kind=transformers.LlamaConfig, **settings):
    """The content of a config.json."""
    return kind(**{**SHAPE, **settings}).to_dict()


def test_shapes():
    """Sizes are read as transformers means them, left out ones included."""
    config = lean_config(raw(head_dim=None))
    assert (config.heads, config.kv_heads, config.head_dim, config.windows) == (2, 1, 8, (None, None))
    assert config.products == [(32, 16), (16, 16), (48, 16), (16, 24), (50, 16)]


@pytest.mark.parametrize(
    ("kind", "settings", "windows"),
    [
        (transformers.MistralConfig, {"sliding_window": 5}, (5, 5)),
        (transformers.MistralConfig, {"sliding_window": None}, (None, None)),
        (
            transformers.Qwen2Config,
            {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
            (None, 5),
        ),
        (transformers.Qwen3Config, {"use_sliding_window": False, "sliding_window": 5}, (None, None)),
    ],
)
def test_windows(kind, settings, windows):
    """Each family tells its sliding windows in its own way."""
    assert lean_config(raw(kind, **settings)).windows == windows


@pytest.mark.parametrize(
    "other",
    [
        {"model_type": "gemma"},
        {"hidden_act": "gelu"},
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        {"rope_parameters": None},
        {"quantization_config": {"quant_method": "gptq"}},
    ],
)
def test_not_lean(other):
    """Other families, activations, rotary embeddings and quantized weights are not taken."""
    assert lean_config({**raw(), **other}) is None


class TestNames:
    """The names of a checkpoint's weights."""

    @pytest.fixture
    def model(self):
        """A model and its configuration."""

        def make(kind=transformers.LlamaConfig, **settings):
            config = kind(**{**SHAPE, **settings})
            model = transformers.AutoModelForCausalLM.from_config(config)
            return lean_config(config.to_dict()), {name for name, _ in model.named_parameters()}

        return make

    @pytest.mark.parametrize(
        ("kind", "settings"),
        [
            (transformers.LlamaConfig, {"tie_word_embeddings": True}),
            (transformers.LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
            (transformers.MistralConfig, {}),
            (transformers.Qwen2Config, {}),
            (transformers.Qwen3Config, {}),
        ],
    )
    def test_complete(self, model, kind, settings):
        """Each family's own names are accepted, with its biases; one more or one less is not."""
        config, names = model(kind, **settings)
        assert config.accepts(names)
        assert not config.accepts(names | {"model.layers.0.self_attn.sinks"})
        assert not config.accepts(names - {"model.layers.1.mlp.up_proj.weight"})


@pytest.mark.parametrize("theta", [1e4, 5e5])
def test_default_frequencies(theta):
    """Bit for bit those of transformers."""
    config = transformers.LlamaConfig(**SHAPE, rope_parameters={"rope_type": "default", "rope_theta": theta})
    assert torch.equal(default_frequencies(8, theta), LlamaRotaryEmbedding(config).inv_freq)
