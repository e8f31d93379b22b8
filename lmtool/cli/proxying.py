"""Where a proxy listens, and how its clients write that down."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

    from lmtool.cli.serving.listening import ListenConfig
    from lmtool.trace.proxy import Target


def bound(place: ListenConfig, option: str) -> list[socket.socket]:
    """Take the port that a proxy listens on; option: the one that named it. Raises `ResourceError`."""
    from lmtool.cli.serving import listening
    from lmtool.errors import ResourceError

    try:
        return listening.bind(place)
    except ResourceError as error:
        raise ResourceError(error.message, f"another one:  {option} 127.0.0.1:0     (0 picks a free port)") from error


def proxy_url(place: ListenConfig, sockets: list[socket.socket], target: Target) -> str:
    """Where clients find the proxy, in the form that they use for the server itself."""
    from lmtool.cli.serving import listening

    scheme = "http" if target.url.startswith("http") else "ws"
    path = target.path if scheme == "http" else "/"
    return f"{scheme}{listening.url(place, sockets).removeprefix('ws').rstrip('/')}{path}"


def listen_config(text: str) -> ListenConfig:
    """`HOST:PORT`, `:PORT` or `PORT`; this machine only where no host is named. Raises `UsageError`."""
    from lmtool.cli.serving.listening import ListenConfig
    from lmtool.errors import UsageError

    found = re.fullmatch(r"(?:(?P<host>.*):)?(?P<port>\d{1,5})", text)
    if found is None or int(found["port"]) > 65535:
        raise UsageError(f"cannot listen on {text!r}", "write HOST:PORT, :PORT or PORT, such as 127.0.0.1:8081")
    return ListenConfig((found["host"] or "127.0.0.1").strip("[]"), int(found["port"]))


def clients_target(text: str) -> Target:
    """The server that the clients of a proxy mean. Raises `UsageError`, also for one with credentials."""
    from lmtool.errors import UsageError
    from lmtool.trace.proxy import parse_target

    target = parse_target(text)
    if target.authorization is not None:
        raise UsageError(
            f"the key for {target.url} is its clients' to send: a proxy passes theirs on, and adds none",
            f"leave it out:  --to {target.url}",
        )
    return target
