"""Sums over rows of logits."""

from __future__ import annotations

import pytest
import torch

from lmtool.engine.cuda import row_sums


def logits():
    return torch.randn(3, 1000, generator=torch.Generator().manual_seed(0))


def test_on_cpu_it_is_torchs_own():
    """The CPU's bits are torch's."""
    assert torch.equal(row_sums.logsumexp(logits()), torch.logsumexp(logits(), -1))


@pytest.mark.usefixtures("no_triton")
def test_without_triton_it_is_torchs_own():
    """A GPU without Triton has torch's, too."""
    row_sums._kernel.cache_clear()
    assert torch.equal(row_sums._kernel()(logits()), torch.logsumexp(logits(), -1))
    row_sums._kernel.cache_clear()


@pytest.mark.cuda
def test_alone_and_in_a_crowd(gpu):
    """On a GPU a row has the same bits in any batch, rows that are not contiguous included."""
    own = logits().to(gpu)
    whole = row_sums.logsumexp(own)
    torch.testing.assert_close(whole, torch.logsumexp(own, -1))
    assert all(torch.equal(row_sums.logsumexp(own[row : row + 1])[0], whole[row]) for row in range(3))
    assert torch.equal(row_sums.logsumexp(own.T.contiguous().T), whole)
