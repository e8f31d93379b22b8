"""What the Evergreen commands share: how a server is reached."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.core.errors import UsageError
from lmtool.settings.option import option

if TYPE_CHECKING:
    from lmtool.cli.common_options import ClientCommon

GRPC = option(None, "Reach the server by gRPC there, in place of -e; grpcs://HOST:PORT with TLS.", metavar="HOST:PORT")


def address(common: ClientCommon, grpc: str | None) -> str:
    """The URL for `lmtool.session`. Raises `UsageError` for two addresses."""
    if grpc is None:
        return common.address
    if common.endpoint is not None and "--endpoint" not in common.origins:  # from settings, it is only a default
        raise UsageError("-e and --grpc are two addresses", "give one of them")
    return grpc if grpc.startswith(("grpc://", "grpcs://")) else f"grpc://{grpc}"
