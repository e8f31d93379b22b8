"""Binds the port or Unix socket of a server or proxy, gives its URL, and explains why binding failed."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from lmtool.core.errors import AccessDeniedError, LmtoolError, ResourceError, UsageError
from lmtool.net.unix_sockets import PREFIX, is_private, runtime_folder, unix_path

if TYPE_CHECKING:
    from lmtool.serving.config import ListenConfig
    from lmtool.trace.proxy import Target

PROBE_LIMIT = 0.3
"""Seconds for the holder of a port to answer as an LMTP server."""
_OWNER_ONLY = 0o177
"""Umask of a socket that only its owner may connect to."""


def bind(config: ListenConfig) -> list[socket.socket]:
    """Bind the port on every address of the host, or the Unix socket.

    Raises `ResourceError`; its `__cause__` is an `OSError` with EADDRINUSE for a port in use.
    """
    if config.unix is not None:
        return [listen_at(config.unix)]
    sockets: list[socket.socket] = []
    last_error: OSError | None = None
    with contextlib.ExitStack() as undo:
        for family, address in _addresses(config):
            port = sockets[0].getsockname()[1] if sockets else config.port
            try:
                listener = _listening_socket(family, (address, port))
            except OSError as error:
                if error.errno in {errno.EADDRINUSE, errno.EACCES}:
                    raise _refusal(config, error) from error
                last_error = error
            else:
                sockets.append(undo.enter_context(listener))
        if not sockets:
            assert last_error is not None
            raise _refusal(config, last_error) from last_error
        undo.pop_all()
    return sockets


def url(config: ListenConfig, sockets: list[socket.socket], *, tls: bool = False) -> str:
    """URL for clients on this machine. tls: whether the server uses TLS."""
    if config.unix is not None:
        return f"{PREFIX}{config.unix}"
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(config.host, config.host)  # noqa: S104 - compared, not bound
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"{'wss' if tls else 'ws'}://{host}:{sockets[0].getsockname()[1]}/"


def _addresses(config: ListenConfig) -> list[tuple[socket.AddressFamily, str]]:
    try:
        infos = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise ResourceError(
            f"cannot listen on {config.host!r}: no address is known under this name",
            "this machine only:  --host 127.0.0.1",
            "every interface:    --host 0.0.0.0",
        ) from error
    return list(dict.fromkeys((family, str(address[0])) for family, _, _, _, address in infos))


def _listening_socket(family: socket.AddressFamily, address: tuple[str, int]) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # restart at once
        # Connections inherit it. asyncio sets it on sockets of its own making only, and without it a stream's second
        # frame waits for the first one's delayed acknowledgement: 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(2048)  # two sockets can share an address until one of them listens
    except OSError:
        listener.close()
        raise
    return listener


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
    """An error that names the model of the LMTP server using the port; otherwise `refusal` itself.

    api_key: sent to it.
    """
    cause = refusal.__cause__
    if not isinstance(cause, OSError) or cause.errno != errno.EADDRINUSE:
        return refusal
    model = await _model_on(config, api_key)
    if model is None:
        return refusal
    if config.unix is not None:
        return ResourceError(
            f"an LMTP server ({model}) listens at unix:{config.unix} already",
            f'use it:          lmtool chat -e unix:{config.unix} "..."',
            *refusal.hints,
        )
    here = "" if config.port == 8080 else f"-e :{config.port} "
    return ResourceError(
        f"port {config.port} is already in use by an LMTP server ({model})",
        f'use it:         lmtool chat {here}"..."',
        _other_port(config),
    )


async def _model_on(config: ListenConfig, api_key: str | None) -> str | None:
    """Description of the LMTP server listening here; None without one."""
    import asyncio

    from lmtool.protocol.lmtp.client import LmtpClient

    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(config.host, config.host)  # noqa: S104 - compared, not bound
    place = f"{host}:{config.port}" if config.unix is None else f"{PREFIX}{config.unix}"
    try:
        async with asyncio.timeout(PROBE_LIMIT), LmtpClient(place, api_key=api_key) as client:
            return f"model {(await client.info()).model}"
    except AccessDeniedError:
        return "which wants another key"
    except (LmtoolError, TimeoutError):
        return None


def bind_proxy(listen: ListenConfig, option: str) -> list[socket.socket]:
    """Bind the port of a proxy. option: the option that named it. Raises `ResourceError`."""
    try:
        return bind(listen)
    except ResourceError as error:
        if listen.unix is not None:
            raise ResourceError(error.message, f"another one:  {option} unix:PATH") from error
        raise ResourceError(error.message, f"another one:  {option} 127.0.0.1:0     (0 picks a free port)") from error


def proxy_url(listen: ListenConfig, sockets: list[socket.socket], target: Target) -> str:
    """URL of a proxy, with the scheme and path of its target."""
    if listen.unix is not None:
        return url(listen, sockets)
    scheme = "http" if target.url.startswith("http") else "ws"
    path = target.path if scheme == "http" else "/"
    return f"{scheme}{url(listen, sockets).removeprefix('ws').rstrip('/')}{path}"


def parse_listen(text: str) -> ListenConfig:
    """Parse `HOST:PORT`, `:PORT`, `PORT` or `unix:PATH`; without a host, loopback. Raises `UsageError`."""
    from lmtool.serving.config import ListenConfig

    if path := unix_path(text):
        return ListenConfig(unix=path)
    match = re.fullmatch(r"(?:(?P<host>.*):)?(?P<port>\d{1,5})", text)
    if match is None or int(match["port"]) > 65535:
        raise UsageError(f"cannot listen on {text!r}", "write HOST:PORT, :PORT, PORT or unix:PATH")
    return ListenConfig((match["host"] or "127.0.0.1").strip("[]"), int(match["port"]))


def proxy_target(text: str) -> Target:
    """The target of a proxy. Raises `UsageError`, also for a URL with credentials."""
    from lmtool.trace.proxy import parse_target

    target = parse_target(text)
    if target.authorization is not None:
        raise UsageError(
            f"clients send the key for {target.url} themselves: a proxy forwards their keys and adds none",
            f"omit it:  --to {target.url}",
        )
    return target


class UnixListener(socket.socket):
    """A listening socket at a path; closing it removes the file unless another server has replaced it."""

    def __init__(self, path: str) -> None:
        """Bind the path. Raises `OSError`."""
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
    """Listen at this path; an abandoned socket file is replaced.

    Raises `ResourceError`; its `__cause__` is an `OSError` with EADDRINUSE for a running server.
    """
    if not hasattr(socket, "AF_UNIX"):
        raise UsageError("this system's Python has no Unix sockets", "listen on a port:  --port 8080")
    try:
        _remove_abandoned(path)
        return UnixListener(path)
    except OSError as error:
        raise _unix_refusal(path, error) from error


def listen_beside(port: int) -> UnixListener | None:
    """Listen on a private Unix socket, over which this user may watch the server. Raises `ResourceError`.

    None on systems that do not report the peer's user.
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
    """Remove a socket file without a server. Raises `OSError` with EADDRINUSE if a server listens."""
    try:
        if not stat.S_ISSOCK(Path(path).stat().st_mode):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # noqa: FBT003 - a busy server counts as listening
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink()
            return
        except BlockingIOError:
            pass
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def _unix_refusal(path: str, error: OSError) -> ResourceError:
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
