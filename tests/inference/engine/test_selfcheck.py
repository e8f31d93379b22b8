"""The pass through transformers' modules, and its comparison with transformers' own logits at load."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers
from torch import nn

from lmtool.core.errors import ModelLoadError
from lmtool.inference.engine import model_runner, selfcheck
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.engine.kv_cache import KVCache, LayerShape
from lmtool.inference.engine.model_runner import ModelRunner
from lmtool.inference.engine.selfcheck import (
    IMPLEMENTATION,
    TransformersForward,
    fix_frequencies,
    host_choices,
    register,
)
from lmtool.inference.engine.transformers_loader import _context_length

SHAPE = {
    "vocab_size": 101,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "factor": 4.0,
    "short_factor": [1.1, 1.2, 1.3, 1.4],
    "long_factor": [4.0, 5.0, 6.0, 7.0],
    "original_max_position_embeddings": 32,
}
IDS = torch.tensor([[5, 9, 2, 77] * 8])


def model_of(rope):
    """A Llama with these frequencies."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SHAPE, max_position_embeddings=64, rope_parameters=rope)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize("rope", [DYNAMIC, LONG], ids=["dynamic", "longrope"])
def test_frequencies_that_grow_with_the_text_are_kept(rope):
    """Up to the length that streams may have, logits are the same bit for bit."""
    model = model_of(rope)
    length = min(_context_length(model.config, EngineConfig()), IDS.shape[1])
    fixed = copy.deepcopy(model)
    fix_frequencies(fixed)
    with torch.inference_mode():
        for count in (1, length):
            ids = IDS[:, :count]
            assert torch.equal(fixed(ids, use_cache=False).logits, model(ids, use_cache=False).logits)
    assert length == 32


@pytest.mark.parametrize(
    "kinds", ["dynamic", "longrope", {"full_attention": "dynamic", "sliding_attention": "default"}]
)
def test_no_pass_looks_at_positions(kinds):
    """They are not read on the host: they could not be, on a device without memory."""
    rotary = model_of(DYNAMIC).model.rotary_emb.to("meta")
    rotary.rope_type = kinds
    positions, hidden = (torch.empty(1, 4, dtype=kind, device="meta") for kind in (torch.int64, torch.float32))
    fix_frequencies(rotary)
    if isinstance(kinds, dict):
        assert rotary.rope_type == dict.fromkeys(kinds, "default")
    else:
        assert rotary(hidden, positions)[0].shape == (1, 4, 8)


def mixtral():
    """One with four experts."""
    config = transformers.MixtralConfig(**SHAPE, num_key_value_heads=2, num_local_experts=4)
    return transformers.AutoModelForCausalLM.from_config(config)


def test_experts_in_groups():
    """What transformers multiplies in groups on the device asks the host nothing."""
    assert host_choices(mixtral()) is None
    assert host_choices(model_of(DYNAMIC)) is None


def test_experts_one_after_the_other():
    """Where the host looks for tokens of each expert, that is said, with the architecture."""
    model = mixtral()
    model.set_experts_implementation("eager")
    expected = "the experts of MixtralForCausalLM run one after the other, as the host finds tokens for them"
    assert host_choices(model) == expected


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


def faults(scores_matter):
    """A function of attention, by owner and name, and what it does with a fault: key, page, scaling."""
    attend, read = model_runner.attend, KVCache.read

    def without_a_key(query, key, value, mask, *settings):
        return attend(query, key, value, mask.index_fill(-1, torch.tensor([10]), True), *settings)

    def wrong_scaling(query, key, value, mask, scaling, softcap):
        return attend(query, key, value, mask, 1.4427 * scaling, softcap)

    def wrong_page(cache, layer, table, first, streams):
        return read(cache, layer, torch.cat((table[:-1], table[:1])), None, streams)

    yield model_runner, "attend", without_a_key
    yield KVCache, "read", wrong_page
    if scores_matter:
        yield model_runner, "attend", wrong_scaling


