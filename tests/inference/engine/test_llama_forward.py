"""The lean pass does what transformers' modules do; for whole models see test_model_runner and test_embedded."""

from __future__ import annotations

import pytest
import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from lmtool.inference.engine.decoder import LlamaForward, _rotate, _rotations, decoder_config
from lmtool.inference.engine.kv_cache import KVCache
from lmtool.inference.engine.model_runner import BlockAttention, build
from lmtool.inference.engine.plan import Plan, Sequence, Span

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
