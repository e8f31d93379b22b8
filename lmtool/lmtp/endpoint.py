"""Where a server is: the ways to write it, and what each means."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlsplit

from lmtool.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

_FORMS = "write ws://HOST:PORT/, wss://HOST/, http://HOST:PORT, HOST:PORT, :PORT, or stdio:COMMAND"
_SCHEMES = {"ws": "ws", "http": "ws", "wss": "wss", "https": "wss"}


@dataclass(frozen=True, slots=True)
class SocketEndpoint:
    """A server that listens."""

    url: str
    """Starts with `ws://` or `wss://`."""
    loopback: bool
    """Whether it is on this machine, so that no proxy lies on the way."""


@dataclass(frozen=True, slots=True)
class CommandEndpoint:
    """A server that is started for this client alone, and spoken to through its stdin and stdout."""

    words: tuple[str, ...]
    """The program and its arguments; no shell is involved."""
    on_log: Callable[[str], None] | None = None
    """Called with each line of its stderr, in the event loop; None: it writes to this process's stderr."""

    @property
    def program(self) -> str:
        """The program by its name, also behind `env`, whose options here are single words."""
        if self.words[0] != "env":
            return self.words[0]
        return next((word for word in self.words[1:] if not word.startswith("-") and "=" not in word), "env")


Endpoint: TypeAlias = SocketEndpoint | CommandEndpoint


def parse(text: str) -> Endpoint:
    """The endpoint that a text means. Raises `UsageError`."""
    if text.startswith("stdio:"):
        return _command(text)
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "ws", re.sub(r"^:(?=\d)", "127.0.0.1:", text)
    if scheme not in _SCHEMES:
        raise UsageError(f"{text!r} is no endpoint: the scheme {scheme!r} is unknown", _FORMS)
    url = f"{_SCHEMES[scheme]}://{rest}"
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"{text!r} is no endpoint: {error}", _FORMS) from None
    if not host:
        raise UsageError(f"{text!r} is no endpoint: it names no host", _FORMS)
    return SocketEndpoint(url if parts.path else f"{url}/", _is_loopback(host))


def _command(text: str) -> CommandEndpoint:
    try:
        words = tuple(shlex.split(text.removeprefix("stdio:")))
    except ValueError as error:
        raise UsageError(f"{text!r} is no endpoint: {error}", _FORMS) from None
    if not words:
        raise UsageError(f"{text!r} is no endpoint: it names no command", _FORMS)
    return CommandEndpoint(words)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
