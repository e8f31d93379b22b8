"""Tensors between host and device."""

from __future__ import annotations

import warnings

import pytest
import torch

from lmtool.inference.engine.device import arrival, put_rows, select_rows, to_device, to_host
from tests.inference.engine.cuda.conftest import forbidden_syncs

TABLE = torch.arange(12.0).view(4, 3)


@pytest.mark.parametrize("members", [[0, 1, 2, 3], [1, 2], [3], [2, 0], [0, 2, 1, 3]])
def test_taken_and_put_back(members):
    """Rows come in the order asked for, and go back to where they came from."""
    taken = select_rows(TABLE, members)
    assert taken.tolist() == [TABLE[member].tolist() for member in members]
    copied = torch.zeros(4, 3)
    put_rows(copied, members, taken)
    assert copied.tolist() == [TABLE[row].tolist() if row in members else [0.0] * 3 for row in range(4)]


def test_rows_in_a_row_are_no_copy():
    """What follows each other is a view."""
    assert select_rows(TABLE, [1, 2]).data_ptr() == TABLE[1].data_ptr()


def test_to_device():
    """Plain ints become a tensor of the requested dtype."""
    assert to_device([1, 2], torch.int32, torch.device("cpu")).dtype == torch.int32


def test_on_cpu_nothing_is_copied():
    """The tensor is there already."""
    tensor = torch.arange(3)
    assert to_host(tensor).data_ptr() == tensor.data_ptr()
    arrival(tensor.device)()


@pytest.mark.cuda
def test_from_a_gpu(gpu):
    """The copy is queued behind what the GPU computes, waits for nothing, and is whole after its arrival."""
    tensor = torch.zeros(1000, device=gpu)
    with forbidden_syncs():
        for _ in range(50):
            tensor += 1
        copy = to_host(tensor)
        wait = arrival(gpu)
    wait()
    assert copy.is_pinned()
    assert copy.tolist() == [50.0] * 1000


def test_the_watch_for_waiting_ends(monkeypatch):
    """Torch's warning of its debug mode is no error, and the mode is off again whatever happens under it."""
    modes = []

    def set_mode(mode):
        modes.append(mode)  # as in torch, before the warning is raised
        warnings.warn("Synchronization debug mode is a prototype feature and does not detect all", stacklevel=2)

    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", set_mode)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeError, match="a synchronizing operation"), forbidden_syncs():
            raise RuntimeError("called a synchronizing operation")
    assert modes == ["error", "default"]
