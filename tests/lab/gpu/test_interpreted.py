"""Sections on the path of a GPU, its kernels in Triton's interpreter, by an environment with Triton."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

PYTHON = Path(os.environ.get("LMTOOL_TRITON_PYTHON", ""))
ROOT = Path(__file__).parents[3]

pytestmark = [
    pytest.mark.peer,
    pytest.mark.skipif(not PYTHON.is_file(), reason="LMTOOL_TRITON_PYTHON does not name a Python with Triton"),
]


def test_graphs_and_kernels(tmp_path: Path) -> None:
    """The engine runs over pages with captured steps, which are replayed and profiled; all bits are equal."""
    file = tmp_path / "gpu.json"
    sections = ("load", "bits", "profile", "stages")
    words = ["-m", "tests.lab", "gpu", "--device", "cpu", "--only", ",".join(sections), "--json", str(file)]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([str(PYTHON), *words], env=environment, capture_output=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())["sections"]
    assert {name: found[name]["state"] for name in sections} == dict.fromkeys(sections, "done"), found
    assert found["load"]["runner"] == "CudaRunner"
    assert found["load"]["graphs"]["rows"] == 4
    equal = found["bits"]["equal"]
    assert equal.pop("cuBLAS product, float32") in {True, False}
    assert all(equal.values())
    assert [one["of_a_graph"] for one in found["profile"]["graphs"]] == [True, True]
    assert not [row for row in found["stages"]["rows"] if "error" in row]
