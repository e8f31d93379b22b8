"""The C kernels' own tests with AddressSanitizer and UndefinedBehaviorSanitizer: every access and every overflow."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMPILER = '#!/bin/sh\nexec {} -g -fsanitize=address,undefined -fno-sanitize-recover=undefined "$@"\n'


@pytest.mark.peer
def test_no_access_out_of_bounds(tmp_path: Path) -> None:
    """Neither sanitizer ends the process, over all formats, instructions and numbers of rows that the tests cover."""
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("gcc is not installed")
    compiler = tmp_path / "cc"
    compiler.write_text(COMPILER.format(gcc))
    compiler.chmod(0o755)
    libraries = [
        subprocess.run([gcc, f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in ("libasan.so", "libstdc++.so")
    ]
    env = {
        **os.environ,
        "CC": str(compiler),
        "XDG_CACHE_HOME": str(tmp_path),
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python and torch keep what they allocated
    }
    tests = "tests/inference/engine/cpu"
    words = [sys.executable, "-m", "pytest", "-q", tests, "--deselect", f"{tests}/test_library.py"]
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
