"""Norm, rotation and storing of query and key heads."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.cuda

EPS = 1e-6


def rotated(heads, positions, frequencies):
    """Heads [T, N, D] turned by position times frequency, in float64; the halves of a head are the coordinates."""
    angles = (positions.double().unsqueeze(1) * frequencies.double()).unsqueeze(1)
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()), -1)


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(4, 2, 64), (3, 3, 80), (2, 1, 128), (1, 1, 12)])
def test_equals_norm_then_rotation(device, dtype, normed, heads, kv_heads, size):
    """Queries and keys are normed if asked, then rotated; values are stored as they are; padding is not stored."""
    from lmtool.engine.cuda.kernels.rotary import rotate_and_store

    generator = torch.Generator().manual_seed(size)
    projected = torch.randn(5, heads + 2 * kv_heads, size, generator=generator).to(device, dtype)
    weight = torch.rand(heads + kv_heads, size, generator=generator).to(device, dtype) if normed else None
    frequencies = 1e4 ** (-torch.arange(0, size, 2) / size).to(device)
    angles = torch.outer(torch.arange(100, device=device).float(), frequencies)
    positions = torch.tensor([0, 1, 17, 99, 3], device=device)
    slots = torch.tensor([16, 33, 20, 47, -1], device=device)
    query = torch.empty(5, heads, size, device=device, dtype=dtype)
    keys, values = (torch.zeros(3, 16, kv_heads, size, device=device, dtype=dtype) for _ in "kv")
    rotate_and_store(projected, query, keys, values, positions, slots, angles.cos(), angles.sin(), weight, EPS)

    own = projected.double()
    turned = own[:, : heads + kv_heads]
    if weight is not None:
        turned = turned * torch.rsqrt(turned.pow(2).mean(-1, keepdim=True) + EPS) * weight.double()
    turned = rotated(turned, positions, frequencies)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(query.double(), turned[:, :heads], atol=tolerance, rtol=tolerance)
    stored = keys.flatten(0, 1)[slots[:4]].double()
    torch.testing.assert_close(stored, turned[:4, heads:], atol=tolerance, rtol=tolerance)
    assert torch.equal(values.flatten(0, 1)[slots[:4]], projected[:4, heads + kv_heads :])
    assert int(values.flatten(0, 1).flatten(1).any(1).sum()) == 4
