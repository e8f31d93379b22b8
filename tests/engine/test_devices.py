"""What torch says it can compute on."""

from __future__ import annotations

import torch

from lmtool.engine.cpu.library import kernels
from lmtool.engine.devices import describe, kernel_compiler
from tests.engine.conftest import no_compiler


def test_library_processor_and_each_gpu_are_described() -> None:
    """One line each, in this order; without a GPU one line says so."""
    names = [name for name, _ in describe()]
    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else ["gpu"]
    assert names == ["torch", "cpu", *gpus]


def test_versions_and_threads_are_told() -> None:
    """What matters for a report: the versions that were tested together, and how many threads compute."""
    found = dict(describe())
    assert torch.__version__ in found["torch"]
    assert f"{torch.get_num_threads()} threads" in found["cpu"]


def test_the_compiler_of_the_kernels() -> None:
    """Told where it has made them."""
    assert (kernel_compiler() is None) == (kernels() is None)
    with no_compiler():
        assert kernel_compiler() is None
