"""Processes that call functions: killed when a call takes longer than it may, restarted when they are needed.

Parent and child exchange messages over the child's stdin and stdout: a pickle and its buffers (PEP 574), each behind
its length, all behind their number; lengths and numbers have eight bytes. On stdin a function without arguments and
the seconds that it may take; on stdout whether it returned, and the value that it returned or raised.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from functools import partial
from queue import Empty, LifoQueue
from typing import IO, TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from lmtool.core.errors import ServerError
from lmtool.net.subprocesses.resources import LARGE, lower_priority, release_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

P = ParamSpec("P")
T = TypeVar("T")

LONG = 16 * 1024
"""Characters or bytes from which reading or writing something takes a millisecond or more."""
_PIPE_BYTES = 1 << 20
"""Where the system lets us choose (Linux, within a user's limits); else the two take turns every 64 KiB."""
_GRACE_SECONDS = 2.0
"""How much later than its parent would kill it a process ends itself, should the parent be gone."""
IDLE_SECONDS = 60.0
"""How long a process is kept that nobody needs: it takes 40 MB or more, and starting one half a second."""
_PROGRAM = "import sys; sys.path[:] = sys.argv[1:]; from lmtool.net.subprocesses.process import main; main()"


class TimeOverError(Exception):
    """The process was killed: it did not answer within the time."""


class CrashError(Exception):
    """The process ended during a call; the message says how."""


class Process:
    """One process, started when it is needed. `call` belongs to one thread at a time, `close` to any."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._lock = threading.Lock()
        self.last_call = 0.0
        """When its last call returned, by `time.monotonic`; its pool keeps it."""

    @property
    def running(self) -> bool:
        """True if there is a process; it may not have noticed yet that it ended."""
        child = self._child
        return child is not None and child.poll() is None

    def start(self) -> None:
        """Start it unless it runs, without waiting for it. Raises `ServerError` after `close`."""
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
        """What the function returns or raises there. It is found by its name; arguments and result are pickled.

        Raises `TimeOverError` after `seconds`, `CrashError` when the process ends; another one is started then.
        """
        self.start()
        try:
            return cast("T", self._exchange(partial(function, *args, **kwargs), seconds))
        except (TimeOverError, CrashError):
            with contextlib.suppress(ServerError):
                self.start()
            raise

    def close(self) -> None:
        """Kill it for good; a call in progress raises `CrashError`."""
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
        assert child is not None, "a process is started before it is called"
        assert child.stdin is not None, "it is a pipe"
        assert child.stdout is not None, "it is a pipe"
        request = pack((function, seconds + _GRACE_SECONDS))
        timed_out = threading.Event()

        def kill() -> None:
            timed_out.set()
            child.kill()

        timer = threading.Timer(seconds, kill)
        timer.daemon = True
        timer.start()
        try:
            send(child.stdin, request)
            returned, outcome = receive(child.stdout)
        except (OSError, ValueError, EOFError):
            child.kill()
            child.wait()
            if timed_out.is_set():
                raise TimeOverError(f"it took more than {seconds:g} s") from None
            raise CrashError(_exit_reason(child.returncode)) from None
        finally:
            timer.cancel()
        if returned:
            return outcome
        try:
            raise outcome
        finally:
            del outcome  # else it would keep itself and the request alive until garbage is collected

    def _reap(self) -> None:
        """Close the pipes of a process that has ended."""
        if self._child is not None:
            for pipe in (self._child.stdin, self._child.stdout):
                assert pipe is not None, "both are pipes"
                with contextlib.suppress(OSError):
                    pipe.close()


class Pool:
    """At most `size` processes, each started when all others are busy, ended when unused. Safe from any thread."""

    def __init__(self, size: int, idle_seconds: float = IDLE_SECONDS) -> None:
        """idle_seconds: how long a process that nobody needs is kept."""
        self._idle_seconds = idle_seconds
        self._processes = [Process() for _ in range(size)]
        self._free: LifoQueue[Process] = LifoQueue()
        for process in reversed(self._processes):
            self._free.put(process)
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        """Runs while a process is kept that nobody needs."""
        self._closed = False

    def call(self, seconds: float, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """See `Process.call`; waiting for a free process does not count."""
        process = self._free.get()
        try:
            return process.call(seconds, function, *args, **kwargs)
        finally:
            process.last_call = time.monotonic()
            self._free.put(process)
            self._look_later()

    def end_idle(self, seconds: float = 0.0) -> bool:
        """End those that were not needed for that long, with all the memory that they took; whether one is kept.

        They start again when they are needed.
        """
        free: list[Process] = []
        with contextlib.suppress(Empty):
            while True:
                free.append(self._free.get_nowait())
        kept, now = False, time.monotonic()
        for process in reversed(free):
            if now - process.last_call >= seconds:
                process.end()
            kept = kept or process.running
            self._free.put(process)
        return kept

    def close(self) -> None:
        """Kill them; calls in progress raise `CrashError`, later ones `ServerError`."""
        with self._lock:
            self._closed = True
            if self._timer is not None:
                self._timer.cancel()
        for process in self._processes:
            process.close()

    def _look_later(self) -> None:
        with self._lock:
            if self._timer is None and not self._closed:
                self._timer = threading.Timer(self._idle_seconds, self._look)
                self._timer.daemon = True
                self._timer.start()

    def _look(self) -> None:
        with self._lock:
            self._timer = None
        if self.end_idle(self._idle_seconds):
            self._look_later()


def _widen(child: subprocess.Popen[bytes]) -> None:
    if sys.platform == "linux":
        for pipe in (child.stdin, child.stdout):
            assert pipe is not None, "both are pipes"
            with contextlib.suppress(OSError):  # a user's pipes may have so many bytes, all together
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def _exit_reason(status: int) -> str:
    if status < 0:
        return f"it ended by {signal.Signals(-status).name}"
    return f"it ended with exit status {status}"


def main() -> None:
    """The child's program: carry out calls until stdin ends."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    lower_priority()
    gc.disable()  # a request is a tree of up to a million parts, which it would traverse again and again
    with contextlib.suppress(EOFError):
        while True:
            size = _serve(requests, answers)
            gc.collect(0)  # of the garbage of this request, by now nearly nothing
            if size >= LARGE:
                release_memory()


def _serve(requests: IO[bytes], answers: IO[bytes]) -> int:
    """Carry out one call; return the bytes of the request."""
    parts = _parts(requests)
    function, seconds = _unpack(parts)
    _exit_after(seconds)
    answer = _answer(function)
    _exit_after(0)
    send(answers, answer)
    return sum(map(len, parts))


class OutOfBand:
    """A long text, or bytes, in a message: arrives as a str or bytes, copied as seldom as possible on the way."""

    def __init__(self, data: str | bytes) -> None:
        self._data = data

    def __reduce_ex__(self, _protocol: object) -> tuple[object, ...]:
        if isinstance(self._data, str):
            encoded = pickle.PickleBuffer(self._data.encode(errors="surrogatepass"))
            return str, (encoded, "utf-8", "surrogatepass")
        return bytes, (pickle.PickleBuffer(self._data),)


def pack(value: object) -> list[bytes | memoryview]:
    """The parts of a message. Raises what pickle raises."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return [head, *(buffer.raw() for buffer in buffers)]


def send(pipe: IO[bytes], parts: Sequence[bytes | memoryview]) -> None:
    """Write a message made by `pack`."""
    pipe.write(len(parts).to_bytes(8, "little"))
    for part in parts:
        pipe.write(len(part).to_bytes(8, "little"))
        pipe.write(part)
    pipe.flush()


def receive(pipe: IO[bytes]) -> Any:  # noqa: ANN401  # whatever was pickled
    """Read a message. Raises `EOFError` where there is none, or none that is whole."""
    return _unpack(_parts(pipe))


def _unpack(parts: Sequence[bytes]) -> Any:  # noqa: ANN401  # whatever was pickled
    return pickle.loads(parts[0], buffers=parts[1:])  # noqa: S301  # from our own process


def _parts(pipe: IO[bytes]) -> list[bytes]:
    return [_exactly(pipe, _number(pipe)) for _ in range(_number(pipe))]


def _number(pipe: IO[bytes]) -> int:
    return int.from_bytes(_exactly(pipe, 8), "little")


def _exactly(pipe: IO[bytes], count: int) -> bytes:
    data = pipe.read(count)
    if len(data) < count:
        raise EOFError
    return data


def _answer(function: Callable[[], object]) -> list[bytes | memoryview]:
    try:
        return pack((True, function()))
    except Exception as problem:  # noqa: BLE001  # raised in the parent
        problem.add_note(f"in a subprocess:\n{traceback.format_exc()}")
        return pack((False, problem))


def _exit_after(seconds: float) -> None:
    """End this process after `seconds`, even where its parent is gone and a library hangs; 0: never."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)
