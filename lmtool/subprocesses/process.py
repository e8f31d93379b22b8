"""The hold on one process that calls functions: killed where a call takes longer than it may, and started again."""

from __future__ import annotations

import contextlib
import fcntl
import signal
import subprocess
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

from lmtool.errors import ServerError
from lmtool.subprocesses.program import pack, receive, send

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")

_PIPE_BYTES = 1 << 20
"""Where the system lets us choose (Linux, within a user's limits); else the two take turns every 64 KiB."""
_GRACE_SECONDS = 2.0
"""How much later than we would a process ends itself, should we be gone."""
_PROGRAM = "import sys; sys.path[:] = sys.argv[1:]; from lmtool.subprocesses.program import main; main()"


class TimeOverError(Exception):
    """The process was killed: it did not answer within the time."""


class CrashError(Exception):
    """The process ended while it was asked, in words."""


class Process:
    """One process, started when it is needed. `call` belongs to one thread at a time, `close` to any."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start it, unless it runs; nothing is waited for. Raises `ServerError` once it was closed."""
        with self._lock:
            if self._closed:
                raise ServerError("the server stops", "connect again later")
            if self._child is not None and self._child.poll() is None:
                return
            self._reap()
            self._child = subprocess.Popen(  # noqa: S603  # our own program
                [sys.executable, "-c", _PROGRAM, *sys.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C is for the server, which drains first; in a session of its own, Linux would
                # weigh it against the whole server (sched_autogroup), whatever its niceness
            )
            _widen(self._child)

    def call(self, seconds: float, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What the function returns there, or raises; it is found by its name, and all that goes over is pickled.

        Raises `TimeOverError` after so many seconds and `CrashError` when the process ends; another one is started
        then.
        """
        self.start()
        try:
            return cast("T", self._exchange(partial(function, *args, **kwargs), seconds))
        except (TimeOverError, CrashError):
            with contextlib.suppress(ServerError):
                self.start()
            raise

    def close(self) -> None:
        """Kill it for good; whoever waits for an answer gets `CrashError`."""
        with self._lock:
            self._closed = True
        self.end()

    def end(self) -> None:
        """Kill it; the next call starts another one."""
        with self._lock:
            if self._child is not None:
                self._child.kill()
                self._child.wait()
                self._reap()

    def _exchange(self, function: Callable[[], object], seconds: float) -> object:
        child = self._child
        assert child is not None, "a process is started before it is asked"
        assert child.stdin is not None, "it is a pipe"
        assert child.stdout is not None, "it is a pipe"
        question = pack((function, seconds + _GRACE_SECONDS))
        over = threading.Event()

        def kill() -> None:
            over.set()
            child.kill()

        timer = threading.Timer(seconds, kill)
        timer.daemon = True
        timer.start()
        try:
            send(child.stdin, question)
            returned, outcome = receive(child.stdout)
        except (OSError, ValueError, EOFError):
            child.kill()
            child.wait()
            if over.is_set():
                raise TimeOverError(f"it took more than {seconds:g} s") from None
            raise CrashError(_ending(child.returncode)) from None
        finally:
            timer.cancel()
        if returned:
            return outcome
        try:
            raise outcome
        finally:
            del outcome  # else it would hold itself, and what was asked, until garbage is collected

    def _reap(self) -> None:
        """Give back what is left of a process that has ended."""
        if self._child is not None:
            for pipe in (self._child.stdin, self._child.stdout):
                assert pipe is not None, "both are pipes"
                with contextlib.suppress(OSError):
                    pipe.close()


def _widen(child: subprocess.Popen[bytes]) -> None:
    if sys.platform == "linux":
        for pipe in (child.stdin, child.stdout):
            assert pipe is not None, "both are pipes"
            with contextlib.suppress(OSError):  # a user's pipes may have so many bytes, all together
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def _ending(status: int) -> str:
    if status < 0:
        return f"it ended by {signal.Signals(-status).name}"
    return f"it ended with exit status {status}"
