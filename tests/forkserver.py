"""Starts `lmtool` for tests by forking a process that has imported torch and the like, and no module of lmtool.

What starts is a process of its own, as `python -m lmtool` starts one: environment, folder, descriptors, signals, exit
status and the end of the interpreter are those of a fresh one, and it imports all of lmtool anew. Only other people's
packages, whose import is most of the processor time of a short process, are there already. The standard library's
`multiprocessing` has the same idea under the same name, but ends its processes without the interpreter's own end.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any, Self

ROOT = Path(__file__).parent.parent
LIGHT = ("asyncio", "ssl", "msgspec", "typer", "websockets.asyncio.client", "aiohttp", "jinja2.sandbox", "tokenizers")
"""What commands import."""
HEAVY = (
    *LIGHT, "torch", "safetensors.torch", "starlette.applications", "uvicorn", "httptools", "llguidance", "jsonschema",
    "google.protobuf.json_format", "transformers.models.llama.modeling_llama", "transformers.models.auto.modeling_auto",
)  # fmt: skip
"""What servers import. Not grpc, which cannot be forked."""
READ_AT_START = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "OMP_", "KMP_", "MKL_", "OPENBLAS_", "TORCH", "TYPER_", "LC_",
                 "LANG", "HF_", "TRANSFORMERS_", "SSL_")  # fmt: skip
"""Beginnings of variables that the interpreter or a package reads once: where one differs, a fresh process starts."""
LMTOOL = ("-m", "lmtool")
LONGEST_REQUEST = 1 << 17
NUMBER = 8
"""Bytes of a pid or an exit status."""


@dataclass
class ForkedProcess:
    """What tests use of `subprocess.Popen`; its pipes are text."""

    args: Sequence[str]
    pid: int
    report: int
    """A pipe on which its exit status comes."""
    stdin: IO[str] | None
    stdout: IO[str] | None
    stderr: IO[str] | None
    returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status once it has ended. Raises `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            ended = select.poll()
            ended.register(self.report, select.POLLIN)
            if not ended.poll(None if timeout is None else 1000 * timeout):
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.returncode = _receive(self.report)
            os.close(self.report)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, text: str, timeout: float) -> tuple[str, str]:
        """Write to stdin, and return what came on stdout and stderr. Raises `subprocess.TimeoutExpired`."""
        said = {"output": "", "stderr": ""}

        def read(name: str, stream: IO[str]) -> None:
            with stream:
                said[name] = stream.read()

        def write(stream: IO[str]) -> None:
            with contextlib.suppress(BrokenPipeError), stream:
                stream.write(text)

        assert self.stdin is not None
        assert self.stdout is not None
        assert self.stderr is not None
        works = [threading.Thread(target=write, args=(self.stdin,), daemon=True)]
        works += [
            threading.Thread(target=read, args=(name, stream), daemon=True)
            for name, stream in (("output", self.stdout), ("stderr", self.stderr))
        ]
        until = time.monotonic() + timeout
        for work in works:
            work.start()
        for work in works:
            work.join(max(0.0, until - time.monotonic()))
        if any(work.is_alive() for work in works):
            raise subprocess.TimeoutExpired(self.args, timeout, **said)
        self.wait(max(0.0, until - time.monotonic()))
        return said["output"], said["stderr"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait()


class ForkServer:
    """The process that forks. It ends with the one that made it, and everything that it forked with it."""

    def __init__(self, environment: Mapping[str, str], packages: Sequence[str]) -> None:
        """packages: to import before the first fork."""
        self.fixed = fixed(environment)
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = [sys.executable, "-m", "tests.forkserver", str(its.fileno()), *packages]
        around = {**environment, "TYPER_USE_RICH": "0"}  # as lmtool sets it before it imports typer
        with its:
            subprocess.run(words, cwd=ROOT, env=around, stdin=subprocess.DEVNULL, pass_fds=(its.fileno(),), check=True)
        self._control = ours
        self._lock = threading.Lock()

    def fork(self, request: Mapping[str, object], descriptors: Sequence[int]) -> tuple[int, int]:
        """Fork a process with these as stdin, stdout and stderr; its pid, and the pipe on which its status comes."""
        report, its = os.pipe()
        try:
            with self._lock:
                socket.send_fds(self._control, [json.dumps(request).encode()], [*descriptors, its])
        finally:
            os.close(its)
        return _receive(report), report


def fixed(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a process heeds only as it starts; a cache of models that is not there is like any other."""
    return {
        name: value
        for name, value in environment.items()
        if value and name.startswith(READ_AT_START) and (name != "HF_HOME" or Path(value).exists())
    }


_servers: dict[Sequence[str], ForkServer] = {}
"""By the packages that they have imported: forking one that is large takes a tenth of a second more."""


def spawn(
    words: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    program: tuple[str, ...] = (sys.executable, *LMTOOL),
    heavy: bool = False,
    stdin: int = subprocess.PIPE,
    stdout: int = subprocess.PIPE,
    stderr: int = subprocess.PIPE,
    start_new_session: bool = False,
) -> ForkedProcess | subprocess.Popen[str]:
    """Start `lmtool WORDS...` as `subprocess.Popen` does, with pipes of text.

    heavy: whether it loads a model. Another program starts afresh, and so does one with other `fixed` variables.
    """
    folder = cwd or Path.cwd()
    streams = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
    packages = HEAVY if heavy else LIGHT
    if program == (sys.executable, *LMTOOL) and packages not in _servers:
        _servers[packages] = ForkServer(env, packages)
    if program != (sys.executable, *LMTOOL) or _servers[packages].fixed != fixed(env):
        return subprocess.Popen(
            [*program, *words], env=env, cwd=folder, start_new_session=start_new_session, encoding="utf-8", **streams
        )
    request = {"words": [*words], "environment": {**env}, "folder": str(folder), "session": start_new_session}
    with contextlib.ExitStack() as its:
        ours: list[IO[str] | None] = []
        given: list[int] = []
        for number, wanted in enumerate(streams.values()):
            end, descriptor = _ends(number, wanted, given, its)
            ours.append(end)
            given.append(descriptor)
        pid, report = _servers[packages].fork(request, given)
    return ForkedProcess(["lmtool", *words], pid, report, *ours)


