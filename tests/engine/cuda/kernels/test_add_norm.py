"""Residual stream and its RMS norm."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize(("tokens", "width"), [(0, 32), (1, 32), (3, 100), (2, 4096)])
@pytest.mark.parametrize("added", [False, True])
def test_equals_two_steps(device, dtype, tokens, width, added):
    """The residual stream grows by what is added; the norm is that of the rounded sum."""
    from lmtool.engine.cuda.kernels.add_norm import add_norm

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
