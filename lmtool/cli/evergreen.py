"""`lmtool evergreen`: chat in a session, send messages from a file, list actions, print the protocol's messages."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Annotated, Any

import typer

from lmtool.cli.chat import MODEL, TIMEOUT
from lmtool.cli.common_options import ClientCommon, Common
from lmtool.core.errors import UsageError
from lmtool.core.sampling_parameters import PARAMETER_HELP
from lmtool.settings.option import option

GRPC = option(None, "Connect over gRPC instead of to -e; grpcs://HOST:PORT uses TLS.", metavar="HOST:PORT")


def chat(
    common: ClientCommon,
    *,
    model: str | None = MODEL,
    grpc: str | None = GRPC,
    system: str | None = option(None, "System prompt.", short="-s", metavar="TEXT"),
    max_tokens: int | None = option(None, PARAMETER_HELP["max_tokens"], short="-n", minimum=1),
    temperature: float | None = option(None, PARAMETER_HELP["temperature"], short="-t", minimum=0),
    options: list[str] | None = option(
        None, "Set any sampling parameter; repeatable.", flag="--option", short="-o", metavar="NAME=VALUE"
    ),
    stats: bool = option(False, "Print token counts after each answer on stderr."),
) -> Coroutine[Any, Any, None]:
    """Chat with a model: each line of stdin is a turn, and only new messages are sent.

    Ctrl-C cancels a running answer, Ctrl-D exits.
    """
    from lmtool.settings.prompt_parameters import parse_options
    from lmtool.terminal.chat.evergreen import converse

    given = {"max_tokens": max_tokens, "temperature": temperature, **parse_options(options or [])}
    config = {name: value for name, value in given.items() if value is not None}
    url = address(common, grpc)
    return converse(url, common.api_key, common.output(), config, model=model or "", system=system, stats=stats)


def run(
    common: ClientCommon,
    file: Annotated[str, typer.Argument(metavar="FILE", help="One message as proto-JSON per line; '-' reads stdin.")],
    *,
    grpc: str | None = GRPC,
    timeout: float | None = TIMEOUT,
) -> Coroutine[Any, Any, None]:
    """Send the messages of a file, and print the server's as proto-JSON, one per line.

    Exits once all outputs that the file requests are complete.
    """
    from lmtool.terminal.chat.evergreen import run_script

    return run_script(address(common, grpc), common.api_key, common.output(), file, timeout)


def actions(
    common: ClientCommon,
    *,
    grpc: str | None = GRPC,
    json: bool = option(False, "Print the schemas as one JSON array."),
) -> Coroutine[Any, Any, None]:
    """List the actions that a server offers, with their inputs and outputs."""
    from lmtool.terminal.chat.evergreen import list_actions

    return list_actions(address(common, grpc), common.api_key, common.output(), as_json=json)


def proto(
    common: Common, *, config: bool = option(False, "Print lmtool's own GenerateConfig message instead.")
) -> None:
    """Print a .proto file: the protocol, or the config message of GENERATE."""
    from lmtool.api import need_protobuf

    need_protobuf()
    from lmtool.protocol.evergreen.descriptors import proto_text

    common.output().write(proto_text("lmtool.evergreen") if config else proto_text())


def address(common: ClientCommon, grpc: str | None) -> str:
    """The URL for `lmtool.session`. Raises `UsageError` for two addresses."""
    if grpc is None:
        return common.address
    if common.endpoint is not None and "--endpoint" not in common.origins:  # settings only set a default
        raise UsageError("-e and --grpc are two addresses", "give one of them")
    return grpc if grpc.startswith(("grpc://", "grpcs://")) else f"grpc://{grpc}"