def _ends(number: int, wanted: int, given: Sequence[int], its: contextlib.ExitStack) -> tuple[IO[str] | None, int]:
    """Our end of a stream, None where we have none, and the descriptor for the process."""
    if wanted == subprocess.STDOUT:
        return None, given[1]
    if wanted == subprocess.DEVNULL:
        descriptor = os.open(os.devnull, os.O_RDWR)
        its.callback(os.close, descriptor)
        return None, descriptor
    if wanted != subprocess.PIPE:
        return None, wanted
    read, write = os.pipe()
    mine, theirs = (write, read) if number == 0 else (read, write)
    its.callback(os.close, theirs)
    return open(mine, "w" if number == 0 else "r", encoding="utf-8"), theirs  # noqa: PTH123  # a descriptor


def _receive(pipe: int) -> int:
    """A number from the process that forks."""
    data = os.read(pipe, NUMBER)
    assert len(data) == NUMBER, "the process that forks has ended"
    return int.from_bytes(data, "big", signed=True)


def _send(pipe: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody wants to know any more
        os.write(pipe, number.to_bytes(NUMBER, "big", signed=True))


@dataclass
class Forking:
    """The process that forks, from inside."""

    control: socket.socket
    reports: dict[int, int] = field(default_factory=dict)
    """By pid, the pipes on which exit statuses are reported."""

    def run(self) -> Mapping[str, Any] | None:
        """Fork for each request: the request in a process that was forked, None once there are no more."""
        wake, waking = os.pipe()
        os.set_blocking(waking, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waking)
        while True:
            ready, _, _ = select.select([self.control, wake], [], [])
            if wake in ready:
                os.read(wake, 4096)
                self._report_ended()
            if self.control not in ready:
                continue
            data, descriptors, _, _ = socket.recv_fds(self.control, LONGEST_REQUEST, 4)
            if not data:
                for pid in self.reports:
                    os.kill(pid, signal.SIGKILL)
                return None
            if self._fork(descriptors):
                for descriptor in (wake, waking):
                    os.close(descriptor)
                return dict(json.loads(data))

    def _fork(self, descriptors: Sequence[int]) -> bool:
        """Whether this is what was forked, which has stdin, stdout and stderr of its own and nothing else of ours."""
        *streams, report = descriptors
        pid = os.fork()
        if pid:
            for descriptor in set(streams):
                os.close(descriptor)
            self.reports[pid] = report
            _send(report, pid)
            return False
        signal.set_wakeup_fd(-1)
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
        for descriptor in {*descriptors, *self.reports.values()}:
            os.close(descriptor)
        return True

    def _report_ended(self) -> None:
        while self.reports:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            report = self.reports.pop(pid)
            _send(report, os.waitstatus_to_exitcode(status))
            os.close(report)


def become(request: Mapping[str, Any]) -> None:
    """Make a process that was forked what a fresh one would be."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request["session"]:
        os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    _end_lightly()
    sys.argv = ["lmtool", *request["words"]]
    sys.path[0] = request["folder"]
    sys.stdin = sys.__stdin__ = _stream(0, "r", sys.stdin.errors)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _stream(1, "w", sys.stdout.errors)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _stream(2, "w", "backslashreplace")  # type: ignore[misc]
    sys.stderr.reconfigure(line_buffering=True)


def _end_lightly() -> None:
    """Have the process end without taking apart what it shares with others, which would have to be copied for that.

    Its own modules end as they always do; other people's, and the tables of torch, stay: three tenths of a second less.
    """
    shared = [name for name in sys.modules if name.partition(".")[0] not in {*sys.stdlib_module_names, "tests"}]

    def keep() -> None:
        modules = [sys.modules.pop(name, None) for name in shared]
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(modules))

    atexit.register(keep)  # called last
    c_library = ctypes.CDLL(None)
    c_library.on_exit(c_library._exit, None)  # called first once Python has ended, with the exit status


def _stream(descriptor: int, mode: str, errors: str | None) -> TextIOWrapper:
    """A stream as the interpreter opens it."""
    stream = os.fdopen(descriptor, mode, encoding=sys.stdout.encoding, errors=errors, newline="\n", closefd=False)
    assert isinstance(stream, TextIOWrapper)
    return stream


def main() -> None:
    """Fork on request, `python -m tests.forkserver DESCRIPTOR PACKAGE...`; run `lmtool` in what was forked."""
    if os.fork():
        os._exit(0)  # no child of the tests' own process, which may look for those that it has started
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()  # a seventh of the time of importing torch
    for name in sys.argv[2:]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is shared is not written to
    gc.enable()
    with socket.socket(fileno=int(sys.argv[1])) as control:
        request = Forking(control).run()
    if request is not None:
        become(request)
        runpy.run_module("lmtool", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
