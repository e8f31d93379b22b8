"""`lmtool balance`: one address in front of many servers of one model."""

from __future__ import annotations

from typing import Annotated

import typer

from lmtool.cli.invocation import Common
from lmtool.cli.serving.access import AllowHost, AllowOrigin, NoAuth

WIRE = "Connections"
OUTPUT = "Output"


async def balance(
    common: Common,
    urls: Annotated[
        list[str],
        typer.Argument(metavar="URL...", help="The servers: ws://, http://, HOST:PORT, :PORT, or stdio:COMMAND."),
    ],
    host: Annotated[
        str, typer.Option(metavar="NAME", help="Interface to listen on; 0.0.0.0: every one.", rich_help_panel=WIRE)
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option("--port", "-p", min=0, max=65535, metavar="N", help="0 takes a free one.", rich_help_panel=WIRE),
    ] = 8080,
    allow_origin: AllowOrigin = None,
    allow_host: AllowHost = None,
    no_auth: NoAuth = False,
    max_connections: Annotated[
        int, typer.Option(min=1, metavar="N", help="Open at once.", rich_help_panel=WIRE)
    ] = 1024,
    drain_limit: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Longest wait for streams at the end.", rich_help_panel=WIRE)
    ] = 3600.0,
    ready_file: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Write the URL here once a server answers.", rich_help_panel=OUTPUT),
    ] = None,
    json_logs: Annotated[
        bool, typer.Option("--json-logs", help="One JSON object a line.", rich_help_panel=OUTPUT)
    ] = False,
) -> None:
    """Offer many servers of one model at one address.

    A request goes to the least loaded one, or to one near that which has had the same beginning of a prompt. A server
    that is lost ends its streams with an error and is asked again until it answers. Ctrl-C as with serve.

    --api-key is asked for here and shown to the servers; a key in a server's URL, ws://user:KEY@HOST:PORT/, is shown to
    that one instead.
    """
    from lmtool.cli.serving.access import AccessConfig
    from lmtool.cli.serving.listening import ListenConfig
    from lmtool.cli.serving.run import ServingConfig, run
    from lmtool.cli.serving.service import ServiceConfig
    from lmtool.cli.wiring import need_packages
    from lmtool.lmtp.config import ServerConfig

    need_packages(("starlette", "uvicorn"))
    listen, server = ListenConfig(host, port), ServerConfig(max_connections=max_connections)
    door = AccessConfig(common.api_key, tuple(allow_origin or ()), tuple(allow_host or ()), no_auth)
    await run(
        ServingConfig(
            listen,
            ServiceConfig(server=server, access=door.policy(listen), workers=tuple(urls), foreign=True),
            ready_file=ready_file,
            drain_limit=drain_limit,
            json_logs=json_logs,
        ),
        common,
    )
