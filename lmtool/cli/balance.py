"""`lmtool balance`: one address in front of many servers, of one model or of several."""

from __future__ import annotations

from typing import Annotated

import typer

from lmtool.cli.common_options import ServerCommon
from lmtool.protocol.lmtp.config import ServerConfig
from lmtool.serving.access_config import AccessConfig
from lmtool.serving.config import LifeConfig, ListenConfig, ServiceConfig, ServingConfig, WatchConfig
from lmtool.serving.tls_config import TlsConfig


async def balance(
    common: ServerCommon,
    listen: ListenConfig,
    access: AccessConfig,
    tls: TlsConfig,
    server: ServerConfig,
    watch: WatchConfig,
    life: LifeConfig,
    urls: Annotated[
        list[str],
        typer.Argument(
            metavar="URL...", help="The servers: ws://, http://, HOST:PORT, :PORT, unix:PATH, stdio:COMMAND."
        ),
    ],
) -> None:
    """Offer many servers, of one model or of several, at one address.

    A request goes to the least loaded server of its model, or to one near that which has had the same beginning of a
    prompt. The streams of a server that is lost go on at another one with the same fingerprint, or when it is back.
    Ctrl-C as with serve.

    --api-key is asked for here and shown to the servers; a key in a server's URL, ws://user:KEY@HOST:PORT/, is shown to
    that one instead.
    """
    from lmtool.serving.composition import HTTP_PACKAGES, need_packages
    from lmtool.serving.run import run

    need_packages(HTTP_PACKAGES)
    listen.check(common.typed)
    policy = access.policy(listen, common.api_key)
    service = ServiceConfig(
        server=server,
        access=policy,
        workers=tuple(urls),
        balances=True,
        certificate=tls.load(listen),
        api_keys=access.api_keys,
        watch=watch,
    )
    await run(ServingConfig(listen, service, life, verbose=bool(common.verbose), debug=common.debug), common.output())
