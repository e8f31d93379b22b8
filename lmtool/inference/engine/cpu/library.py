"""The C kernels: compiled for this processor with the machine's own compiler, cached, and called from Python."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib.util
import itertools
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from ctypes import POINTER, Structure, c_char_p, c_float, c_int64, c_void_p
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lmtool.core.errors import ResourceError
from lmtool.net.subprocesses.exit import cleaned_at_exit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

SOURCES = tuple(Path(__file__).with_name(f"{name}.c") for name in ("kernels", "products", "quantized", "sampling"))
_HEADERS = (Path(__file__).with_name("kernels.h"),)

COMPILE_SECONDS = 120
"""Timeout of the compiler for a source; it takes some two."""

ADVICE = ("install gcc or clang, or name a C compiler with CC",)
"""Hints of the error where there are no kernels."""

_WORK = "compiling-"
"""Beginning of the names of folders with unfinished files."""
_compilers: set[subprocess.Popen[str]] = set()
"""Running compilers."""
_starting = threading.Lock()
"""Held to start a compiler."""

_NATIVE = ("-march=native", "-mcpu=native")
"""Flags for all instructions of this processor: gcc and clang on x86, clang on ARM."""


def _threading() -> list[list[str]]:
    """Flags for several threads, to be tried in turn; the last ones give a library of one thread."""
    spec = importlib.util.find_spec("torch") if sys.platform == "darwin" else None
    folders = [f"{folder}/lib" for folder in (spec.submodule_search_locations or ())] if spec else []
    apple = [  # Apple's clang has OpenMP with this flag, and torch brings the library; two of them do not get along
        ["-Xclang", "-fopenmp", f"-L{folder}", "-lomp", f"-Wl,-rpath,{folder}"] for folder in folders
    ]
    return [["-fopenmp"], *apple, []]


FLOAT32, BFLOAT16, INT8, INT4, Q4_K, Q5_K, Q6_K = range(7)
"""Formats of stored weights; the last ones are llama.cpp's."""

STORE, ADD, GATED, GELU = range(4)
"""Epilogues of a product: it is stored, added, goes through SiLU gates, or through the tanh-GELU."""


class CProduct(Structure):
    """`Product` of kernels.h."""

    _fields_ = [
        *((name, c_void_p) for name in ("weights", "bias")),
        *((name, c_int64) for name in ("inputs", "outputs", "kind")),
    ]


class CLayer(Structure):
    """`Layer` of kernels.c."""

    _fields_ = [
        *((name, c_void_p) for name in ("norm", "norm_bias")),
        ("qkv", CProduct * 3),
        ("head_norm", c_void_p),
        ("output", CProduct),
        *((name, c_void_p) for name in ("mlp_norm", "mlp_norm_bias")),
        *((name, CProduct) for name in ("up", "down")),
        ("window", c_int64),
        *((name, c_void_p) for name in ("keys", "values")),
    ]


class CModel(Structure):
    """`Model` of kernels.c."""

    _fields_ = [
        *((name, c_int64) for name in ("heads", "kv_heads", "head_dim", "hidden", "inner", "head_stride")),
        *((name, c_int64) for name in ("centred", "gated", "halved")),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("eps", c_float),
        ("scaling", c_float),
    ]


class CGroup(Structure):
    """`Group` of kernels.c."""

    _fields_ = [
        *((name, c_void_p) for name in ("rows", "positions", "table")),
        *((name, c_int64) for name in ("count", "queries", "width")),
    ]


class CStep(Structure):
    """`Step` of kernels.c."""

    _fields_ = [
        ("tokens", c_int64),
        ("stored", c_int64),
        *((name, c_void_p) for name in ("positions", "slots", "hidden", "normed", "qkv", "attended", "inner")),
        ("room", c_void_p),
        ("groups", POINTER(CGroup)),
        ("group_count", c_int64),
    ]


