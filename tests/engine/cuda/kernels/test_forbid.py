"""Masks of bits onto logits."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("vocabulary", [1, 31, 32, 33, 1000, 1025])
def test_bits(device, vocabulary):
    """An id whose bit is 0 becomes -inf in its row; all else stays, bit 31 (the sign) included."""
    from lmtool.engine.cuda.kernels.forbid import forbid

    generator = torch.Generator().manual_seed(vocabulary)
    logits = torch.randn(4, vocabulary, generator=generator).to(device)
    words = torch.randint(-(2**31), 2**31, (2, -(-vocabulary // 32)), generator=generator).int()
    ids = torch.arange(vocabulary)
    allowed = (words[:, ids // 32] >> (ids % 32)) & 1
    expected = logits.clone()
    expected[[3, 1]] = expected[[3, 1]].masked_fill(allowed.to(device) == 0, float("-inf"))
    forbid(logits, torch.tensor([3, 1], device=device), words.to(device))
    assert torch.equal(logits, expected)


def test_no_rows(device):
    """No rows change nothing."""
    from lmtool.engine.cuda.kernels.forbid import forbid

    logits = torch.ones(2, 40, device=device)
    none = torch.empty(0, dtype=torch.int64, device=device)
    forbid(logits, none, torch.empty(0, 2, dtype=torch.int32, device=device))
    assert bool((logits == 1).all())
