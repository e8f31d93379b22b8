"""Passes through transformers' modules that can be captured: nothing in them is decided on the host."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers

from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.engine.selfcheck import fix_frequencies, host_choices
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
