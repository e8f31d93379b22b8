"""How a server gets its port, and what to say when it cannot."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from dataclasses import dataclass

from lmtool.access.names import is_loopback
from lmtool.errors import AccessDeniedError, LmtoolError, ResourceError

PROBE_LIMIT = 0.3
"""Seconds that whoever holds the port has to say that it is an LMTP server."""


@dataclass(frozen=True, slots=True)
class ListenConfig:
    """Where a server can be reached."""

    host: str = "127.0.0.1"
    """Name or address of this machine's interface; `0.0.0.0` and `::` mean every interface."""
    port: int = 8080
    """0 takes a free one."""

    @property
    def public(self) -> bool:
        """Whether other machines can connect."""
        return not is_loopback(self.host)


def bind(config: ListenConfig) -> list[socket.socket]:
    """Take the port on every address the host's name stands for, so that nobody else can; nothing is accepted yet.

    Raises `ResourceError` that says why not; its `__cause__` is an `OSError` with EADDRINUSE for a port in use.
    """
    sockets: list[socket.socket] = []
    refused: OSError | None = None
    with contextlib.ExitStack() as undo:
        for family, address in _addresses(config):
            port = sockets[0].getsockname()[1] if sockets else config.port
            try:
                bound = _bound(family, (address, port))
            except OSError as error:
                if error.errno in {errno.EADDRINUSE, errno.EACCES}:
                    raise _refusal(config, error) from error
                refused = error
            else:
                sockets.append(undo.enter_context(bound))
        if not sockets:
            assert refused is not None
            raise _refusal(config, refused) from refused
        undo.pop_all()
    return sockets


def url(config: ListenConfig, sockets: list[socket.socket]) -> str:
    """Where a client on this machine can reach what listens on these sockets."""
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(config.host, config.host)  # noqa: S104 - compared, not bound
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"ws://{host}:{sockets[0].getsockname()[1]}/"


def _addresses(config: ListenConfig) -> list[tuple[socket.AddressFamily, str]]:
    try:
        found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise ResourceError(
            f"cannot listen on {config.host!r}: no address is known under this name",
            "this machine only:  --host 127.0.0.1",
            "every interface:    --host 0.0.0.0",
        ) from error
    return list(dict.fromkeys((family, str(address[0])) for family, _, _, _, address in found))


def _bound(family: socket.AddressFamily, address: tuple[str, int]) -> socket.socket:
    taken = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a restart need not wait for old connections
        # Connections inherit it. asyncio sets it on sockets of its own making only, and without it a stream's second
        # frame waits for the first one's delayed acknowledgement: 40 ms.
        taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if family == socket.AF_INET6:
            taken.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        taken.bind(address)
        taken.listen(2048)  # two sockets can share an address until one of them listens
        taken.setblocking(False)  # noqa: FBT003 - the standard library's signature
    except OSError:
        taken.close()
        raise
    return taken


def _refusal(config: ListenConfig, error: OSError) -> ResourceError:
    if error.errno == errno.EADDRINUSE:
        return ResourceError(f"port {config.port} is already in use", _other_port(config))
    if error.errno == errno.EACCES:
        return ResourceError(
            f"port {config.port} needs administrator rights", f"a free one from 1024 up:  --port {config.port + 8000}"
        )
    return ResourceError(
        f"cannot listen on {config.host}:{config.port}: {(error.strerror or str(error)).lower()}",
        "this machine only:  --host 127.0.0.1",
    )


def _other_port(config: ListenConfig) -> str:
    return f"other port:     --port {config.port % 65535 + 1}     (0 picks a free one)"


async def explain(config: ListenConfig, refusal: ResourceError, api_key: str | None = None) -> ResourceError:
    """Find out who holds a port that is in use: a better error when it is an LMTP server, else the same one.

    api_key: shown to it.
    """
    cause = refusal.__cause__
    if not isinstance(cause, OSError) or cause.errno != errno.EADDRINUSE:
        return refusal
    served = await _served_on(config, api_key)
    if served is None:
        return refusal
    here = "" if config.port == 8080 else f"-e :{config.port} "
    return ResourceError(
        f"port {config.port} is already in use by an LMTP server ({served})",
        f'use it:         lmtool chat {here}"..."',
        _other_port(config),
    )


async def _served_on(config: ListenConfig, api_key: str | None) -> str | None:
    """What an LMTP server on this port says of itself; None where there is none."""
    import asyncio

    from lmtool.cli.wiring import connect

    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(config.host, config.host)  # noqa: S104 - compared, not bound
    try:
        async with asyncio.timeout(PROBE_LIMIT), connect(f"{host}:{config.port}", api_key=api_key) as client:
            return f"model {(await client.info()).model}"
    except AccessDeniedError:
        return "which wants another key"
    except (LmtoolError, TimeoutError):
        return None
