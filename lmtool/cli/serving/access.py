"""Options of the door (`lmtool.access`) that every command with a port has, and the policy that they make."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from lmtool.access.credentials import checked_key
from lmtool.access.names import host_name, machine_names, normal_origin
from lmtool.access.policy import AccessPolicy
from lmtool.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lmtool.cli.serving.listening import ListenConfig

PANEL = "Connections"

AllowOrigin = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-origin",
        metavar="URL",
        help="Accept web pages of this origin (repeatable; * for any).",
        rich_help_panel=PANEL,
    ),
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host",
        metavar="NAME",
        help="Accept this Host too, such as a reverse proxy's name (repeatable; * for any).",
        rich_help_panel=PANEL,
    ),
]
NoAuth = Annotated[
    bool,
    typer.Option("--no-auth", help="Listen beyond loopback without an API key.", rich_help_panel=PANEL),
]


@dataclass(frozen=True, slots=True)
class AccessConfig:
    """Which requests a server takes. Fields match the flags one to one."""

    api_key: str | None = field(default=None, repr=False)
    """What clients must show; None: nothing."""
    allow_origin: tuple[str, ...] = ()
    """Origins of web pages, such as `https://example.org`, beside those of this machine."""
    allow_host: tuple[str, ...] = ()
    """Names, beside loopback names, IP addresses, this machine's names and the one it listens on."""
    no_auth: bool = False
    """Listen on an interface that other machines reach, without a key."""

    def policy(self, listen: ListenConfig) -> AccessPolicy:
        """The policy of a server that listens there. Raises `UsageError` for one that lets everybody in unasked."""
        if self.no_auth and self.api_key is not None:
            raise UsageError(
                "--no-auth and a key (--api-key, LMTOOL_API_KEY) contradict each other", "give one of them"
            )
        if listen.public and self.api_key is None and not self.no_auth:
            raise UsageError(
                f"other machines can connect to {listen.host}, and no key is asked for",
                "ask for one:        --api-key KEY, or better LMTOOL_API_KEY in the environment",
                "let anyone in:      --no-auth",
                "this machine only:  --host 127.0.0.1",
            )
        key = None if self.api_key is None else checked_key(self.api_key)
        names = dict.fromkeys((*machine_names(socket.gethostname()), listen.host.lower(), *self._hosts()))
        return AccessPolicy(key, tuple(self._origins()), tuple(names))

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
