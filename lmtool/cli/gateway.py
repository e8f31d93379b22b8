"""`lmtool gateway`: pools of providers behind one port, until Ctrl-C."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lmtool.cli.common_options import DEFAULT_ENDPOINT, PANEL, ClientCommon
from lmtool.protocol.lmtp.config import ServerConfig
from lmtool.serving.access_config import AccessConfig
from lmtool.serving.config import (
    CONNECTIONS,
    MODELS,
    OUTPUT,
    HttpConfig,
    LifeConfig,
    ListenConfig,
    ModelsConfig,
    PoolsConfig,
    ServiceConfig,
    ServingConfig,
    WatchConfig,
)
from lmtool.serving.tls_config import TlsConfig
from lmtool.settings.option import option


@dataclass(frozen=True, slots=True, repr=False)
class GatewayCommon(ClientCommon):
    """The options of all commands; two of them mean another thing here."""

    endpoint: str | None = option(
        None,
        "Server whose model the local members of pools are, such as a running lmtool serve.",
        PANEL,
        short="-e",
        metavar="URL",
        shown_default=DEFAULT_ENDPOINT,
    )
    api_key: str | None = option(
        None,
        "API key that clients must send, and that the server at -e gets; better LMTOOL_API_KEY.",
        PANEL,
        metavar="KEY",
    )


async def gateway(
    common: GatewayCommon,
    access: AccessConfig,
    http: HttpConfig,
    tls: TlsConfig,
    server: ServerConfig,
    watch: WatchConfig,
    life: LifeConfig,
    config: str | None = option(None, "YAML file of pools, or a configuration of Glide.", MODELS, metavar="FILE"),
    check: bool = option(False, "Print the pools of --config, or every fault in it with its line, and exit.", MODELS),
    host: str | None = option(
        None, "Interface to listen on; 0.0.0.0: every one.", CONNECTIONS, metavar="NAME", shown_default="127.0.0.1"
    ),
    port: int | None = option(
        None,
        "Port to listen on; 0 takes a free one.",
        CONNECTIONS,
        metavar="N",
        short="-p",
        minimum=0,
        maximum=65535,
        shown_default="9099",
    ),
    unix: str | None = option(None, "Listen on this Unix socket, not on a port.", CONNECTIONS, metavar="PATH"),
    record: str | None = option(
        None,
        "Record requests, and the calls of providers, as a trace; in a folder one for each connection.",
        OUTPUT,
        metavar="FILE",
    ),
) -> None:
    """Serve pools of models, each behind one name, over OpenAI's, Anthropic's and Glide's chat APIs, and LMTP.

    The models of a pool, of providers or of your own machines, stand in for each other: see  lmtool docs gateway.
    Without --config there is one pool, named default: the model of the server at -e. SIGHUP reads the file again.
    Ctrl-C lets running answers end; a second one ends them.
    """
    from lmtool.serving.composition import need_gateway_packages

    need_gateway_packages()
    from lmtool.gateway.pools.config import DEFAULT_PORT, LOCAL_POOL, GatewayConfig
    from lmtool.gateway.pools.config_reader import load
    from lmtool.serving.model_names import AUTO
    from lmtool.serving.run import run

    pools = GatewayConfig((LOCAL_POOL,)) if config is None else load(config)
    if check:
        for pool in pools.pools:
            common.output().line(pool.summary)
        return
    http.check()
    ports = (one for one in (port, pools.port, DEFAULT_PORT) if one is not None)
    listen = ListenConfig(host or pools.host or "127.0.0.1", next(ports), unix)
    listen.check(common.typed)
    service = ServiceConfig(
        ModelsConfig(model=AUTO),
        server=server,
        access=access.policy(listen, common.api_key),
        http=http,
        pools=PoolsConfig(pools, config, common.address, None if common.endpoint is None else common.api_key),
        pools_only=True,
        certificate=tls.load(listen),
        api_keys=access.api_keys,
        watch=watch,
    )
    serving = ServingConfig(listen, service, replace(life), record, verbose=bool(common.verbose), debug=common.debug)
    await run(serving, common.output())
