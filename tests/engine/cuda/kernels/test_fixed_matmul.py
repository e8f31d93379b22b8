"""The matrix product with one order of summing."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize(("rows", "size", "outputs"), [(0, 64, 64), (1, 32, 101), (65, 100, 64), (3, 768, 130)])
@pytest.mark.parametrize("biased", [False, True])
def test_equals_linear(device, dtype, rows, size, outputs, biased):
    """It is `linear`."""
    from lmtool.engine.cuda.kernels.fixed_matmul import fixed_matmul

    generator = torch.Generator().manual_seed(size)
    inputs, weight, bias = (
        torch.randn(*shape, generator=generator).to(device, dtype)
        for shape in ((rows, size), (outputs, size), (outputs,))
    )
    result = fixed_matmul(inputs, weight, bias if biased else None)
    expected = inputs.double() @ weight.double().T + (bias.double() if biased else 0)
    tolerance = 1e-4 if dtype == torch.float32 else 0.25
    torch.testing.assert_close(result.double(), expected, atol=tolerance, rtol=2e-2)


def test_rows_do_not_depend_on_each_other(device):
    """A row has the same bits alone and anywhere in any batch."""
    from lmtool.engine.cuda.kernels.fixed_matmul import fixed_matmul

    generator = torch.Generator().manual_seed(0)
    inputs, weight = (torch.randn(*shape, generator=generator).to(device) for shape in ((70, 200), (66, 200)))
    whole = fixed_matmul(inputs, weight, None)
    for row in (0, 1, 63, 64, 69):
        assert torch.equal(fixed_matmul(inputs[row : row + 1], weight, None)[0], whole[row])
    assert torch.equal(fixed_matmul(inputs.flip(0), weight, None), whole.flip(0))
