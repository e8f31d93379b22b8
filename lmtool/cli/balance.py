"""`lmtool balance`: one address in front of many servers of one model."""

from __future__ import annotations

from typing import Annotated

import typer

from lmtool.cli.invocation import Common

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
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL", help="Web pages of this origin may connect (repeatable; * for any).", rich_help_panel=WIRE
        ),
    ] = None,
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
    """
    from lmtool.cli.serving.listening import ListenConfig
    from lmtool.cli.serving.run import ServingConfig, run
    from lmtool.cli.serving.service import ServiceConfig
    from lmtool.cli.wiring import need_packages
    from lmtool.lmtp.config import ServerConfig

    need_packages(("starlette", "uvicorn"))
    server = ServerConfig(max_connections=max_connections, allowed_origins=tuple(allow_origin or ()))
    await run(
        ServingConfig(
            ListenConfig(host, port),
            ServiceConfig(server=server, workers=tuple(urls), foreign=True),
            ready_file=ready_file,
            drain_limit=drain_limit,
            json_logs=json_logs,
        ),
        common,
    )
