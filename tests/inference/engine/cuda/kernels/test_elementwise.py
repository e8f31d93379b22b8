"""Fused operations on hidden states."""

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


pytestmark_silu_mul = pytest.mark.cuda


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
