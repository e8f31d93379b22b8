"""What torch says it can compute on."""

from __future__ import annotations

import pytest
import torch

from lmtool.engine.devices import describe, describe_auto, describe_kernels
from lmtool.engine.numerics import computes_bfloat16
from lmtool.errors import ResourceError
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


def test_the_kernels_and_their_compiler(kernels) -> None:
    """Named with the instructions that they use; without a compiler the reason is told."""
    assert describe_kernels().startswith(f"C kernels ({kernels.instructions}), compiled with /")
    with no_compiler(), pytest.raises(ResourceError, match="no C compiler found"):
        describe_kernels()


def test_what_auto_means(kernels) -> None:
    """The dtype of this processor and what computes it, with a C compiler and without."""
    dtype = "bfloat16" if computes_bfloat16() else "float32"
    assert describe_auto().startswith(f"auto is {dtype} by {kernels.name}; architectures other than GPT2, Llama")
    with no_compiler():
        assert describe_auto().startswith((f"auto is {dtype} by oneDNN", f"auto is {dtype} by torch"))
