"""The C kernels: compiled, cached, chosen."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch.nn.functional import layer_norm, rms_norm

from lmtool.core.errors import ResourceError
from lmtool.inference.engine.cpu import library
from lmtool.inference.engine.cpu.library import (
    SOURCES,
    CLayer,
    CModel,
    CProduct,
    CStep,
    Kernels,
    address,
    cache_folder,
    compile_kernels,
    find_compiler,
)
from tests.inference.engine.conftest import no_compiler


@pytest.mark.parametrize("size", [8, 32, 77, 768])
@pytest.mark.parametrize("centred", [False, True])
def test_norm(kernels, size, centred):
    """RMS norm and layer norm of any width."""
    inputs = torch.randn(5, size, generator=torch.Generator().manual_seed(0)) + 0.5
    scale, bias, out = torch.randn(size), torch.randn(size) if centred else None, torch.empty(5, size)
    kernels.norm(address(inputs), address(scale), address(bias), 5, size, centred, 1e-5, address(out))
    expected = layer_norm(inputs, (size,), scale, bias, 1e-5) if centred else rms_norm(inputs, (size,), scale, 1e-5)
    torch.testing.assert_close(out, expected, atol=2e-6, rtol=2e-5)


class TestChoice:
    """`--kernels`."""

    @pytest.fixture(autouse=True)
    def _as_before(self):
        """Other tests decide for themselves."""
        yield
        library.use_kernels("auto")

    def test_none(self, kernels):
        """They are there, and nothing uses them."""
        library.use_kernels("none")
        assert library.kernels() is None
        library.use_kernels("auto")
        assert isinstance(library.kernels(), Kernels)

    def test_required(self, kernels):
        """Without a compiler that is an error, with what to do instead; else all is as under `auto`."""
        library.use_kernels("required")
        assert isinstance(library.kernels(), Kernels)
        with no_compiler(), pytest.raises(ResourceError, match="--kernels required: no C compiler found") as caught:
            library.use_kernels("required")
        assert "--kernels none" in caught.value.hints[-1]

    def test_a_library_that_cannot_be_loaded(self, tmp_path, monkeypatch):
        """Then there are none, and the reason is known."""
        (tmp_path / "broken.so").write_text("no library")
        monkeypatch.setattr(library, "compile_kernels", lambda: tmp_path / "broken.so")
        library.find_kernels.cache_clear()
        assert library.kernels() is None
        assert "cannot be loaded" in library.find_kernels().message
        library.find_kernels.cache_clear()


def test_structures():
    """Only integers, addresses and two floats: no hidden gaps between C and Python."""
    assert [ctypes.sizeof(kind) % 8 for kind in (CProduct, CLayer, CModel, CStep)] == [0] * 4
    assert ctypes.sizeof(CModel) == 8 * 11 + 2 * 4


def test_strided_tensors_have_no_address():
    """C sees memory as one piece."""
    with pytest.raises(AssertionError):
        address(torch.zeros(4, 4).t())
    assert address(None) is None


def quick_compiler(path, *lines):
    """Write a script to `path` that is the compiler without the optimizing, most of its time; `lines` go first."""
    path.write_text("\n".join(("#!/bin/sh", *lines, f'exec {find_compiler()} "$@" -O0', "")), encoding="ascii")
    path.chmod(0o755)
    return path


@pytest.mark.skipif(find_compiler() is None, reason="no C compiler here")
def test_compiled_once(tmp_path, monkeypatch):
    """The second call takes the library of the first; nothing else is left behind."""
    monkeypatch.setenv("CC", str(quick_compiler(tmp_path / "cc")))
    folder = tmp_path / "cache"
    folder.mkdir()
    library = compile_kernels(folder)
    written = library.stat().st_mtime_ns
    assert compile_kernels(folder) == library
    assert library.stat().st_mtime_ns == written
    assert list(folder.iterdir()) == [library]


@pytest.mark.skipif(find_compiler() is None, reason="no C compiler here")
def test_another_compiler_of_that_name(tmp_path, monkeypatch):
    """It may know more of the processor than the one before it: its library is another."""
    compiler = quick_compiler(tmp_path / "cc")
    monkeypatch.setenv("CC", str(compiler))
    before = compile_kernels(tmp_path)
    compiler.write_text(compiler.read_text(encoding="ascii") + "# newer\n", encoding="ascii")
    assert compile_kernels(tmp_path) != before


def test_no_compiler(tmp_path, monkeypatch):
    """Without a compiler there is no library, and the error says what to install."""
    monkeypatch.setenv("CC", str(tmp_path / "none"))
    with pytest.raises(ResourceError, match="no C compiler found") as caught:
        compile_kernels(tmp_path)
    assert "gcc" in caught.value.hints[0]


def test_a_compiler_that_fails(tmp_path, monkeypatch):
    """Its first error is told; there is no library, and nothing half-done is left behind."""
    broken = tmp_path / "cc"
    said = "cc: warning: an old option\nkernels.c:1:2: error: out of order\nkernels.c:1:2: note: see there"
    broken.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n", encoding="ascii")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    with pytest.raises(ResourceError, match=r"here: kernels\.c:1:2: error: out of order$"):
        compile_kernels(tmp_path)
    assert list(tmp_path.iterdir()) == [broken]


@pytest.mark.skipif(find_compiler() is None, reason="no C compiler here")
@pytest.mark.parametrize("refused", ["-march=native", "-fopenmp"])
def test_a_compiler_that_lacks_something(tmp_path, monkeypatch, refused):
    """The other spelling is tried; without OpenMP the kernels run on one thread and say so."""
    refuses = f'case " $* " in *" {refused} "*) echo unsupported option >&2; exit 1;; esac'
    compiler = quick_compiler(tmp_path / "cc", refuses)
    monkeypatch.setenv("CC", str(compiler))
    own = Kernels(compile_kernels(tmp_path))
    assert own.name.endswith(", one thread)") == (refused == "-fopenmp")
    assert own.tile_width


def test_a_folder_of_everybody(tmp_path, monkeypatch):
    """A library from a folder where others can write is not trusted."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = cache_folder()
    assert folder.stat().st_uid == os.getuid()
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match="written by others"):
        cache_folder()
    with pytest.raises(ResourceError, match="written by others"):
        compile_kernels()


