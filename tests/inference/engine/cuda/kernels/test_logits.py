"""Kernels over rows of logits: masks, and the log of a sum of exponentials."""

from __future__ import annotations

import pytest
import torch

from lmtool.inference.engine import logits as top_p
from lmtool.inference.engine.logits import apply_masks_on_gpu

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize(("rows", "vocabulary"), [(0, 5), (1, 1), (3, 101), (2, 4096), (2, 9000)])
def test_equals_torch(device, rows, vocabulary):
    """It is torch's, also where ids are impossible and where logits are large."""
    from lmtool.inference.engine.cuda.kernels.sampling import logsumexp

    logits = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(vocabulary)).to(device) * 30 + 80
    if vocabulary > 50:
        logits[:, 5:40] = float("-inf")
    expected = torch.logsumexp(logits.double(), -1)
    torch.testing.assert_close(logsumexp(logits).double(), expected, atol=1e-4, rtol=1e-6)


def test_alone_and_in_a_crowd(device):
    """A row has the same bits in any batch."""
    from lmtool.inference.engine.cuda.kernels.sampling import logsumexp

    logits = torch.randn(9, 5000, generator=torch.Generator().manual_seed(1)).to(device)
    whole = logsumexp(logits)
    assert all(torch.equal(logsumexp(logits[row : row + 1])[0], whole[row]) for row in range(9))


@pytest.mark.parametrize("vocabulary", [1, 31, 32, 33, 1000, 1025])
def test_bits(device, vocabulary):
    """An id whose bit is 0 becomes -inf in its row; all else stays, bit 31 (the sign) included."""
    from lmtool.inference.engine.cuda.kernels.sampling import apply_masks

    generator = torch.Generator().manual_seed(vocabulary)
    logits = torch.randn(4, vocabulary, generator=generator).to(device)
    words = torch.randint(-(2**31), 2**31, (2, -(-vocabulary // 32)), generator=generator).int()
    ids = torch.arange(vocabulary)
    allowed = (words[:, ids // 32] >> (ids % 32)) & 1
    expected = logits.clone()
    expected[[3, 1]] = expected[[3, 1]].masked_fill(allowed.to(device) == 0, float("-inf"))
    apply_masks(logits, torch.tensor([3, 1], device=device), words.to(device))
    assert torch.equal(logits, expected)


def test_no_rows(device):
    """No rows change nothing."""
    from lmtool.inference.engine.cuda.kernels.sampling import apply_masks

    logits = torch.ones(2, 40, device=device)
    none = torch.empty(0, dtype=torch.int64, device=device)
    apply_masks(logits, none, torch.empty(0, 2, dtype=torch.int32, device=device))
    assert bool((logits == 1).all())


WORDS = torch.tensor([[0b101, 0], [-1, 1]], dtype=torch.int32)


@pytest.mark.usefixtures("no_triton")
def test_without_triton_nothing_is_done():
    """The caller is told, and does it itself."""
    logits = torch.zeros(3, 40)
    assert not apply_masks_on_gpu(logits, [2, 0], WORDS)
    assert not logits.any()


@pytest.mark.cuda
def test_only_allowed_ids_stay(device):
    """Each row keeps what its own mask allows; rows that are not named keep everything."""
    logits = torch.zeros(3, 40, device=device)
    assert apply_masks_on_gpu(logits, [2, 0], WORDS)
    kept = [torch.isfinite(row).nonzero().flatten().tolist() for row in logits]
    assert kept == [list(range(33)), list(range(40)), [0, 2]]


def logits():
    return torch.randn(3, 1000, generator=torch.Generator().manual_seed(0))


def test_on_cpu_it_is_torchs_own():
    """The CPU's bits are torch's."""
    assert torch.equal(top_p.logsumexp(logits()), torch.logsumexp(logits(), -1))


@pytest.mark.usefixtures("no_triton")
def test_without_triton_it_is_torchs_own():
    """A GPU without Triton has torch's, too."""
    top_p._logsumexp_kernel.cache_clear()
    assert torch.equal(top_p._logsumexp_kernel()(logits()), torch.logsumexp(logits(), -1))
    top_p._logsumexp_kernel.cache_clear()


@pytest.mark.cuda
def test_alone_and_in_a_crowd_row_sums(gpu):
    """On a GPU a row has the same bits in any batch, rows that are not contiguous included."""
    own = logits().to(gpu)
    whole = top_p.logsumexp(own)
    torch.testing.assert_close(whole, torch.logsumexp(own, -1))
    assert all(torch.equal(top_p.logsumexp(own[row : row + 1])[0], whole[row]) for row in range(3))
    assert torch.equal(top_p.logsumexp(own.T.contiguous().T), whole)
