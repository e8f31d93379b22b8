"""The tests marked `cuda` once more, on CPU: in Triton's interpreter, and the kernels compiled for GPUs.

LMTOOL_TRITON_PYTHON names the Python of an environment with torch, triton, transformers and what lmtool and its tests
need; numpy must be older than 2.4 for the interpreter.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

PYTHON = Path(os.environ.get("LMTOOL_TRITON_PYTHON", ""))
ROOT = Path(__file__).parents[4]
COMPILE = str(Path(__file__).with_name("compile_kernels.py"))

pytestmark = [
    pytest.mark.peer,
    pytest.mark.skipif(not PYTHON.is_file(), reason="LMTOOL_TRITON_PYTHON does not name a Python with Triton"),
]


def ran(*words, **variables):
    """What a command of that environment says, run to its end."""
    done = subprocess.run(
        [str(PYTHON), *words],
        cwd=ROOT,
        env={**os.environ, **variables, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_in_the_interpreter():
    """All of them pass; those that need a real GPU are skipped."""
    said = ran(
        "-m",
        "pytest",
        "tests/inference/engine/cuda",
        "-m",
        "cuda",
        "-q",
        "-p",
        "no:cacheprovider",
        TRITON_INTERPRET="1",
    )
    assert int(re.findall(r"(\d+) passed", said)[0]) > 100


SHARED = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
"""Bytes of shared memory that a block may use, by compute capability."""
REGISTERS = 65536
"""Of a multiprocessor, for all threads of its blocks."""
MODELS = 7
STACK = 40
"""Most bytes of a thread that lie in memory instead of registers. `ptxas` keeps a kernel to 80, 128 or 255 registers so
that more blocks run at once, and moves some numbers that the loop over keys does not need out of the way for that."""


_KERNEL = r"^@triton\.jit(?:\([^()]*\))?(?:\s*#.*)?\ndef (_\w+)\("
"""Where a kernel is defined: its name."""


@pytest.fixture(scope="module")
def kernels():
    """What each kernel needs, for every model, dtype and GPU."""
    return [json.loads(line) for line in ran(COMPILE, PYTHONPATH=str(ROOT)).splitlines()]


def test_every_kernel_is_compiled(kernels):
    """For each GPU and dtype, all kernels that there are, for all models."""
    files = (ROOT / "lmtool/inference/engine/cuda/kernels").glob("*.py")
    texts = [file.read_text() for file in files]
    defined = {name for text in texts for name in re.findall(_KERNEL, text, re.MULTILINE)}
    launched = {name for text in texts for name in re.findall(r"^    +(_\w+)\[", text, re.MULTILINE)}
    assert {row["kernel"] for row in kernels} >= defined & launched > {"_decode", "_prefill"}
    assert len({(row["target"], row["model"], row["dtype"]) for row in kernels}) == 3 * MODELS * 3


def test_every_kernel_can_be_launched(kernels):
    """Shared memory and registers of a block are within what the GPU has."""
    for row in kernels:
        assert row["shared"] <= SHARED[row["target"]], row
        assert row["registers"] * row["warps"] * 32 <= REGISTERS, row


def test_registers_are_not_spilled(kernels):
    """What a thread computes with is in registers."""
    assert [row for row in kernels if row["stack"] > STACK] == []


def test_tensor_cores_and_wide_loads(kernels):
    """Attention and products in half precision run on tensor cores, and read 16 bytes at once wherever they can."""
    for row in kernels:
        if row["kernel"] in {"_decode", "_prefill", "_matmul"}:
            assert row["loads_16"] > 0, row
            assert (row["tensor_cores"] > 0) == (row["dtype"] != "float32"), row


def test_steps_of_any_size_are_compiled_once():
    """What changes from step to step (rows, tables, alignment) needs no compilation while a model is served."""
    few, many = (json.loads(ran(COMPILE, "--specialisations", rounds, PYTHONPATH=str(ROOT))) for rounds in "19")
    assert few == many
    # keys and values as they are and in eight bits; two choices of tiles; with a residual and without; with a gate and
    # without; small and large;
    # with top-p and the like, and without
    twice = dict.fromkeys(("_add_norm", "_prefill", "_rotate", "_row_product", "_sample"), 2)
    assert {name: count for name, count in many.items() if count > 1} == twice | {"_decode": 4, "_matmul": 4}


def test_nothing_is_compiled_while_serving():
    """Once a runner is prepared, random steps of any kind, captured or not, find all kernels compiled."""
    said = ran(str(Path(__file__).with_name("serving_compiles.py")), PYTHONPATH=str(ROOT))
    runners = [json.loads(line) for line in said.splitlines()]
    assert [runner["deterministic"] for runner in runners] == [False, True]
    assert runners[0]["prepared"] > 5
    assert [runner["afterwards"] for runner in runners] == [[], []]
