"""The logarithm of a sum of exponentials."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize(("rows", "vocabulary"), [(0, 5), (1, 1), (3, 101), (2, 4096), (2, 9000)])
def test_equals_torch(device, rows, vocabulary):
    """It is torch's, also where ids are impossible and where logits are large."""
    from lmtool.engine.cuda.kernels.logsumexp import logsumexp

    logits = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(vocabulary)).to(device) * 30 + 80
    if vocabulary > 50:
        logits[:, 5:40] = float("-inf")
    expected = torch.logsumexp(logits.double(), -1)
    torch.testing.assert_close(logsumexp(logits).double(), expected, atol=1e-4, rtol=1e-6)


def test_alone_and_in_a_crowd(device):
    """A row has the same bits in any batch."""
    from lmtool.engine.cuda.kernels.logsumexp import logsumexp

    logits = torch.randn(9, 5000, generator=torch.Generator().manual_seed(1)).to(device)
    whole = logsumexp(logits)
    assert all(torch.equal(logsumexp(logits[row : row + 1])[0], whole[row]) for row in range(9))
