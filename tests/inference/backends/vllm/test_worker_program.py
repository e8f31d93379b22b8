"""The start of a worker's processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lmtool.serving import vllm_worker as worker

PROGRAM = f"""
import os, runpy, subprocess, sys
from pathlib import Path
sys.path.insert(0, {str(Path(worker.__file__).parent)!r})
program = runpy.run_path({worker.__file__!r})
program["expose_package"](Path(sys.argv[1]))
import lmtool.inference.backends.vllm.shared_directory
print(lmtool.__file__)
print(os.environ["PYTHONPATH"])
print([entry for entry in sys.path if entry.endswith("vllm")])
print(os.environ["RAY_JOB_CONFIG_JSON_ENV_VAR"])
"""


def test_this_package_comes_first(tmp_path: Path, foreign_python: str) -> None:
    """Before another lmtool of the environment; the modules beside the program are not at hand by their last names."""
    done = subprocess.run(
        [foreign_python, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=True, cwd=tmp_path,
        env={"PYTHONPATH": "/elsewhere", "RAY_JOB_CONFIG_JSON_ENV_VAR": '{"runtime_env": {"env_vars": {"A": "b"}}}'},
    )  # fmt: skip
    packages = tmp_path / "packages"
    *lines, job = done.stdout.splitlines()
    assert lines == [str(packages / "lmtool/__init__.py"), f"{packages}:/elsewhere", "[]"]
    package = str(Path(worker.__file__).parents[1])
    assert json.loads(job) == {"runtime_env": {"env_vars": {"A": "b"}, "py_modules": [package]}}


def test_the_shared_folder_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket has to fit in, and the name of a folder for temporary files may be long."""
    long = tmp_path / ("x" * 80)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    folder = worker.make_directory()
    assert len(str(folder / "alive")) < 104
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.rmdir()


def test_the_worker_brings_no_torch() -> None:
    """That is vLLM's to import: a worker whose engine cannot be imported says so in a tenth of the time."""
    code = (
        "import lmtool.inference.backends.vllm.model, lmtool.serving.vllm_worker_service, sys\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
