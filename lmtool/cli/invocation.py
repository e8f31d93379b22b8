"""What a person says to any command: which server, which colours, how many words."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Literal, TypeAlias

DEFAULT_ENDPOINT = "ws://127.0.0.1:8080/"

ColorWhen: TypeAlias = Literal["auto", "always", "never"]


@dataclass(frozen=True, slots=True)
class Common:
    """The options that work before and after every command's name."""

    endpoint: str | None = field(default=None, repr=False)
    """Where the server is; None where neither option, environment nor settings said: `DEFAULT_ENDPOINT`."""
    color: ColorWhen | None = None
    quiet: bool = False
    verbose: int = 0
    settings: str | None = None
    api_key: str | None = field(default=None, repr=False)
    """What a client of ours shows, and what a server of ours asks for."""
    typed: frozenset[str] = frozenset()
    """Names of the command's own options that were typed, and not found in the environment or in settings."""
    origins: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Of each option with a value that was not typed, such as `--device`: where that was found, and the value."""

    @property
    def address(self) -> str:
        """The endpoint to connect to; it may have credentials."""
        return self.endpoint or DEFAULT_ENDPOINT

    @property
    def url(self) -> str:
        """The endpoint to tell people."""
        from lmtool.access.outgoing import split_url

        return self.address if self.address.startswith("stdio:") else split_url(self.address)[0]

    @property
    def debug(self) -> bool:
        """Whether tracebacks are wanted."""
        return self.verbose >= 2 or os.environ.get("LMTOOL_DEBUG", "") not in {"", "0"}

    def under(self, outer: Common | None) -> Common:
        """Fill what was not said after the command's name with what was said before it."""
        if outer is None:
            return self
        return replace(self, **{f.name: getattr(self, f.name) or getattr(outer, f.name) for f in fields(Common)})
