"""Unix sockets: `unix:PATH`, a server of this machine behind a file in the place of a host and a port."""

from __future__ import annotations

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
