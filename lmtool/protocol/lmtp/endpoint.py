"""Endpoints: where a server is, and the spellings of that."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlsplit

from lmtool.core.errors import UsageError
from lmtool.net.access.names import is_loopback
from lmtool.net.access.outgoing import authorization, unreadable
from lmtool.net.unix_sockets import PREFIX, unix_path

if TYPE_CHECKING:
    from collections.abc import Callable

_FORMS = "write ws://HOST:PORT/, wss://HOST/, http://HOST:PORT, HOST:PORT, :PORT, unix:PATH, or stdio:COMMAND"
_SCHEMES = {"ws": "ws", "http": "ws", "wss": "wss", "https": "wss"}


@dataclass(frozen=True, slots=True)
class SocketEndpoint:
    """A server that listens."""

    url: str
    """Starts with `ws://` or `wss://`, or is `unix:PATH`; has no credentials, so it may be shown."""
    loopback: bool
    """True if it is on this machine, so that no proxy lies on the way."""
    authorization: str | None = field(default=None, repr=False)
    """Value of the handshake's `Authorization` header."""


@dataclass(frozen=True, slots=True)
class CommandEndpoint:
    """A server that is started for this client alone, connected by its stdin and stdout."""

    words: tuple[str, ...]
    """The program and its arguments; no shell is involved."""
    on_log: Callable[[str], None] | None = None
    """Called with each line of its stderr, in the event loop; None: it writes to this process's stderr."""

    @property
    def url(self) -> str:
        """The way to write it."""
        return f"stdio:{shlex.join(self.words)}"

    @property
    def program(self) -> str:
        """The program by its name, also behind `env`, whose options here are single words."""
        if self.words[0] != "env":
            return self.words[0]
        return next((word for word in self.words[1:] if not word.startswith("-") and "=" not in word), "env")


Endpoint: TypeAlias = SocketEndpoint | CommandEndpoint


def parse(text: str | Endpoint, api_key: str | None = None) -> Endpoint:
    """The endpoint that a text names; a parsed one is returned as it is. Raises `UsageError`.

    api_key: sent to a server that listens, unless the text has credentials of its own (`ws://user:KEY@HOST:PORT/`).
    """
    if not isinstance(text, str):
        return text
    if text.startswith("stdio:"):
        return _command(text)
    if (path := unix_path(text)) is not None:
        if not path:
            raise _no_endpoint(text, "it names no path")
        return SocketEndpoint(f"{PREFIX}{path}", loopback=True, authorization=authorization("", api_key)[1])
    text, shown = authorization(text, api_key)
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "ws", re.sub(r"^:(?=\d)", "127.0.0.1:", text)
    if scheme not in _SCHEMES:
        raise _no_endpoint(text, f"the scheme {scheme!r} is unknown")
    url = f"{_SCHEMES[scheme]}://{rest}"
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname, parts.port
    except ValueError as error:
        raise _no_endpoint(text, str(error)) from None
    if not host:
        raise _no_endpoint(text, "it names no host")
    return SocketEndpoint(url if parts.path else f"{url}/", is_loopback(host), shown)


def _no_endpoint(text: str, reason: str) -> UsageError:
    name, why = unreadable(text, reason)
    return UsageError(f"{name} is no endpoint: {why}", _FORMS)


def _command(text: str) -> CommandEndpoint:
    try:
        words = tuple(shlex.split(text.removeprefix("stdio:")))
    except ValueError as error:
        raise UsageError(f"{text!r} is no endpoint: {error}", _FORMS) from None
    if not words:
        raise UsageError(f"{text!r} is no endpoint: it names no command", _FORMS)
    return CommandEndpoint(words)
