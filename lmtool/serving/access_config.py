"""Options of every server with a port: API keys, origins, hosts, proxies, TLS, limits."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lmtool.core.errors import UsageError
from lmtool.net.access.caller import Callers
from lmtool.net.access.credentials import checked_key
from lmtool.net.access.forwarding import parse_proxies
from lmtool.net.access.key_file import read_keys
from lmtool.net.access.names import host_name, machine_names, normal_origin
from lmtool.net.access.policy import AccessPolicy
from lmtool.protocol.lmtp.config import ServerConfig
from lmtool.serving.certificate import Certificate, read_certificate
from lmtool.serving.config import CONNECTIONS, HttpConfig, ListenConfig, ServiceConfig, WatchConfig
from lmtool.settings.option import option

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from lmtool.net.access.forwarding import TrustedProxies


@dataclass(frozen=True, slots=True)
class AccessConfig:
    """Rules for accepting requests on a port, in addition to API keys."""

    allow_origin: tuple[str, ...] = option(
        (), "Accept web pages of this origin (repeatable; * for any).", CONNECTIONS, metavar="URL"
    )
    """Such as `https://example.org`; those of this machine are always accepted."""
    allow_host: tuple[str, ...] = option(
        (), "Accept this Host, such as a reverse proxy's name (repeatable; * for any).", CONNECTIONS, metavar="NAME"
    )
    """Always accepted: loopback names, IP addresses, this machine's names and the name it listens on."""
    no_auth: bool = option(False, "Listen beyond loopback without an API key.", CONNECTIONS)
    api_keys: str | None = option(
        None,
        "Accept the keys in this TOML file, each with its limits; SIGHUP reloads it.",
        CONNECTIONS,
        metavar="FILE",
    )
    """Instead of `--api-key`."""
    trusted_proxy: tuple[str, ...] = option(
        (),
        "Trust forwarded client addresses from this proxy: address, network or unix (repeatable).",
        CONNECTIONS,
        metavar="ADDRESS",
    )
    """Forwarded addresses from other peers are ignored."""

    def policy(self, listen: ListenConfig, api_key: str | None = None) -> AccessPolicy:
        """The access policy of a server that listens at `listen`.

        api_key: the key that clients must send; None: no key. Raises `UsageError` for a server that other machines can
        reach without a key or `no_auth`, `FileError` for an invalid key file.
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
                "put that key into the file, or omit one of them",
            )
        if self.no_auth:
            raise UsageError("--api-keys and --no-auth contradict each other", "give one of them")

    def _origins(self) -> Iterator[str]:
        for text in self.allow_origin:
            origin = normal_origin(text)
            if origin is None:
                raise UsageError(f"--allow-origin {text!r} is not an origin", "such as https://example.org, null, or *")
            yield origin

    def _hosts(self) -> Iterator[str]:
        for text in self.allow_host:
            name = text if text == "*" else host_name(text)
            if name is None:
                raise UsageError(f"--allow-host {text!r} is not a host name", "such as models.example.org, or *")
            yield name


def _check_closed(listen: ListenConfig, proxies: TrustedProxies) -> None:
    """Raise `UsageError` for a server that other machines can reach without a key."""
    ways = (
        "require a key:      LMTOOL_API_KEY in the environment, or --api-key KEY",
        "several keys:       --api-keys FILE",
        "allow anyone:       --no-auth",
    )
    if listen.public:
        problem = f"other machines can connect to {listen.host}, and no key is asked for"
        raise UsageError(problem, *ways, "this machine only:  --host 127.0.0.1")
    if proxies.networks or (proxies.unix and listen.unix is None):  # only its owner can connect to a Unix socket
        problem = "--trusted-proxy accepts requests of other machines, and no key is asked for"
        raise UsageError(problem, *ways, "this machine only:  leave it out")


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """Certificate of a server's ports."""

    ssl_certfile: str | None = option(None, "Use TLS with this certificate chain.", CONNECTIONS, metavar="FILE")
    """PEM."""
    ssl_keyfile: str | None = option(
        None, "Private key, if not in the certificate's file.", CONNECTIONS, metavar="FILE"
    )
    """PEM, not encrypted."""

    def load(self, listen: ListenConfig | None) -> Certificate | None:
        """The certificate, or None without TLS. listen: None for a server on a pipe.

        Raises `UsageError` for contradicting options, `FileError` for unusable files.
        """
        if self.ssl_certfile is None:
            if self.ssl_keyfile is not None:
                raise UsageError("--ssl-keyfile needs its certificate", "add it:  --ssl-certfile FILE")
            return None
        if listen is None or listen.unix is not None:
            other = "--stdio" if listen is None else "--unix"
            raise UsageError(f"--ssl-certfile and {other} contradict each other: TLS is for ports", "omit one of them")
        return read_certificate(self.ssl_certfile, self.ssl_keyfile)


@dataclass(frozen=True, slots=True)
class PortOptions:
    """The options that `lmtool serve`, `balance`, `gateway` and `lmtool.serve` in Python share."""

    access: AccessConfig = field(default_factory=AccessConfig)
    http: HttpConfig = field(default_factory=HttpConfig)
    tls: TlsConfig = field(default_factory=TlsConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    watch: WatchConfig = field(default_factory=WatchConfig)

    def applied(
        self, service: ServiceConfig, listen: ListenConfig | None, api_key: str | None, typed: Collection[str] = ()
    ) -> ServiceConfig:
        """The service with these options. listen: None on a pipe; typed: names of options on the command line.

        Raises `UsageError` for contradicting options, `FileError` for unusable files.
        """
        self.http.check()
        if listen is not None:
            listen.check(typed)
        return replace(
            service,
            server=self.server,
            access=AccessPolicy() if listen is None else self.access.policy(listen, api_key),
            api_keys=self.access.api_keys,
            http=self.http,
            certificate=self.tls.load(listen),
            watch=self.watch,
        )
