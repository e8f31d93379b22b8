"""What is said of an environment that cannot run a vLLM worker, before anything is started."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lmtool.cli.vllm.environment import check, probe
from lmtool.errors import ResourceError

if TYPE_CHECKING:
    from tests.conftest import Run


def program(path: Path, script: str) -> str:
    """A program that is no Python, or says that it is another one."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_one_that_has_everything(foreign_python: str) -> None:
    """Nothing is said, and vLLM is not imported for it; what lies in the working folder does not count."""
    check(foreign_python)
    found = probe(foreign_python)
    assert (found.version[:2], found.missing) == (sys.version_info[:2], [])


def test_a_folder_of_that_name_is_no_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the one in which a clone of its repository lies."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    assert "vllm" in probe(sys.executable).missing


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo '[[3, 8, 1], []]'", "is Python 3.8.1, and workers need 3.11 or newer"),
        ('echo \'[[3, 13, 0], ["vllm", "msgspec"]]\'', "there is no vLLM in the environment of"),
        ('echo \'[[3, 13, 0], ["msgspec", "jinja2"]]\'', "lacks what vLLM itself requires: msgspec jinja2"),
        ("echo hello", "its answer makes no sense"),
        ("echo bad option >&2; exit 3", "does not run as a Python: bad option"),
        ("exit 3", "does not run as a Python: exit status 3"),
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
        (("--backend-python", "/no/python"), "--backend-python '/no/python' is no program"),
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
