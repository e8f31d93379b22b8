"""Unix sockets: `unix:PATH`, a server of this machine behind a file in the place of a host and a port."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

PREFIX = "unix:"
HOST = "localhost"
"""The `Host` of requests over a Unix socket, which has no name of its own; every server knows itself by it."""


def unix_path(url: str) -> str | None:
    """The path in `unix:PATH` or `unix://PATH`, `~` as a shell reads it; None for any other address.

    Empty where the address names no path.
    """
    if not url.startswith(PREFIX):
        return None
    path = url.removeprefix(PREFIX).removeprefix("//")
    return str(Path(path).expanduser()) if path.startswith("~") else path


def runtime_folder() -> Path:
    """Where this user's servers put sockets: the runtime folder of the session, else one below `/tmp`."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    return Path(base) / "lmtool" if base else Path(tempfile.gettempdir()) / f"lmtool-{os.geteuid()}"


def is_private(folder: Path) -> bool:
    """True if it is a folder of this user's that nobody else can look into, and no link to one."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def socket_beside(port: int) -> Path | None:
    """The socket that this user's server at this port of this machine listens on as well, if there is one."""
    if not hasattr(socket, "AF_UNIX"):
        return None
    path = runtime_folder() / f"{port}.sock"
    if not is_private(path.parent) or not path.is_socket():
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # noqa: FBT003 - a server that is busy is one, too
        try:
            probe.connect(str(path))
        except BlockingIOError:
            pass
        except OSError:  # left behind by one that was killed
            return None
    return path


async def open_websocket(url: str, *, route: str = "/", authority: str = HOST, **options: Any) -> ClientConnection:  # noqa: ANN401 - of many types
    """A WebSocket connection to `ws://`, `wss://` or `unix:PATH`.

    route, authority: path and `Host` of the request over a Unix socket, whose address has neither. options: those of
    `websockets`. Raises what its `connect` raises: `InvalidHandshake`, `InvalidURI`, `OSError`, `TimeoutError`.
    """
    from websockets.asyncio.client import connect, unix_connect

    path = unix_path(url)
    if path is None:
        return await connect(url, **options)
    return await unix_connect(path, f"ws://{authority}{route}", **{**options, "proxy": None})
