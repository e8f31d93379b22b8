"""The gate of a gated MLP."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize(("tokens", "inner"), [(0, 8), (1, 1), (3, 1024), (2, 1500)])
def test_equals_silu_times_up(device, dtype, tokens, inner):
    """SiLU of the first half times the second half."""
    from lmtool.engine.cuda.kernels.silu_mul import silu_mul

    generator = torch.Generator().manual_seed(inner)
    gate_up = (torch.randn(tokens, 2 * inner, generator=generator) * 4).to(device, dtype)
    gate, up = gate_up.double().chunk(2, dim=-1)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    expected = torch.nn.functional.silu(gate) * up
    torch.testing.assert_close(silu_mul(gate_up).double(), expected, atol=tolerance, rtol=tolerance)
