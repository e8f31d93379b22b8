"""Tensors on their way to the host."""

from __future__ import annotations

import pytest
import torch

from lmtool.engine.cuda.readback import arrival, to_host


def test_on_cpu_nothing_is_copied():
    """The tensor is there already."""
    tensor = torch.arange(3)
    assert to_host(tensor).data_ptr() == tensor.data_ptr()
    arrival(tensor.device)()


@pytest.mark.cuda
def test_from_a_gpu(gpu):
    """The copy is queued behind what the GPU computes, waits for nothing, and is whole after its arrival."""
    tensor = torch.zeros(1000, device=gpu)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(50):
            tensor += 1
        copy = to_host(tensor)
        wait = arrival(gpu)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    wait()
    assert copy.is_pinned()
    assert copy.tolist() == [50.0] * 1000
