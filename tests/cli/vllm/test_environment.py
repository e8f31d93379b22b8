"""What is said of an environment that cannot run a vLLM worker, before anything is started."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lmtool.cli.vllm.environment import check
from lmtool.errors import ResourceError
from tests.subprocesses.test_foreign_python import program

if TYPE_CHECKING:
    from tests.conftest import Run


def test_one_that_has_everything(foreign_python: str) -> None:
    """Nothing is said."""
    check(foreign_python)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo '[[3, 8, 1], []]'", "is Python 3.8.1, and workers need 3.11 or newer"),
        ('echo \'[[3, 13, 0], ["vllm", "msgspec"]]\'', "there is no vLLM in the environment of"),
        ('echo \'[[3, 13, 0], ["msgspec", "jinja2"]]\'', "lacks what vLLM itself requires: msgspec jinja2"),
    ],
)
def test_others(tmp_path: Path, script: str, message: str) -> None:
    """Each by its fault, with what to do."""
    with pytest.raises(ResourceError, match=message.replace("[", r"\[")) as refused:
        check(program(tmp_path / "python", script))
    assert "pip install" in refused.value.hints[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "--backend vllm needs the Python of an environment that has vLLM"),
        (("--backend-python", "/no/python"), "'/no/python' does not run as a Python: No such file"),
        (("--backend-python", shutil.which("env") or ""), "does not run as a Python"),
        (("--backend-python", sys.executable), "there is no vLLM in the environment of"),
    ],
)
def test_a_server(lmtool: Run, words: tuple[str, ...], message: str) -> None:
    """Exit status 8 with the install line, and no port is opened."""
    done = lmtool("serve", "--backend", "vllm", *words, "--port", "0")
    assert (done.returncode, done.stdout) == (8, "")
    assert message in done.stderr
    assert "pip install vllm" in done.stderr
