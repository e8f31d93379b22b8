"""Our attention against torch's own."""

from __future__ import annotations

import pytest
import torch

from lmtool.engine.attention import attend


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