class TestHalfPrecision:
    """What is allowed depends on how far the model carries each rounding on."""

    @staticmethod
    def deep(layers, **settings):
        """A Llama in bfloat16, of weights so large that rounding grows from layer to layer."""
        shape = {"vocab_size": 101, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
        shape |= {"num_key_value_heads": 2, "initializer_range": 0.2, **settings}
        config = transformers.LlamaConfig(**shape, num_hidden_layers=layers)
        torch.manual_seed(0)
        register()
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()

    def test_rounding(self):
        """It is measured against the same weights in float32, which are in bfloat16 again afterwards."""
        model = self.deep(4)
        with torch.inference_mode():
            reference = selfcheck.reference_logits(model, "m")
            exact = copy.deepcopy(model).float()
            exact.set_attn_implementation("eager")
            off = exact(torch.tensor(reference.prompts[:1])).logits[0] - reference.logits[0]
        expected = off.abs().max()
        assert reference.rounding.largest == pytest.approx(float(expected), rel=0.01)
        assert reference.rounding.rms == pytest.approx(float(off.square().mean(-1).max().sqrt()), rel=0.01)
        assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
        assert expected > 0

    @pytest.mark.parametrize("layers", [2, 40])
    def test_another_right_way(self, layers):
        """The exact logits themselves are right however deep the model is; what is off by more than both is not."""
        model = self.deep(layers)
        with torch.inference_mode():
            reference = selfcheck.reference_logits(model, "m")
            exact = copy.deepcopy(model).float()
            exact.set_attn_implementation("eager")
            for prompt, logits in zip(reference.prompts, reference.logits, strict=True):
                right = exact(torch.tensor([prompt])).logits[0]
                selfcheck._compare("m", reference, right, logits, None)
                with pytest.raises(ModelLoadError, match="logits differ"):
                    selfcheck._compare("m", reference, right + 4 * reference.rounding.largest, logits, None)

    @pytest.mark.parametrize("deviation", [0.02, 0.06])
    def test_broken_attention(self, deviation, monkeypatch):
        """Transformers' sdpa and ours pass, whatever the weights; with a fault in what is attended to, none does."""
        model = self.deep(8, hidden_size=128, intermediate_size=256, initializer_range=deviation)
        with torch.inference_mode():
            reference = selfcheck.reference_logits(model, "m")
            model.set_attn_implementation("sdpa")
            for prompt, logits in zip(reference.prompts, reference.logits, strict=True):
                other = model(torch.tensor([prompt]), use_cache=False).logits[0].float()
                selfcheck._compare("m", reference, other, logits, None)
            layers = selfcheck.record_layers(model, "m", 256)
            shapes = [(layer.layer, layer.shape) for layer in layers]
            cache = KVCache(shapes, selfcheck.CHECK_BLOCKS, torch.bfloat16, CPU)
            runner = ModelRunner(TransformersForward(model), cache, CPU, 16, 16)
            selfcheck.check_runner(runner, "m", reference)
            for owner, name, broken in faults(scores_matter=deviation > 0.02):
                with monkeypatch.context() as patch:
                    patch.setattr(owner, name, broken)
                    with pytest.raises(ModelLoadError, match="logits differ"):
                        selfcheck.check_runner(runner, "m", reference)

    def test_a_weight_of_two_modules(self):
        """One that a module shares with one inside it is narrow again afterwards."""
        model = self.deep(2)
        model.model.weight = model.model.norm.weight
        with torch.inference_mode():
            assert selfcheck.reference_logits(model, "m").rounding is not None
        assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}

    def test_code_that_mixes_dtypes(self, caplog):
        """A model that cannot be computed so is checked with what is usual."""

        class Mixing(nn.Module):
            def forward(self, inputs):
                return inputs @ torch.eye(inputs.shape[-1], dtype=torch.bfloat16)

        model = self.deep(2)
        model.model.norm = nn.Sequential(model.model.norm, Mixing())
        with torch.inference_mode(), caplog.at_level("INFO"):
            reference = selfcheck.reference_logits(model, "m")
        assert reference.rounding is None
        assert "cannot be measured" in caplog.text
        assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}


def test_code_that_fails(model):
    """An exception inside the model becomes a refusal that names it."""

    class Broken(nn.Module):
        def forward(self, inputs):
            raise NotImplementedError("no such thing")

    model.model.norm = Broken()
    with pytest.raises(ModelLoadError, match=r"MistralForCausalLM.*no such thing"):
        check(model)
