"""`lmtool evergreen proto`: the messages of the protocol for other languages."""

from __future__ import annotations

from lmtool.cli.common_options import Common
from lmtool.settings.option import option


def proto(
    common: Common, *, config: bool = option(False, "Print lmtool's own GenerateConfig in place of the protocol.")
) -> None:
    """Print a .proto file: the protocol, or the config message of GENERATE."""
    from lmtool.api import need_protobuf

    need_protobuf()
    from lmtool.protocol.evergreen.descriptors import proto_text

    common.output().write(proto_text("lmtool.evergreen") if config else proto_text())
