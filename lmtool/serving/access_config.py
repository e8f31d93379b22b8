"""The options of who may use a server's port: keys, origins, hosts and proxies."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmtool.core.errors import UsageError
from lmtool.net.access.caller import Callers
from lmtool.net.access.credentials import checked_key
from lmtool.net.access.forwarding import parse_proxies
from lmtool.net.access.key_file import read_keys
from lmtool.net.access.names import host_name, machine_names, normal_origin
from lmtool.net.access.policy import AccessPolicy
from lmtool.serving.config import CONNECTIONS
from lmtool.settings.option import option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lmtool.net.access.forwarding import TrustedProxies
    from lmtool.serving.config import ListenConfig


@dataclass(frozen=True, slots=True)
class AccessConfig:
    """Which requests a server with a port accepts, apart from the API key that they must carry."""

    allow_origin: tuple[str, ...] = option(
        (), "Accept web pages of this origin (repeatable; * for any).", CONNECTIONS, metavar="URL"
    )
    """Such as `https://example.org`, beside those of this machine."""
    allow_host: tuple[str, ...] = option(
        (), "Accept this Host too, such as a reverse proxy's name (repeatable; * for any).", CONNECTIONS, metavar="NAME"
    )
    """Beside loopback names, IP addresses, this machine's names and the one it listens on."""
    no_auth: bool = option(False, "Listen beyond loopback without an API key.", CONNECTIONS)
    api_keys: str | None = option(
        None,
        "Accept the keys of this TOML file, each with its limits; SIGHUP reads it again.",
        CONNECTIONS,
        metavar="FILE",
    )
    """In place of one `--api-key`."""
    trusted_proxy: tuple[str, ...] = option(
        (),
        "Believe this reverse proxy where requests come from: address, network or unix (repeatable).",
        CONNECTIONS,
        metavar="ADDRESS",
    )
    """Only from there a forwarded address counts as the client's."""

    def policy(self, listen: ListenConfig, api_key: str | None = None) -> AccessPolicy:
        """The policy of a server that listens there. Raises `UsageError` for one open to everybody by oversight.

        api_key: the key that clients must send; None: no key. Raises `FileError` for a file of keys with faults.
        """
        self._check_contradictions(api_key)
        keyed, proxies = api_key is not None or self.api_keys is not None, parse_proxies(self.trusted_proxy)
        if not keyed and not self.no_auth:
            _check_closed(listen, proxies)
        key = None if api_key is None else checked_key(api_key)
        callers = None if self.api_keys is None else Callers(read_keys(self.api_keys))
        names = dict.fromkeys((*machine_names(socket.gethostname()), listen.host.lower(), *self._hosts()))
        return AccessPolicy(
            key,
            tuple(self._origins()),
            tuple(names),
            callers,
            loopback_only=not keyed and not self.no_auth,
            proxies=proxies,
        )

    def _check_contradictions(self, api_key: str | None) -> None:
        if self.no_auth and api_key is not None:
            raise UsageError(
                "--no-auth and a key (--api-key, LMTOOL_API_KEY) contradict each other", "give one of them"
            )
        if self.api_keys is None:
            return
        if api_key is not None:
            raise UsageError(
                "--api-keys and a key (--api-key, LMTOOL_API_KEY) contradict each other",
                "put that key into the file, or leave one of them out",
            )
        if self.no_auth:
            raise UsageError("--api-keys and --no-auth contradict each other", "give one of them")

    def _origins(self) -> Iterator[str]:
        for text in self.allow_origin:
            origin = normal_origin(text)
            if origin is None:
                raise UsageError(f"--allow-origin {text!r} is no origin", "such as https://example.org, null, or *")
            yield origin

    def _hosts(self) -> Iterator[str]:
        for text in self.allow_host:
            name = text if text == "*" else host_name(text)
            if name is None:
                raise UsageError(f"--allow-host {text!r} is no name of a host", "such as models.example.org, or *")
            yield name


def _check_closed(listen: ListenConfig, proxies: TrustedProxies) -> None:
    """Raise `UsageError` for a server that others can reach and that asks for no key."""
    ways = (
        "ask for one:        --api-key KEY, or better LMTOOL_API_KEY in the environment",
        "ask for many:       --api-keys FILE",
        "let anyone in:      --no-auth",
    )
    if listen.public:
        problem = f"other machines can connect to {listen.host}, and no key is asked for"
        raise UsageError(problem, *ways, "this machine only:  --host 127.0.0.1")
    if proxies.networks or (proxies.unix and listen.unix is None):  # a socket is for its owner's own processes
        problem = "--trusted-proxy is for requests of other machines, and no key is asked for"
        raise UsageError(problem, *ways, "this machine only:  leave it out")
