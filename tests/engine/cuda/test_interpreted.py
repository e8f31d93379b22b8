"""The tests marked `cuda` once more, on CPU: in Triton's interpreter, and the kernels compiled for a GPU.

LMTOOL_TRITON_PYTHON names the Python of an environment with torch, triton, transformers and what lmtool and its tests
need; numpy must be older than 2.4 for the interpreter.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

PYTHON = Path(os.environ.get("LMTOOL_TRITON_PYTHON", ""))
ROOT = Path(__file__).parents[3]

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
    said = ran("-m", "pytest", "tests/engine/cuda", "-m", "cuda", "-q", "-p", "no:cacheprovider", TRITON_INTERPRET="1")
    assert int(re.findall(r"(\d+) passed", said)[0]) > 100


def test_kernels_compile():
    """Each kernel compiles for compute capability 9.0, with no more shared memory than such a GPU has for a block."""
    said = ran(str(Path(__file__).with_name("compile_kernels.py")), PYTHONPATH=str(ROOT))
    kernels = dict(re.findall(r"(\w+) (\d+)", said))
    files = (ROOT / "lmtool/engine/cuda/kernels").glob("*.py")
    launched = {name for file in files for name in re.findall(r"^ +(\w+)\[.+\]\(", file.read_text(), re.MULTILINE)}
    assert set(kernels) == launched
    assert max(map(int, kernels.values())) <= 227 * 1024
