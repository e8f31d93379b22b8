"""The options of servers that speak TLS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmtool.core.errors import UsageError
from lmtool.serving.certificate import read_certificate
from lmtool.serving.config import CONNECTIONS
from lmtool.settings.option import option

if TYPE_CHECKING:
    from lmtool.serving.certificate import Certificate
    from lmtool.serving.config import ListenConfig


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """Whether a server's ports speak TLS."""

    ssl_certfile: str | None = option(
        None, "Speak TLS with this certificate and those that vouch for it.", CONNECTIONS, metavar="FILE"
    )
    """PEM."""
    ssl_keyfile: str | None = option(
        None, "The certificate's private key, where it is in a file of its own.", CONNECTIONS, metavar="FILE"
    )
    """PEM, not encrypted."""

    def load(self, listen: ListenConfig | None) -> Certificate | None:
        """The certificate; None for a server without TLS. listen: None for a server on a pipe.

        Raises `UsageError` for options that contradict each other, `FileError` for files that cannot be used.
        """
        if self.ssl_certfile is None:
            if self.ssl_keyfile is not None:
                raise UsageError("--ssl-keyfile is the key of a certificate", "name it, too:  --ssl-certfile FILE")
            return None
        if listen is None or listen.unix is not None:
            other = "--stdio" if listen is None else "--unix"
            raise UsageError(
                f"--ssl-certfile and {other} contradict each other: TLS is for ports", "leave one of them out"
            )
        return read_certificate(self.ssl_certfile, self.ssl_keyfile)
