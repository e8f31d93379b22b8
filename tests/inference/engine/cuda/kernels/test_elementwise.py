"""Fused row operations against separate ones: norms, gates, and keys and values in their pages."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize(("tokens", "width"), [(0, 32), (1, 32), (3, 100), (2, 4096)])
@pytest.mark.parametrize("added", [False, True])
def test_equals_two_steps(device, dtype, tokens, width, added):
    """The residual stream grows by what is added; the norm is that of the rounded sum."""
    from lmtool.inference.engine.cuda.kernels.elementwise import add_norm

    generator = torch.Generator().manual_seed(width)
    residual, delta, weight = (
        torch.randn(*size, generator=generator).to(device, dtype)
        for size in ((tokens, width), (tokens, width), (width,))
    )
    total = residual + delta if added else residual.clone()
    output = add_norm(residual, delta if added else None, weight, 1e-5)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(residual, total, atol=tolerance, rtol=tolerance)
    expected = torch.rms_norm(residual.double(), (width,), weight.double(), 1e-5)
    torch.testing.assert_close(output.double(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("tokens", "inner"), [(0, 8), (1, 1), (3, 1024), (2, 1500)])
def test_equals_silu_times_up(device, dtype, tokens, inner):
    """SiLU of the first half times the second half."""
    from lmtool.inference.engine.cuda.kernels.elementwise import silu_mul

    generator = torch.Generator().manual_seed(inner)
    gate_up = (torch.randn(tokens, 2 * inner, generator=generator) * 4).to(device, dtype)
    gate, up = gate_up.double().chunk(2, dim=-1)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    expected = torch.nn.functional.silu(gate) * up
    torch.testing.assert_close(silu_mul(gate_up).double(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("kv_heads", "size", "value_size"), [(1, 64, 64), (3, 80, 80), (2, 128, 96), (2, 256, 256)])
def test_every_token_goes_to_its_slot(device, kv_heads, size, value_size):
    """A token lands in its slot alone; padding, by a negative slot or behind the slots, lands nowhere."""
    from lmtool.inference.engine.cuda.kernels.elementwise import kv_write

    generator = torch.Generator().manual_seed(size)
    key = torch.randn(kv_heads, 7, size, generator=generator).to(device).transpose(0, 1)
    value = torch.randn(7, kv_heads, value_size, generator=generator).to(device)
    keys = torch.zeros(6, 16, kv_heads, size, device=device)
    values = torch.zeros(6, 16, kv_heads, value_size, device=device)
    slots = [16, 31, 95, -1, 32, 47]
    kv_write(key, value, keys, values, torch.tensor(slots, device=device))
    for token, slot in enumerate(slots):
        if slot >= 0:
            assert torch.equal(keys.flatten(0, 1)[slot], key[token])
            assert torch.equal(values.flatten(0, 1)[slot], value[token])
    stored = {slot for slot in slots if slot >= 0}
    empty = [slot for slot in range(96) if slot not in stored]
    assert not keys.flatten(0, 1)[empty].any()
    assert not values.flatten(0, 1)[empty].any()


def test_no_tokens(device):
    """No slots store nothing."""
    from lmtool.inference.engine.cuda.kernels.elementwise import kv_write

    keys, tokens = torch.zeros(2, 16, 1, 64, device=device), torch.ones(3, 1, 64, device=device)
    kv_write(tokens, tokens, keys, keys, torch.empty(0, dtype=torch.int64, device=device))
    assert not keys.any()


def test_stored_as_e4m3(device):
    """With scales, numbers are divided by their head's, rounded to nearest as torch does, and at most 448."""
    from lmtool.inference.engine.cuda.kernels.elementwise import kv_write

    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int32).short().view(torch.bfloat16)
    key = numbers[numbers.float().abs() < 1e30][: 450 * 128].view(450, 2, 64).to(device)
    pages = torch.zeros(32, 16, 2, 64, dtype=torch.uint8, device=device)
    others, slots = torch.zeros_like(pages), torch.arange(450, device=device)
    scales = torch.tensor([[0.5, 4.0], [1.0, 1.0]], device=device)
    kv_write(key, key, pages, others, slots, scales)
    for stored, scale in zip((pages, others), scales, strict=True):
        expected = (key.float() / scale[:, None]).clamp(-448, 448).to(torch.float8_e4m3fn)
        assert torch.equal(stored.flatten(0, 1)[:450], expected.view(torch.uint8))


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
    from lmtool.inference.engine.cuda.kernels.elementwise import rotate_and_store

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


def test_rotated_keys_are_stored_as_e4m3(device, dtype):
    """With scales, what is stored is what is stored without them, divided by its head's and rounded; queries stay."""
    from lmtool.inference.engine.cuda.kernels.elementwise import rotate_and_store

    generator = torch.Generator().manual_seed(0)
    projected = torch.randn(5, 8, 64, generator=generator).to(device, dtype)
    angles = torch.rand(100, 32, generator=generator).to(device)
    positions, slots = torch.tensor([[0, 1, 17, 99, 3], [16, 33, 20, 47, -1]], device=device)
    scales = torch.tensor([[0.5, 4.0], [1.0, 0.25]], device=device)
    queries, kept = [], []
    for stored, own in ((torch.float32, None), (torch.uint8, scales)):
        query = torch.empty(5, 4, 64, device=device, dtype=dtype)
        pages = torch.zeros(2, 3, 16, 2, 64, device=device, dtype=stored)
        rotate_and_store(projected, query, *pages, positions, slots, angles.cos(), angles.sin(), None, EPS, own)
        queries.append(query)
        kept.append(pages.flatten(1, 2))
    assert torch.equal(*queries)
    expected = (kept[0] / scales[:, None, :, None]).clamp(-448, 448).to(torch.float8_e4m3fn)
    assert torch.equal(kept[1], expected.view(torch.uint8))
