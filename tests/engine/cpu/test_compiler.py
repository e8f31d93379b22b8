"""The kernels are compiled once, kept for the next time, and done without where that cannot be."""

from __future__ import annotations

import os

import pytest

from lmtool.engine.cpu.compiler import cache_folder, compiled, find_compiler
from lmtool.errors import ResourceError


@pytest.mark.skipif(find_compiler() is None, reason="no C compiler here")
def test_compiled_once(tmp_path):
    """The second call takes the library of the first; nothing else is left behind."""
    library = compiled(tmp_path)
    written = library.stat().st_mtime_ns
    assert compiled(tmp_path) == library
    assert library.stat().st_mtime_ns == written
    assert list(tmp_path.iterdir()) == [library]


@pytest.mark.skipif(find_compiler() is None, reason="no C compiler here")
def test_another_compiler_of_that_name(tmp_path, monkeypatch):
    """It may know more of the processor than the one before it: its library is another."""
    compiler = tmp_path / "cc"
    compiler.write_text(f'#!/bin/sh\nexec {find_compiler()} "$@"\n', encoding="ascii")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    before = compiled(tmp_path)
    compiler.write_text(compiler.read_text(encoding="ascii") + "# newer\n", encoding="ascii")
    assert compiled(tmp_path) != before


def test_no_compiler(tmp_path, monkeypatch):
    """Without a compiler there is no library, and the error says what to install."""
    monkeypatch.setenv("CC", str(tmp_path / "none"))
    with pytest.raises(ResourceError, match="no C compiler found") as caught:
        compiled(tmp_path)
    assert "gcc" in caught.value.hints[0]


def test_a_compiler_that_fails(tmp_path, monkeypatch):
    """What it says is told; there is no library, and nothing half-done is left behind."""
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho out of order >&2\nexit 1\n", encoding="ascii")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    with pytest.raises(ResourceError, match="out of order"):
        compiled(tmp_path)
    assert list(tmp_path.iterdir()) == [broken]


def test_a_folder_of_everybody(tmp_path, monkeypatch):
    """A library from a folder where others can write is not trusted."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = cache_folder()
    assert folder.stat().st_uid == os.getuid()
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match="written by others"):
        cache_folder()
    with pytest.raises(ResourceError, match="written by others"):
        compiled()
