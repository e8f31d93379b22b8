"""Ends the processes of vLLM's engine with their worker, and the worker with its server, whatever ended those.

Nothing is sent: the kernel closes a process's sockets and pipes however it dies, and a thread at the other end waits
for that. Nor does anything depend on signals, on whose child a process is, or on what vLLM does.
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
"""That the engine's processes have to end by themselves."""
_NAME = "alive"
_BACKLOG = 4096
"""Processes that can wait: connections stay in the queue, since nobody has to accept them."""


class LivenessSocket:
    """The worker's end: a socket that listens as long as the process lives."""

    def __init__(self, folder: Path) -> None:
        """folder: shared with the engine's processes; removed at the end, by them where the worker could not."""
        self._folder = folder
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(folder / _NAME))
        self._socket.listen(_BACKLOG)
        os.register_at_fork(after_in_child=self._in_child)

    def end(self, status: int) -> NoReturn:
        """End the engine's processes, then this one with that exit status, and remove the folder.

        vLLM's own shutdown waits five seconds for processes that it then kills, and the interpreter's exit could wait
        for its threads for ever. Python's process that tracks shared memory is left to give it back, which it does when
        all others have ended.
        """
        self._socket.close()
        deadline = time.monotonic() + GRACE_SECONDS
        for process in multiprocessing.active_children():
            process.join(max(0.0, deadline - time.monotonic()))
            with contextlib.suppress(OSError):  # it is gone already
                process.kill()  # where it hangs so that no thread of its own can end it
        shutil.rmtree(self._folder, ignore_errors=True)
        os._exit(status)

    def end_with_reader(self, descriptor: int) -> None:
        """End all as soon as nobody reads what is written to `descriptor`; returns at once.

        That is when the server has died: one that closes a worker reads until the worker has ended. It is noticed while
        a model loads, too, when nothing is written for minutes.
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
            end_with_worker(self._folder)


def end_with_worker(folder: Path) -> None:
    """End this process, one of the engine's, as soon as the worker has ended; returns at once."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(folder / _NAME))
    except OSError:
        _exit(folder)

    def wait() -> None:
        with contextlib.suppress(OSError):
            connection.recv(1)
        _exit(folder)

    threading.Thread(target=wait, name="lmtool-watchdog", daemon=True).start()


def _exit(folder: Path) -> NoReturn:
    """End at once: the process may hang in a computation, and what it would tidy up is nobody's any more."""
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)
