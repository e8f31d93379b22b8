"""`lmtool gateway`: pools of providers behind one port, until Ctrl-C."""

from __future__ import annotations

from dataclasses import replace

from lmtool.cli.common_options import Common
from lmtool.lmtp.config import ServerConfig
from lmtool.option import option
from lmtool.serving.config import (
    CONNECTIONS,
    MODELS,
    OUTPUT,
    AccessConfig,
    HttpConfig,
    LifeConfig,
    ListenConfig,
    ModelsConfig,
    PoolsConfig,
    ServiceConfig,
    ServingConfig,
)


async def gateway(
    common: Common,
    access: AccessConfig,
    http: HttpConfig,
    server: ServerConfig,
    life: LifeConfig,
    config: str | None = option(None, "Pools, as YAML; Glide's files are read too.", MODELS, metavar="FILE"),
    check: bool = option(False, "Check the file and end.", MODELS),
    host: str | None = option(
        None, "Interface to listen on; 0.0.0.0: every one.", CONNECTIONS, metavar="NAME", shown_default="127.0.0.1"
    ),
    port: int | None = option(
        None,
        "0 takes a free one.",
        CONNECTIONS,
        metavar="N",
        short="-p",
        minimum=0,
        maximum=65535,
        shown_default="9099",
    ),
    record: str | None = option(None, "Record traffic as a trace; a folder: one a connection.", OUTPUT, metavar="FILE"),
) -> None:
    """Serve pools of providers: the unified API, OpenAI's, Anthropic's, and LMTP.

    Without --config there is one pool, default: the model of the server at --endpoint. SIGHUP reads the file again.
    Needs no torch. Ctrl-C as with serve.
    """
    from lmtool.serving.composition import need_gateway_packages

    need_gateway_packages()
    from lmtool.gateway.config import DEFAULT_PORT, LOCAL_POOL, GatewayConfig
    from lmtool.gateway.config_reader import load
    from lmtool.serving.model_names import AUTO
    from lmtool.serving.run import run

    pools = GatewayConfig((LOCAL_POOL,)) if config is None else load(config)
    if check:
        for pool in pools.pools:
            common.output().line(f"{pool.id}  {pool.strategy}  {', '.join(member.id for member in pool.members)}")
        return
    http.check()
    listen = ListenConfig(host or pools.host or "127.0.0.1", _first(port, pools.port, DEFAULT_PORT))
    service = ServiceConfig(
        ModelsConfig(model=AUTO),
        server=server,
        access=access.policy(listen, common.api_key),
        http=http,
        pools=PoolsConfig(pools, config, common.address, None if common.endpoint is None else common.api_key),
        pools_only=True,
    )
    serving = ServingConfig(listen, service, replace(life), record, verbose=bool(common.verbose), debug=common.debug)
    await run(serving, common.output())


def _first(*numbers: int | None) -> int:
    return next(number for number in numbers if number is not None)
