"""Ends vLLM's engine processes when their worker dies, and the worker when its server dies, however that happens.

Nothing is sent: the kernel closes a process's sockets and pipes however it dies, and a thread at the other end waits
for that. It needs no signals, no parent process and no help from vLLM.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import shutil
import socket
import threading
import time
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from pathlib import Path

GRACE_SECONDS = 2.0
"""For the engine's processes to end by themselves."""
_NAME = "alive"
_BACKLOG = 4096
"""Most processes: their connections stay in the queue, none is ever accepted."""


class LivenessSocket:
    """The worker's end: a listening socket that lives as long as the process."""

    def __init__(self, directory: Path) -> None:
        """directory: shared with the engine's processes; removed at the end, by them where the worker could not."""
        self._directory = directory
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(directory / _NAME))
        self._socket.listen(_BACKLOG)
        os.register_at_fork(after_in_child=self._in_child)

    def end(self, status: int) -> NoReturn:
        """End the engine's processes, then this one with that exit status, and remove the directory.

        vLLM's own shutdown waits five seconds for processes that it then kills, and the interpreter's exit could wait
        for its threads forever. Python's tracker process is left alone: it frees shared memory when all others ended.
        """
        self._socket.close()
        deadline = time.monotonic() + GRACE_SECONDS
        for process in multiprocessing.active_children():
            process.join(max(0.0, deadline - time.monotonic()))
            with contextlib.suppress(OSError):
                process.kill()  # where it hangs so that no thread of its own can end it
        shutil.rmtree(self._directory, ignore_errors=True)
        os._exit(status)

    def end_with_reader(self, descriptor: int) -> None:
        """Start a thread that ends everything as soon as the pipe behind `descriptor` has no reader any more.

        That is when the server has died: one that closes a worker reads until the worker has ended. It works while a
        model loads, too, when nothing is written for minutes.
        """
        poll = select.poll()
        poll.register(os.dup(descriptor), 0)

        def wait() -> None:
            poll.poll()
            self.end(1)

        threading.Thread(target=wait, name="lmtool-watchdog", daemon=True).start()

    def _in_child(self) -> None:
        """A process that is forked, instead of spawned, has a copy of the socket."""
        if self._socket.fileno() != -1:
            self._socket.close()
            end_with_worker(self._directory)


def end_with_worker(directory: Path) -> None:
    """Start a thread that ends this process, one of the engine's, as soon as the worker has ended."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(directory / _NAME))
    except OSError:
        _exit(directory)

    def wait() -> None:
        with contextlib.suppress(OSError):
            connection.recv(1)
        _exit(directory)

    threading.Thread(target=wait, name="lmtool-watchdog", daemon=True).start()


def _exit(directory: Path) -> NoReturn:
    """Exit at once: the process may hang in a computation, and nothing is left to clean up for."""
    shutil.rmtree(directory, ignore_errors=True)
    os._exit(1)
