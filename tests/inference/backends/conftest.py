"""Other engines run the same requests as ours."""

from __future__ import annotations

import sysconfig
import venv
from pathlib import Path

import pytest

from tests.inference.engine.conftest import _one_thread, run

__all__ = ["_one_thread", "run"]


@pytest.fixture(scope="session")
def foreign_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Python of an environment that has the stand-in and all that workers need, and a broken lmtool of its own."""
    folder = tmp_path_factory.mktemp("foreign")
    venv.EnvBuilder(symlinks=True).create(folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    paths = (Path(__file__).parent / "vllm" / "stand_in", sysconfig.get_paths()["purelib"])
    (packages / "others.pth").write_text("".join(f"{path}\n" for path in paths))
    (packages / "lmtool.py").write_text("raise ImportError('this is not the lmtool that serves')")
    return str(folder / "bin" / "python")