class Kernels:
    """A loaded library. Its functions release the GIL and take addresses of contiguous tensors."""

    def __init__(self, path: Path) -> None:
        """Raises OSError for a file that is no library of this machine."""
        library = ctypes.CDLL(str(path))
        self.digest = hashlib.sha256(path.read_bytes()).hexdigest()
        """Digest of the machine code; the same source, compiler and processor give the same."""
        self.tile_width: int = _function(library, "tile_width", returns=c_int64)()
        """Outputs in a tile of packed weights."""
        self.paired = bool(_function(library, "paired", returns=c_int64)())
        """True if bfloat16 weights stand two by two and are multiplied so, by inputs rounded to bfloat16; else weights
        are widened and inputs are float32."""
        self.instructions: str = _function(library, "instructions", returns=c_char_p)().decode()
        """The processor's that are used, such as `AVX512-BF16`."""
        threads = "" if _function(library, "threaded", returns=c_int64)() else ", one thread"
        self.name = f"C kernels ({self.instructions}{threads})"
        """For `ModelInfo.kernels`."""
        step, layer, model = POINTER(CStep), POINTER(CLayer), POINTER(CModel)
        self.use_threads = _function(library, "use_threads", c_int64)
        self.prefer_large_pages = _function(library, "prefer_large_pages", c_void_p, c_int64)
        self.page_out = _function(library, "page_out", c_void_p, c_int64)
        self.layers = _function(library, "layers", model, layer, c_int64, step)
        norm = (c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_float, c_void_p)
        self.norm = _function(library, "norm", *norm)
        product = (POINTER(CProduct), c_void_p, c_int64, c_int64, c_void_p, c_int64, c_void_p)
        self.product = _function(library, "product", *product)
        self.pack_groups = _function(library, "pack_groups", c_int64, c_void_p, c_int64, c_int64, c_void_p)
        self.pack_superblocks = _function(library, "pack_superblocks", c_int64, c_void_p, c_int64, c_int64, c_void_p)
        self.weight_rows = _function(library, "weight_rows", POINTER(CProduct), c_void_p, c_int64, c_void_p)
        self.byte_zero: int = _function(library, "byte_zero", returns=c_int64)()
        """Byte that represents 0 in packed int8 weights."""
        self.spin = _function(library, "spin", c_int64, c_int64, returns=c_int64)
        self.apply_masks = _function(library, "apply_masks", c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_int64)
        self.sample = _function(library, "sample", c_void_p, c_int64, c_void_p, c_int64)
        self.max_vocabulary: int = _function(library, "max_vocabulary", returns=c_int64)()
        """Ids in the widest rows that `sample` takes."""


def _function(
    library: ctypes.CDLL, name: str, *arguments: type, returns: type | None = None
) -> ctypes._NamedFuncPointer:
    function = getattr(library, name)
    function.argtypes, function.restype = arguments, returns
    return function  # type: ignore[no-any-return]  # getattr of a library is Any


_enabled = True
"""True if `kernels` may return any."""


def use_kernels(choice: str) -> None:
    """Enable or disable the kernels for this process. choice: see `EngineConfig.kernels`.

    Raises `ResourceError` where they are required and there are none.
    """
    global _enabled
    _enabled = choice != "none"
    library = find_kernels() if choice == "required" else None
    if isinstance(library, ResourceError):
        raise ResourceError(
            f"--kernels required: {library.message}", *library.hints, "or compute without:  --kernels none"
        )


def kernels() -> Kernels | None:
    """The kernels for this processor; None where there are none, or they are disabled."""
    library = find_kernels() if _enabled else None
    return library if isinstance(library, Kernels) else None


@functools.cache
def find_kernels() -> Kernels | ResourceError:
    """The kernels for this processor, or the reason why there are none."""
    try:
        return Kernels(compile_kernels())
    except ResourceError as problem:
        return problem
    except (OSError, AttributeError) as problem:
        return ResourceError(f"the compiled C kernels cannot be loaded: {problem}", *ADVICE)


def address(tensor: Tensor | None) -> int | None:
    """The address of a contiguous tensor's numbers."""
    assert tensor is None or tensor.is_contiguous()
    return None if tensor is None else tensor.data_ptr()


