"""Options that every command takes, before or after its name: for all commands, for clients, for servers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

from lmtool.settings.option import option
from lmtool.settings.terminal import ColorWhen, Output

if TYPE_CHECKING:
    from typing import Self

    from lmtool.protocol.lmtp.endpoint import Endpoint

DEFAULT_ENDPOINT = "ws://127.0.0.1:8080/"
PANEL = "Everywhere"


@dataclass(frozen=True, slots=True)
class Common:
    """Options of every command."""

    color: ColorWhen | None = option(None, "When to use colours.", PANEL, metavar="auto|always|never")
    quiet: bool = option(False, "Print no notes on stderr.", PANEL, short="-q")
    verbose: int = option(0, "Print more; -vv shows tracebacks.", PANEL, short="-v", count=True)
    settings: str | None = option(None, "Read settings from this file instead of lmtool.toml.", PANEL, metavar="FILE")
    typed: frozenset[str] = frozenset()
    """Names of the command's own options on the command line, not from environment or settings."""
    origins: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Long option, such as `--device`, that was set elsewhere: the variable or file, and the value."""

    @property
    def debug(self) -> bool:
        """True if tracebacks are printed."""
        return self.verbose >= 2 or os.environ.get("LMTOOL_DEBUG", "") not in {"", "0"}

    def output(self) -> Output:
        """Output of the command: results on stdout, notes and warnings on stderr."""
        return Output.of(self.color, quiet=self.quiet)

    def under(self, outer: Common | None) -> Self:
        """These options, completed by those typed before the command's name."""
        if outer is None:
            return self
        names = {each.name for each in fields(self)} & {each.name for each in fields(outer)} - {"typed", "origins"}
        return replace(self, **{name: getattr(self, name) or getattr(outer, name) for name in names})


@dataclass(frozen=True, slots=True, repr=False)
class ServerCommon(Common):
    """Options of a server."""

    api_key: str | None = option(None, "API key that clients must send; prefer LMTOOL_API_KEY.", PANEL, metavar="KEY")


@dataclass(frozen=True, slots=True, repr=False)
class ClientCommon(Common):
    """Options of a client; `endpoint` and `api_key` may contain secrets."""

    endpoint: str | None = option(
        None,
        "Server to connect to: ws://, http://, HOST:PORT, unix:PATH, or stdio:COMMAND.",
        PANEL,
        short="-e",
        metavar="URL",
        shown_default=DEFAULT_ENDPOINT,
    )
    api_key: str | None = option(None, "API key to send; prefer LMTOOL_API_KEY.", PANEL, metavar="KEY")

    @property
    def address(self) -> str:
        """The endpoint to connect to; it may contain credentials."""
        return self.endpoint or DEFAULT_ENDPOINT

    @property
    def url(self) -> str:
        """The endpoint without credentials."""
        from lmtool.net.access.outgoing import split_url

        return self.address if self.address.startswith(("stdio:", "unix:")) else split_url(self.address)[0]

    def server(self) -> Endpoint:
        """The endpoint with its API key. Raises `UsageError`."""
        from lmtool.protocol.lmtp.endpoint import parse

        return parse(self.address, self.api_key)


@dataclass(frozen=True, slots=True, repr=False)
class RootOptions(ClientCommon):
    """Options that may precede the command's name."""

    version: bool = option(False, "Print the version and exit.", short="-V")
