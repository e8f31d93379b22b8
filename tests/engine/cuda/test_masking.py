"""Masks of constraints on logits that lie on a GPU."""

from __future__ import annotations

import pytest
import torch

from lmtool.engine.cuda.masking import forbid_by_kernel

WORDS = torch.tensor([[0b101, 0], [-1, 1]], dtype=torch.int32)


@pytest.mark.usefixtures("no_triton")
def test_without_triton_nothing_is_done():
    """The caller is told, and does it itself."""
    logits = torch.zeros(3, 40)
    assert not forbid_by_kernel(logits, [2, 0], WORDS)
    assert not logits.any()


@pytest.mark.cuda
def test_only_allowed_ids_stay(device):
    """Each row keeps what its own mask allows; rows that are not named keep everything."""
    logits = torch.zeros(3, 40, device=device)
    assert forbid_by_kernel(logits, [2, 0], WORDS)
    kept = [torch.isfinite(row).nonzero().flatten().tolist() for row in logits]
    assert kept == [list(range(33)), list(range(40)), [0, 2]]
