"""Makes a shared library out of the C kernels with the machine's own compiler, and keeps it for the next time."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from lmtool.errors import ResourceError

SOURCES = tuple(Path(__file__).with_name(name) for name in ("kernels.c", "drawing.c"))
HEADER = Path(__file__).with_name("vectors.h")

SECONDS = 120
"""Longest time that the compiler may take; it needs some three."""

ADVICE = ("install gcc or clang, or name a C compiler with CC",)
"""What to do where there are no kernels."""

_PROCESSOR = ("-march=native", "-mcpu=native")
"""How compilers are told to use all that this processor has: gcc and clang on x86, clang on ARM."""


def compiled(folder: Path | None = None) -> Path:
    """The library for this processor, compiled now or earlier. Raises `ResourceError` with the reason if it cannot be.

    folder: where libraries are kept; None: below the user's cache folder. Needs a C compiler: the one that the
    environment variable CC names, else cc, gcc or clang.
    """
    compiler = find_compiler() if os.name == "posix" else None
    if compiler is None:
        raise ResourceError("no C compiler found (CC, cc, gcc, clang)", *ADVICE)
    try:
        folder = folder or cache_folder()
        library = folder / f"kernels-{_key(compiler)}.so"
        if not library.exists():
            _compile(compiler, library)
    except (OSError, RuntimeError, subprocess.SubprocessError) as problem:  # RuntimeError: nobody's home is known
        raise ResourceError(f"C kernels cannot be compiled here: {problem}", *ADVICE) from None
    return library


def find_compiler() -> str | None:
    """The path of a C compiler; None if there is none."""
    named = os.environ.get("CC")
    names = (named,) if named else ("cc", "gcc", "clang")
    return next((path for name in names if (path := shutil.which(name))), None)


def cache_folder() -> Path:
    """The user's own folder for libraries. Raises PermissionError where others could put one there."""
    base = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(base) if base else Path.home() / ".cache") / "lmtool"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(f"{folder} can be written by others")
    return folder


def _key(compiler: str) -> str:
    """What the library depends on: source, compiler and processor."""
    told = [source.read_bytes() for source in (*SOURCES, HEADER)]
    status = Path(compiler).stat()  # a newer one of that name may know more of the processor
    told += [os.fsencode(os.path.realpath(compiler)), b"%d %d" % (status.st_size, status.st_mtime_ns)]
    told += [platform.machine().encode()]
    processor = Path("/proc/cpuinfo")
    if processor.exists():
        lines = processor.read_bytes().splitlines()
        told += next(([line] for line in lines if line.startswith((b"flags", b"Features"))), [])
        told += next(([line] for line in lines if line.startswith(b"model name")), [])
    return hashlib.sha256(b"\0".join(told)).hexdigest()[:24]


def _compile(compiler: str, library: Path) -> None:
    """Write the library, whole or not at all. Raises `subprocess.SubprocessError` or OSError."""
    with tempfile.TemporaryDirectory(dir=library.parent) as work:
        made = Path(work) / library.name
        for processor in _PROCESSOR:
            words = [compiler, "-O2", "-std=gnu11", processor, "-fopenmp", "-shared", "-fPIC", *map(str, SOURCES)]
            ended = subprocess.run(  # noqa: S603  # the words are ours, the compiler the user's
                [*words, "-o", str(made), "-lm"], capture_output=True, text=True, timeout=SECONDS, check=False
            )
            if ended.returncode == 0:
                made.replace(library)
                return
    raise subprocess.SubprocessError((ended.stderr.strip().splitlines() or ["no message"])[0])
