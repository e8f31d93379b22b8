"""The C kernels as they are compiled for processors with fewer instructions: numbers and bits, without Python."""

from __future__ import annotations

import os
import platform
import subprocess

import pytest

from lmtool.inference.engine.cpu.library import find_compiler
from tests.conftest import ROOT

PROCESSORS = {"-march=x86-64": "plain C", "-march=x86-64-v3": "AVX2"}
"""Flags of the compiler to what the kernels then say that they use."""


@pytest.mark.skipif(find_compiler() is None, reason="no C compiler here")
@pytest.mark.skipif(platform.machine() not in {"x86_64", "AMD64"}, reason="another kind of processor")
@pytest.mark.parametrize("processor", PROCESSORS)
def test_numbers_and_bits(processor, tmp_path):
    """Products in every format, a layer with either kind of keys and values, and all numbers of float16."""
    program, source = tmp_path / "check", ROOT / "tests/inference/engine/cpu/check_kernels.c"
    flags = ["-O2", "-std=gnu11", processor, f"-I{ROOT / 'lmtool/inference/engine/cpu'}"]
    subprocess.run([find_compiler(), *flags, os.fspath(source), "-o", program, "-lm"], check=True, timeout=120)
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, PROCESSORS[processor] + "\n")
