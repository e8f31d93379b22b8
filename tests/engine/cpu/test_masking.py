"""Masks on logits: the kernel does what the table does."""

from __future__ import annotations

import pytest
import torch

from lmtool.engine import sampler
from lmtool.engine.cpu import masking
from lmtool.engine.sampler import Row

pytestmark = pytest.mark.usefixtures("kernels")


def _words(rows, vocabulary, seed):
    words = torch.randint(-(2**31), 2**31 - 1, (rows, -(-vocabulary // 32)), dtype=torch.int32, generator=seed)
    words[:, ::3] = -1  # nothing forbidden
    words[:, 1::4] = 0  # everything
    return words


@pytest.mark.parametrize("vocabulary", [1, 31, 32, 33, 1000, 4096])
def test_only_allowed_ids_stay(vocabulary):
    """In the rows that are named, whatever their order; others stay as they were."""
    seed = torch.Generator().manual_seed(vocabulary)
    logits = torch.randn(5, vocabulary, generator=seed)
    words, expected = _words(3, vocabulary, seed), logits.clone()
    for row, own in zip((4, 0, 2), words, strict=True):
        bits = own.unsqueeze(1) >> torch.arange(32) & 1
        expected[row, bits.flatten()[:vocabulary] == 0] = float("-inf")
    assert masking.forbid_by_kernel(logits, [4, 0, 2], words)
    assert torch.equal(logits, expected)


def test_the_table_does_the_same(monkeypatch):
    """Where there is no compiler."""
    seed = torch.Generator().manual_seed(1)
    logits, words = torch.randn(3, 777, generator=seed), _words(2, 777, seed)
    rows = [Row(allowed=words[0]), Row(), Row(allowed=words[1])]
    by_kernel, by_table = logits.clone(), logits.clone()
    sampler._forbid(by_kernel, rows, [0, 2])
    monkeypatch.setattr(masking, "kernels", lambda: None)
    assert not masking.forbid_by_kernel(logits, [0, 2], words)
    sampler._forbid(by_table, rows, [0, 2])
    assert torch.equal(by_kernel, by_table)
    assert by_table.isinf().any()


def test_what_c_cannot_see():
    """Rows that do not lie one behind the other are left to the table."""
    logits = torch.zeros(64, 4).t()
    assert not masking.forbid_by_kernel(logits, [0], torch.zeros(1, 2, dtype=torch.int32))
    assert not logits.isinf().any()
