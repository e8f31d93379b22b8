"""Keys and values into their pages."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize(("kv_heads", "size", "value_size"), [(1, 64, 64), (3, 80, 80), (2, 128, 96), (2, 256, 256)])
def test_every_token_goes_to_its_slot(device, kv_heads, size, value_size):
    """A token lands in its slot alone; padding, by a negative slot or behind the slots, lands nowhere."""
    from lmtool.engine.cuda.kernels.kv_write import kv_write

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
    from lmtool.engine.cuda.kernels.kv_write import kv_write

    keys, tokens = torch.zeros(2, 16, 1, 64, device=device), torch.ones(3, 1, 64, device=device)
    kv_write(tokens, tokens, keys, keys, torch.empty(0, dtype=torch.int64, device=device))
    assert not keys.any()
