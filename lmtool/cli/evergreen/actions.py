"""`lmtool evergreen actions`: what can be asked for in a session with a server."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from lmtool.cli.common_options import ClientCommon
from lmtool.cli.evergreen.options import GRPC, address
from lmtool.settings.option import option


def actions(
    common: ClientCommon,
    *,
    grpc: str | None = GRPC,
    json: bool = option(False, "Print the schemas as one JSON array."),
) -> Coroutine[Any, Any, None]:
    """List the actions that a server offers, with their inputs and outputs."""
    from lmtool.terminal.chat.evergreen import list_actions

    return list_actions(address(common, grpc), common.api_key, common.output(), as_json=json)
