"""`lmtool evergreen run`: sends a session's messages from a file, and prints the server's."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Annotated, Any

import typer

from lmtool.cli.chat import TIMEOUT
from lmtool.cli.common_options import ClientCommon
from lmtool.cli.evergreen.options import GRPC, address


def run(
    common: ClientCommon,
    file: Annotated[str, typer.Argument(metavar="FILE", help="One message as proto-JSON on each line; '-' is stdin.")],
    *,
    grpc: str | None = GRPC,
    timeout: float | None = TIMEOUT,
) -> Coroutine[Any, Any, None]:
    """Send the messages of a file, and print the server's as proto-JSON, one a line.

    Ends once all outputs that the file asks for are whole.
    """
    from lmtool.terminal.chat.evergreen import run_script

    return run_script(address(common, grpc), common.api_key, common.output(), file, timeout)
