"""Decoders that our own passes compute: which configurations are accepted, and the logits of the Llama pass."""

from __future__ import annotations

import pytest
import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from lmtool.inference.engine.decoder import (
    LlamaForward,
    _rotate,
    _rotations,
    decoder_config,
    default_frequencies,
    fuse,
    matching_config,
    take_weights,
)
from lmtool.inference.engine.kv_cache import KVCache, LayerShape
from lmtool.inference.engine.model_runner import BlockAttention, build
from lmtool.inference.engine.plan import Plan, Sequence, Span

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
    config = decoder_config(raw(head_dim=None))
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
    assert decoder_config(raw(kind, **settings)).windows == windows


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
    assert decoder_config({**raw(), **other}) is None


class TestNames:
    """The names of a checkpoint's weights."""

    @pytest.fixture
    def model(self):
        """A model and its configuration."""

        def make(kind=transformers.LlamaConfig, **settings):
            config = kind(**{**SHAPE, **settings})
            model = transformers.AutoModelForCausalLM.from_config(config)
            return decoder_config(config.to_dict()), {name for name, _ in model.named_parameters()}

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


LLAMAS = ["llama", "llama-tied", "mistral", "qwen2", "qwen3"]


@pytest.mark.parametrize("architecture", LLAMAS)
def test_llama_is_taken_whole(architecture, reference):
    """No weight is left over, so none was forgotten; fused layers have the sum of their outputs."""
    model = reference(architecture)
    config = decoder_config(model.config.to_dict())
    weights = dict(model.named_parameters())
    decoder = take_weights(config, weights)
    layers = list(decoder.layers)
    assert not weights
    assert len(layers) == len(config.windows) == 3
    heads = config.heads + 2 * config.kv_heads
    assert fuse(layers[0].qkv)[0].shape == (heads * config.head_dim, config.hidden)
    assert (decoder.head is None) == (architecture == "llama-tied")


def test_gpt2_is_taken_whole(reference):
    """None of its weights is left over; products are turned to [out, in]."""
    model = reference("gpt2")
    config = decoder_config(model.config.to_dict())
    weights = dict(model.named_parameters())
    layers = list(take_weights(config, weights).layers)
    assert not weights
    assert layers[0].up[0].shape == (config.intermediate, config.hidden)


def test_every_part_must_match(reference):
    """The class, every name, what each layer stores: a model with any other part is not computed."""
    model = reference("gpt2")
    raw, architecture, layers = model.config.to_dict(), type(model).__name__, [(LayerShape(4, 8, 8), None)] * 3
    names = {name for name, _ in model.named_parameters()}
    assert matching_config(raw, architecture, names, layers).hidden == 32
    assert matching_config(raw, "MyGPT2", names, layers) is None
    assert matching_config(raw, architecture, names - {"transformer.wpe.weight"}, layers) is None
    assert matching_config(raw, architecture, names | {"transformer.extra"}, layers) is None
    assert matching_config(raw, architecture, names, layers[:2]) is None
    assert matching_config(raw, architecture, names, [(LayerShape(4, 8, 8), 7)] * 3) is None


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
    assert decoder_config({**reference("gpt2").config.to_dict(), **other}) is None


CPU = torch.device("cpu")


def test_rotation():
    """Queries and keys together, bit for bit as transformers rotates them."""
    rotary = LlamaRotaryEmbedding(transformers.LlamaConfig(hidden_size=64, num_attention_heads=4))
    query, key = torch.randn(2, 1, 3, 5, 16, generator=torch.Generator().manual_seed(0))
    positions = torch.tensor([[0, 7, 300, 7, 2000]])
    expected = torch.cat(apply_rotary_pos_emb(query, key, *rotary(query, positions)), dim=1)[0]
    cos, sin = _rotations(rotary.inv_freq, 2001, query)
    heads = torch.cat((query, key), dim=1)[0].transpose(0, 1)
    rotated = _rotate(heads, cos[positions[0]].unsqueeze(1), sin[positions[0]].unsqueeze(1))
    assert torch.equal(rotated.transpose(0, 1), expected)


class TestWeights:
    """What a lean model does with the weights it is given."""

    @pytest.fixture
    def build_lean(self, reference):
        """A lean model of the given architecture, and the weights that it was given."""

        def make(architecture, **choices):
            model = reference(architecture)
            given = {name: weight.detach().clone() for name, weight in model.named_parameters()}
            weights = dict(given)
            frequencies = model.model.rotary_emb.inv_freq
            config = decoder_config(model.config.to_dict())
            with torch.inference_mode():
                return config, LlamaForward(config, weights, frequencies, 64, **choices), given, weights

        return make

    @pytest.mark.parametrize("architecture", ["llama", "llama-tied", "qwen3"])
    def test_all_are_taken(self, build_lean, architecture):
        """None is left over, so none was forgotten."""
        *_, left = build_lean(architecture, packed=False)
        assert not left

    @pytest.mark.parametrize("packed", [False, True])
    def test_same_logits(self, build_lean, reference, packed):
        """Packed or plain, with tied embeddings and all biases: the logits of transformers, row for row."""
        config, lean, *_ = build_lean("llama-tied", packed=packed)
        cache = KVCache([(layer, config.layer_shape) for layer in lean.layers], 4, torch.float32, CPU)
        ids = list(range(3, 33))
        sequence = Sequence(1, ids, prompt_length=1, max_length=len(ids), scoring=True)
        sequence.blocks = [2, 1]
        with torch.inference_mode():
            batch = build(Plan(spans=[Span(sequence, 0, len(ids) - 1)], fresh_blocks=[]), 64, 16, CPU)
            cache.clear(torch.arange(5))
            logits = lean.logits(batch, BlockAttention(cache, batch.slots, batch.groups))
            expected = reference("llama-tied")(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :-1]
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
