"""The C kernels on ARM, emulated: the right numbers, and the same bits in any batch.

    apt install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
    python -m pytest -m peer tests/peer/test_arm.py

Any other cross compiler may be named by LMTOOL_ARM_CC, such as clang's for Apple's processors. Nothing is timed.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

PROCESSORS = {
    "-march=armv8-a": "NEON",
    "-march=armv8.2-a+dotprod": "NEON",  # Apple M1, Graviton 2
    "-mcpu=neoverse-v1": "NEON-BF16",  # Graviton 3; Apple M2 has the same for these kernels
}
"""Flags of the compiler to what the kernels then say that they use."""


@pytest.mark.peer
@pytest.mark.parametrize("processor", PROCESSORS)
def test_numbers_and_bits(processor: str, tmp_path: Path) -> None:
    """Products in every format and shape, and a layer with its attention, against plain sums in double."""
    compiler = shlex.split(os.environ.get("LMTOOL_ARM_CC", "aarch64-linux-gnu-gcc"))
    emulator = shutil.which("qemu-aarch64")
    if emulator is None or shutil.which(compiler[0]) is None:
        pytest.skip(
            "needs a cross compiler and qemu: apt install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"
        )
    program = tmp_path / "check"
    flags = ["-O2", "-std=gnu11", processor, "-static", f"-I{ROOT / 'lmtool/inference/engine/cpu'}"]
    source = ROOT / "tests/inference/engine/cpu/check_kernels.c"
    subprocess.run([*compiler, *flags, source, "-o", program, "-lm"], check=True, timeout=120)
    done = subprocess.run([emulator, "-cpu", "max", program], capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout) == (0, PROCESSORS[processor] + "\n")
