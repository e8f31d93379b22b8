"""What another Python says of its environment."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lmtool.core.errors import ResourceError
from lmtool.net.subprocesses.foreign_python import probe


def program(path: Path, script: str) -> str:
    """A program that is no Python, or says that it is another one."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder in the working folder is no module of its, such as one with a clone of vLLM's repository."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    found = probe(sys.executable, ["torch", "vllm", "no_such_module"], "")
    assert (found.version[:2], found.missing) == (sys.version_info[:2], ["vllm", "no_such_module"])


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo hello", "its answer makes no sense"),
        ("echo bad option >&2; exit 3", "bad option"),
        ("exit 3", "status 3"),
    ],
)
def test_what_is_no_python(tmp_path: Path, script: str, reason: str) -> None:
    """Is refused with its own last words."""
    with pytest.raises(ResourceError, match=f"does not run as a Python: .*{reason}") as refused:
        probe(program(tmp_path / "python", script), [], "use a Python")
    assert refused.value.hints == ("use a Python",)
