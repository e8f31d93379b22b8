"""Which dtype a model gets and what computes it, for every kind of machine, and the words for this one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lmtool.core.errors import ResourceError
from lmtool.inference.engine.batch_invariant import packing_works
from lmtool.inference.engine.cpu.library import kernels, use_kernels
from lmtool.inference.engine.decoder import decoder_config
from lmtool.inference.engine.hardware import (
    Machine,
    choose_dtype,
    computes_bfloat16,
    describe_auto_dtype,
    describe_devices,
    describe_kernels,
    kernel_dtype,
    this_machine,
)
from tests.inference.engine.conftest import no_compiler

F32, BF16, F16, INT8 = torch.float32, torch.bfloat16, torch.float16, torch.int8
SMALL, LARGE = 199_999_999, 200_000_000
"""Bytes of float32 checkpoints: just fewer than 50 million parameters, and as many."""

CPU = {"both": Machine("cpu", True, True), "bfloat16": Machine("cpu", True, False)}
CPU |= {"compiler": Machine("cpu", False, True), "neither": Machine("cpu", False, False)}
"""A processor with bfloat16 in hardware and a C compiler, with one of them, or with neither."""
CUDA = Machine("cuda", True, False)


@pytest.fixture(scope="module")
def shape(reference):
    """A model that the C kernels compute."""
    return decoder_config(reference("gpt2").config.to_dict())


@pytest.mark.parametrize("way", CPU)
@pytest.mark.parametrize(
    ("stored", "size", "with_bfloat16", "without"),
    [
        (F32, SMALL, F32, F32),
        (F32, LARGE, BF16, F32),
        (F32, 0, BF16, F32),
        (None, LARGE, BF16, F32),
        (BF16, 1000, BF16, F32),
        (BF16, LARGE, BF16, F32),
        (F16, 1000, BF16, F32),
    ],
)
@pytest.mark.parametrize("computed", [True, False])
def test_auto(way, stored, size, with_bfloat16, without, computed, shape):
    """On CPU bfloat16 where it is in hardware, but for small float32 checkpoints; compiled where that is possible."""
    machine = CPU[way]
    dtype = choose_dtype("auto", stored, size, machine)
    assert dtype == (with_bfloat16 if machine.bfloat16 else without)
    packed = kernel_dtype(dtype, None, shape if computed else None, machine)
    assert packed == (dtype if machine.kernels and computed else None)


@pytest.mark.parametrize(("stored", "chosen"), [(F32, BF16), (F16, F16), (BF16, BF16), (None, BF16)])
def test_auto_on_a_gpu(stored, chosen, shape):
    """The checkpoint's own dtype, bfloat16 for float32; no kernels in C."""
    assert choose_dtype("auto", stored, SMALL, CUDA) == chosen
    assert kernel_dtype(chosen, None, shape, CUDA) is None


@pytest.mark.parametrize("machine", [*CPU.values(), CUDA])
@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_a_dtype_that_was_named(dtype, machine, shape):
    """It is taken, by the C kernels if they have it."""
    assert choose_dtype(str(dtype).removeprefix("torch."), BF16, SMALL, machine) == dtype
    assert kernel_dtype(dtype, None, shape, machine) == (dtype if machine.kernels and dtype != F16 else None)


@pytest.mark.parametrize("machine", [*CPU.values(), CUDA])
@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_int8(dtype, machine, shape):
    """The C kernels alone have it, whatever was loaded, and for any number of inputs."""
    for inputs in (shape.intermediate, 50):
        found = kernel_dtype(dtype, "int8", replace(shape, intermediate=inputs), machine)
        assert found == (INT8 if machine.kernels else None)


@pytest.mark.parametrize("machine", [*CPU.values(), CUDA])
def test_int4(machine, shape):
    """The same of int4."""
    int4 = torch.int4 if machine.kernels else None
    assert kernel_dtype(BF16, "int4", replace(shape, intermediate=50), machine) == int4
    assert kernel_dtype(BF16, "int4", replace(shape, hidden=50), machine) == int4


def test_this_machine():
    """What is true here; a GPU and `--kernels none` have no use for kernels in C."""
    there = kernels() is not None
    assert this_machine(torch.device("cpu")) == Machine("cpu", computes_bfloat16(), there)
    assert not this_machine(torch.device("cuda")).kernels
    use_kernels("none")
    assert not this_machine(torch.device("cpu")).kernels
    use_kernels("auto")
    assert this_machine(torch.device("cpu")).kernels == there


def test_library_processor_and_each_gpu_are_described() -> None:
    """One line each, in this order; without a GPU one line says so."""
    names = [name for name, _ in describe_devices()]
    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else ["gpu"]
    assert names == ["torch", "cpu", *gpus]


def test_versions_and_threads_are_told() -> None:
    """What matters for a report: the versions that were tested together, and how many threads compute."""
    found = dict(describe_devices())
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
    assert describe_auto_dtype().startswith(f"auto is {dtype} by {kernels.name}; architectures other than GPT2, Llama")
    with no_compiler():
        alone = dtype if packing_works(torch.bfloat16) else "float32"
        assert describe_auto_dtype().startswith((f"auto is {alone} by oneDNN", f"auto is {alone} by torch"))
