"""Attention over blocks, by itself and inside transformers' modules."""

from __future__ import annotations

import pytest
import torch
from transformers import AttentionInterface

from lmtool.inference.engine.model_runner import attend
from lmtool.inference.engine.plan import Plan, Sequence, Span
from lmtool.inference.engine.selfcheck import IMPLEMENTATION, RECORDING, register


@pytest.mark.parametrize(("kv_heads", "heads"), [(1, 4), (2, 2), (4, 1)])
@pytest.mark.parametrize("queries", [1, 5])
def test_against_torch(kv_heads, heads, queries):
    """Grouped queries over padded spans, each unit with its own mask, as torch computes them one head at a time."""
    units, span, size = 3, 32, 8
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(units, queries, kv_heads, heads, size, generator=generator)
    key = torch.randn(kv_heads * units, span, size, generator=generator)
    value = torch.randn(kv_heads * units, span, 6, generator=generator)
    mask = torch.rand(units, queries, span, generator=generator) < 0.5
    mask[..., 0] = False
    output = attend(query, key, value, mask, 0.3, None)
    for unit in range(units):
        for kv in range(kv_heads):
            at = kv * units + unit
            expected = torch.nn.functional.scaled_dot_product_attention(
                query[unit, :, kv].transpose(0, 1), key[at].expand(heads, -1, -1), value[at].expand(heads, -1, -1),
                attn_mask=~mask[unit], scale=0.3,
            )  # fmt: skip
            torch.testing.assert_close(output[unit, :, kv].transpose(0, 1), expected)


def test_softcap():
    """Scores are squeezed by tanh before the softmax."""
    query = torch.tensor([10.0]).view(1, 1, 1, 1, 1)
    key, value = torch.tensor([[[1.0], [-1.0]]]), torch.tensor([[[1.0], [0.0]]])
    output = attend(query, key, value, torch.zeros(1, 1, 2, dtype=torch.bool), 1.0, 2.0)
    squeezed = 2 * torch.tanh(torch.tensor([10.0, -10.0]) / 2)
    assert float(output) == pytest.approx(float(torch.softmax(squeezed, 0)[0]), abs=1e-6)


def test_registered():
    """Transformers knows both names, however often they are registered."""
    register()
    register()
    assert {IMPLEMENTATION, RECORDING} <= set(AttentionInterface().valid_keys())


def test_a_chunk_without_logits(engine_of, random_ids):
    """Where no row of logits is needed the output layer is left out, but keys and values are stored."""
    runner = engine_of("gpt2")._runner
    ids = list(random_ids(40, seed=1))
    with torch.inference_mode():
        whole, chunked = (Sequence(n, list(ids), prompt_length=40, max_length=60) for n in (1, 2))
        whole.blocks, chunked.blocks = [1, 2, 3], [4, 5, 6]
        expected = runner.run(Plan(spans=[Span(whole, 0, 40)], fresh_blocks=[1, 2, 3, 4, 5, 6]))
        assert runner.run(Plan(spans=[Span(chunked, 0, 30)], fresh_blocks=[])).numel() == 0
        found = runner.run(Plan(spans=[Span(chunked, 30, 10)], fresh_blocks=[]))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