def compile_kernels(folder: Path | None = None) -> Path:
    """The library for this processor, compiled now or earlier. Raises `ResourceError` with the reason if it cannot be.

    One process compiles at a time; the others wait for it, and use what it has made.

    folder: where libraries are cached; None: below the user's cache folder. Needs a C compiler: the one that the
    environment variable CC names, else cc, gcc or clang.
    """
    compiler = find_compiler() if os.name == "posix" else None
    if compiler is None:
        raise ResourceError("no C compiler found (CC, cc, gcc, clang)", *ADVICE)
    try:
        folder = folder or cache_folder()
        library = folder / f"kernels-{_key(compiler)}.so"
        if not library.exists():
            with _only_process(folder):
                if not library.exists():
                    _compile(compiler, library)
    except (OSError, RuntimeError, subprocess.SubprocessError) as problem:  # RuntimeError: no home folder
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
    """A hash of what the library depends on: source, compiler and processor."""
    parts = [source.read_bytes() for source in (*SOURCES, *_HEADERS)]
    status = Path(compiler).stat()  # a newer one of that name may know more of the processor
    parts += [os.fsencode(os.path.realpath(compiler)), b"%d %d" % (status.st_size, status.st_mtime_ns)]
    parts += [platform.machine().encode()]
    processor = Path("/proc/cpuinfo")
    if processor.exists():
        lines = processor.read_bytes().splitlines()
        parts += next(([line] for line in lines if line.startswith((b"flags", b"Features"))), [])
        parts += next(([line] for line in lines if line.startswith(b"model name")), [])
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:24]


@contextlib.contextmanager
def _only_process(folder: Path) -> Iterator[None]:
    """Wait for other processes that compile there, and remove what those that were killed have left.

    The system drops the lock of a process that ends, however it does.
    """
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: each process compiles for itself
            fcntl.flock(handle, fcntl.LOCK_EX)
            for left in folder.glob(f"{_WORK}*"):
                shutil.rmtree(left, ignore_errors=True)
        yield
    finally:
        os.close(handle)


def _compile(compiler: str, library: Path) -> None:
    """Write the library, whole or not at all. Raises `subprocess.SubprocessError` or OSError."""
    with (
        tempfile.TemporaryDirectory(prefix=_WORK, dir=library.parent) as work,
        cleaned_at_exit(partial(_abandon, work)),
    ):
        output, problem = Path(work) / library.name, ""
        for threading, native in itertools.product(_threading(), _NATIVE):
            problem = _compile_sources([compiler, "-O2", "-std=gnu11", native, "-fPIC", *threading], output)
            if not problem:
                output.replace(library)
                return
    lines = problem.splitlines()
    raise subprocess.SubprocessError(next((line for line in lines if " error: " in line), lines[0]))


def _compile_sources(command: list[str], output: Path) -> str:
    """Compile each source beside the others, and link them; what the compiler said if it failed, else nothing."""
    objects = [str(output.with_name(f"{source.stem}.o")) for source in SOURCES]
    commands = [[*command, "-c", str(source), "-o", made] for source, made in zip(SOURCES, objects, strict=True)]
    with ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="lmtool-compile") as pool:
        done = list(pool.map(_run, commands))
    if all(process.returncode == 0 for process in done):
        done = [_run([*command, "-shared", *objects, "-o", str(output), "-lm"])]
    return next((process.stderr.strip() or "no message" for process in done if process.returncode), "")


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a compiler in a process group of its own, which `_abandon` can end."""
    with _starting:
        process = subprocess.Popen(  # noqa: S603  # the arguments are ours, the compiler the user's
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        _compilers.add(process)
    try:
        _, message = process.communicate(timeout=COMPILE_SECONDS)
    except subprocess.TimeoutExpired:
        _end(process)
        raise
    finally:
        _compilers.discard(process)
    return subprocess.CompletedProcess(command, process.returncode, "", message)


def _abandon(work: str) -> None:
    """End the running compilers, start no others, and remove what they have written; the process exits then."""
    _starting.acquire()  # for good
    for process in _compilers.copy():
        _end(process)
    shutil.rmtree(work, ignore_errors=True)


def _end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended by itself
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