COMPILE = """
import sys
from pathlib import Path
from lmtool.inference.engine.cpu.library import compile_kernels
folder = Path(sys.argv[1])
(folder.parent / f"started-{sys.argv[2]}").touch()
print(compile_kernels(folder))
"""


def scripted_compiler(path, line):
    """A compiler that notes each call, does what the line says, and writes what it was asked for."""
    writes = 'for last; do [ "$was" = -o ] && touch "$last"; was=$last; done'
    script = f"#!/bin/sh\necho $$ >> {path.parent}/calls\n{line}\n{writes}\n"
    path.write_text(script, encoding="ascii")
    path.chmod(0o755)
    return path


def calls_of(path):
    """The processes of a scripted compiler, those of all calls."""
    calls = path.parent / "calls"
    return [int(line) for line in calls.read_text(encoding="ascii").split()] if calls.exists() else []


def compiling(folder, number=0):
    """A process that compiles there."""
    command = [sys.executable, "-c", COMPILE, str(folder), str(number)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def until(condition):
    """Wait for it, for a minute at most."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.skipif(os.name != "posix", reason="a script stands for the compiler")
class TestSeveralProcesses:
    """Processes that need the kernels at the same time, and some that are ended meanwhile."""

    @pytest.fixture
    def folder(self, tmp_path):
        """An empty cache."""
        found = tmp_path / "cache"
        found.mkdir()
        return found

    def test_one_compiles(self, folder, tmp_path, monkeypatch):
        """Four that start together call the compiler as often as one; the others take what it has made."""
        wait = f"while [ $(ls {tmp_path} | grep -c started) -lt 4 ]; do sleep 0.01; done"
        compiler = scripted_compiler(tmp_path / "cc", wait)
        monkeypatch.setenv("CC", str(compiler))
        processes = [compiling(folder, number) for number in range(4)]
        made = {process.communicate(timeout=60)[0].strip() for process in processes}
        [library] = made
        assert list(folder.iterdir()) == [Path(library)]
        assert len(calls_of(compiler)) == len(SOURCES) + 1

    def test_a_killed_one_blocks_nobody(self, folder, tmp_path, monkeypatch):
        """Its lock goes with it, and the next one removes what it has left."""
        hanging = scripted_compiler(tmp_path / "cc", "sleep 600")
        monkeypatch.setenv("CC", str(hanging))
        killed = compiling(folder)
        until(lambda: calls_of(hanging))
        killed.kill()
        killed.communicate(timeout=60)
        assert list(folder.iterdir())
        for process in calls_of(hanging):
            os.killpg(process, signal.SIGKILL)
        monkeypatch.setenv("CC", str(scripted_compiler(tmp_path / "cc2", "")))
        library = compile_kernels(folder)
        assert list(folder.iterdir()) == [library]

    @pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_an_interrupted_server_leaves_nothing(self, tmp_path, number, status):
        """Ctrl-C while the kernels of a server compile: no file, and no compiler that runs on."""
        compiler = scripted_compiler(tmp_path / "cc", "sleep 600")
        environment = {**os.environ, "CC": str(compiler), "XDG_CACHE_HOME": str(tmp_path / "cache")}
        command = [sys.executable, "-m", "lmtool", "serve", "--port", "0"]
        server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(lambda: calls_of(compiler))
        server.send_signal(number)
        assert server.wait(60) == status
        assert list((tmp_path / "cache/lmtool").iterdir()) == []
        for process in calls_of(compiler):
            with pytest.raises(ProcessLookupError):
                os.kill(process, 0)
