"""A listening Unix socket: a file that its owner alone may use, and that goes with the server."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from pathlib import Path

from lmtool.core.errors import ResourceError, UsageError
from lmtool.net.unix_sockets import is_private, runtime_folder

_OWNER_ONLY = 0o177
"""The umask of a socket that nobody else may connect to."""


class UnixListener(socket.socket):
    """A listening socket at a path; closing it removes the file, unless another server has put its own there."""

    def __init__(self, path: str) -> None:
        """Take the path. Raises `OSError`."""
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)
        self.path = path
        self._inode: int | None = None
        previous = os.umask(_OWNER_ONLY)
        try:
            self.bind(path)
            self._inode = Path(path).stat().st_ino
            self.listen(2048)
        except OSError:
            self.close()
            raise
        finally:
            os.umask(previous)

    def close(self) -> None:
        """Close it, and remove its file."""
        super().close()
        inode, self._inode = self._inode, None
        with contextlib.suppress(FileNotFoundError):
            if inode is not None and Path(self.path).stat().st_ino == inode:
                Path(self.path).unlink()


def listen_at(path: str) -> UnixListener:
    """Listen at this path; the file of a server that has ended without removing it is replaced.

    Raises `ResourceError` where that cannot be; its `__cause__` is an `OSError` with EADDRINUSE for a running server.
    """
    if not hasattr(socket, "AF_UNIX"):
        raise UsageError("this system's Python has no Unix sockets", "listen on a port:  --port 8080")
    try:
        _remove_abandoned(path)
        return UnixListener(path)
    except OSError as error:
        raise _refusal(path, error) from error


def listen_beside(port: int) -> UnixListener | None:
    """Listen beside a port for this user alone, who may watch the server there. Raises `ResourceError`.

    None where the system does not tell who has connected.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    folder = runtime_folder()
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise ResourceError(f"cannot make the folder {folder}: {(error.strerror or str(error)).lower()}") from None
    if not is_private(folder):
        raise ResourceError(f"{folder} is not a folder of your own that others cannot look into", "remove it")
    return listen_at(str(folder / f"{port}.sock"))


def _remove_abandoned(path: str) -> None:
    """Remove a socket that nobody listens on. Raises `OSError` with EADDRINUSE where somebody does."""
    try:
        if not stat.S_ISSOCK(Path(path).stat().st_mode):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # noqa: FBT003 - a server that is busy is one, too
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink()
            return
        except BlockingIOError:
            pass
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def _refusal(path: str, error: OSError) -> ResourceError:
    other = "another one:     --unix PATH"
    if error.errno == errno.EADDRINUSE:
        return ResourceError(f"a server listens at unix:{path} already", other)
    if error.errno == errno.EEXIST:
        return ResourceError(f"cannot listen at unix:{path}: this file is no socket, and is not replaced", other)
    if error.errno is None:  # the message of Python's own check of the length
        longest = "a path of a Unix socket has about 100 bytes at most"
        return ResourceError(f"cannot listen at unix:{path[:40]}...: {longest}", "a shorter one:   --unix PATH")
    reason = (error.strerror or str(error)).lower()
    return ResourceError(
        f"cannot listen at unix:{path}: {reason}", "in a folder that exists and may be written:  --unix PATH"
    )
