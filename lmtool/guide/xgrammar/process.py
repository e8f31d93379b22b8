"""The hold on one process that compiles: it is asked with a limit, killed at the limit, and started again."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import threading
from typing import TYPE_CHECKING, Any

from lmtool.errors import ResourceError, ServerError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

START_SECONDS = 120.0
"""Longest wait until a process has read the vocabulary."""
_GRACE_SECONDS = 2.0
"""How much later than we would a process ends itself, should we be gone."""


class TimeOverError(Exception):
    """The process was killed: it did not answer within the time."""


class CrashError(Exception):
    """The process ended while it was asked, in words."""


class Process:
    """One process, started when it is needed. `ready`, `ask` and `start` belong to one thread, `close` to any."""

    def __init__(self, command: Sequence[str], settings: Mapping[str, Any]) -> None:
        """command: its program, see `worker`. settings: its first line."""
        self._command = list(command)
        self._settings = _line(settings)
        self._child: subprocess.Popen[bytes] | None = None
        self._greeted = False
        self._closed = False
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start it, unless it runs; nothing is waited for. Raises `ServerError` once it was closed."""
        with self._lock:
            if self._closed:
                raise ServerError("the server stops, and compiles no constraint any more", "connect again later")
            if self._child is not None and self._child.poll() is None:
                return
            self._reap()
            self._greeted = False
            self._child = subprocess.Popen(  # noqa: S603  # our own program, or the one of a test
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the server, which drains first
            )

    def ready(self) -> None:
        """Wait until it can be asked, starting it where needed. Raises `ResourceError` or `ServerError`."""
        self.start()
        if self._greeted:
            return
        try:
            answer, _ = self._exchange(self._settings, START_SECONDS)
        except (TimeOverError, CrashError) as problem:
            raise ServerError(f"the process that compiles constraints did not start: {problem}", "try again") from None
        if "error" in answer:
            raise ResourceError(
                f"the process that compiles constraints cannot start: {answer['message']}",
                "check the installation, or serve with --structured-backend llguidance",
            )
        self._greeted = True

    def ask(self, question: Mapping[str, Any], seconds: float) -> tuple[dict[str, Any], bytes]:
        """Return the answer to a question and the bytes behind it; call `ready` before.

        Raises `TimeOverError` after so many seconds and `CrashError` when the process ends; it is started again then.
        """
        try:
            return self._exchange(_line({**question, "seconds": seconds + _GRACE_SECONDS}), seconds)
        except (TimeOverError, CrashError):
            with contextlib.suppress(ServerError):
                self.start()
            raise

    def close(self) -> None:
        """Kill it; whoever waits for an answer gets `CrashError`."""
        with self._lock:
            self._closed = True
            if self._child is not None:
                self._child.kill()
                self._child.wait()
                self._reap()

    def _exchange(self, line: bytes, seconds: float) -> tuple[dict[str, Any], bytes]:
        child = self._child
        assert child is not None, "a process is started before it is asked"
        over = threading.Event()

        def kill() -> None:
            over.set()
            child.kill()

        timer = threading.Timer(seconds, kill)
        timer.daemon = True
        timer.start()
        try:
            return _exchanged(child, line)
        except (OSError, ValueError, EOFError):
            child.kill()
            child.wait()
            if over.is_set():
                raise TimeOverError(f"it took more than {seconds:g} s") from None
            raise CrashError(_ending(child.returncode)) from None
        finally:
            timer.cancel()

    def _reap(self) -> None:
        """Give back what is left of a process that has ended."""
        if self._child is not None:
            for pipe in (self._child.stdin, self._child.stdout):
                assert pipe is not None, "both are pipes"
                with contextlib.suppress(OSError):
                    pipe.close()


def _exchanged(child: subprocess.Popen[bytes], line: bytes) -> tuple[dict[str, Any], bytes]:
    """Write a line and read the answer. Raises `OSError`, `ValueError` or `EOFError` where there is none."""
    assert child.stdin is not None, "it is a pipe"
    assert child.stdout is not None, "it is a pipe"
    child.stdin.write(line)
    child.stdin.flush()
    header: dict[str, Any] = json.loads(child.stdout.readline())
    body = child.stdout.read(header["bytes"])
    if len(body) < header["bytes"]:
        raise EOFError
    return header, body


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _ending(status: int) -> str:
    if status < 0:
        return f"it ended by {signal.Signals(-status).name}"
    return f"it ended with exit status {status}"
