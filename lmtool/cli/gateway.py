"""`lmtool balance` and `lmtool gateway`: one address for several servers or providers; `lmtool pools`: their state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from lmtool.cli.common_options import DEFAULT_ENDPOINT, PANEL, ClientCommon, ServerCommon
from lmtool.cli.console import align_columns
from lmtool.core.errors import UnknownModelError
from lmtool.core.logprobs.numbers import duration
from lmtool.serving.access_config import PortOptions
from lmtool.serving.config import (
    CONNECTIONS,
    MODELS,
    OUTPUT,
    LifeConfig,
    ListenConfig,
    ModelsConfig,
    PoolsConfig,
    ServiceConfig,
    ServingConfig,
)
from lmtool.settings.option import option
from lmtool.settings.terminal import put

REFRESH = 1.0
"""Seconds between two updates of `lmtool pools --watch`."""
CLEAR = "\x1b[H\x1b[J"
"""Erases the screen."""


async def balance(
    common: ServerCommon,
    listen: ListenConfig,
    port_options: PortOptions,
    life: LifeConfig,
    urls: Annotated[
        list[str],
        typer.Argument(metavar="URL...", help="Servers: ws://, http://, HOST:PORT, :PORT, unix:PATH, stdio:COMMAND."),
    ],
) -> None:
    """Balance requests over several servers, of one or several models, at one address.

    A request goes to the least loaded server of its model, or to a server with about the same load that has seen the
    beginning of the prompt. Streams of a lost server continue on another one with the same fingerprint, or when it is
    back. Ctrl-C works as in serve.

    Clients must send --api-key, which is also sent to the servers; a key in a server's URL, ws://user:KEY@HOST:PORT/,
    is sent to that server instead.
    """
    from lmtool.serving.composition import HTTP_PACKAGES, need_packages
    from lmtool.serving.run import run

    need_packages(HTTP_PACKAGES)
    service = port_options.applied(
        ServiceConfig(workers=tuple(urls), balances=True), listen, common.api_key, common.typed
    )
    await run(ServingConfig(listen, service, life, verbose=bool(common.verbose), debug=common.debug), common.output())


@dataclass(frozen=True, slots=True, repr=False)
class GatewayCommon(ClientCommon):
    """Common options, two of which have another meaning for a gateway."""

    endpoint: str | None = option(
        None,
        "Server whose model the local members of pools use, such as a running lmtool serve.",
        PANEL,
        short="-e",
        metavar="URL",
        shown_default=DEFAULT_ENDPOINT,
    )
    api_key: str | None = option(
        None,
        "API key that clients must send, also sent to the server at -e; prefer LMTOOL_API_KEY.",
        PANEL,
        metavar="KEY",
    )


async def gateway(
    common: GatewayCommon,
    port_options: PortOptions,
    life: LifeConfig,
    config: str | None = option(None, "YAML file of pools, or a Glide configuration.", MODELS, metavar="FILE"),
    check: bool = option(False, "Print the pools of --config, or its errors with their lines, and exit.", MODELS),
    host: str | None = option(
        None, "Interface to listen on; 0.0.0.0 for all.", CONNECTIONS, metavar="NAME", shown_default="127.0.0.1"
    ),
    port: int | None = option(
        None,
        "Port to listen on; 0 picks a free one.",
        CONNECTIONS,
        metavar="N",
        short="-p",
        minimum=0,
        maximum=65535,
        shown_default="9099",
    ),
    unix: str | None = option(None, "Listen on this Unix socket instead of a port.", CONNECTIONS, metavar="PATH"),
    record: str | None = option(
        None,
        "Record requests and provider calls as a trace; a folder gets one trace per connection.",
        OUTPUT,
        metavar="FILE",
    ),
) -> None:
    """Serve pools of models, each under one name, over OpenAI's, Anthropic's and Glide's chat APIs, and LMTP.

    Models of a pool, of providers or of your own machines, replace each other when one fails: lmtool docs gateway.
    Without --config there is one pool, named default: the model of the server at -e. SIGHUP reloads the file. Ctrl-C
    lets running answers finish; a second Ctrl-C stops them.
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
    ports = (one for one in (port, pools.port, DEFAULT_PORT) if one is not None)
    listen = ListenConfig(host or pools.host or "127.0.0.1", next(ports), unix)
    local = PoolsConfig(pools, config, common.address, None if common.endpoint is None else common.api_key)
    service = port_options.applied(
        ServiceConfig(ModelsConfig(model=AUTO), pools=local, pools_only=True), listen, common.api_key, common.typed
    )
    serving = ServingConfig(listen, service, life, record, verbose=bool(common.verbose), debug=common.debug)
    await run(serving, common.output())


async def pools(
    common: ClientCommon,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Show only this pool.")] = None,
    watch: bool = option(False, "Update every second, until Ctrl-C."),
    json: bool = option(False, "Print JSON, one line per update."),
) -> None:
    """Show the pools of the gateway at --endpoint: their models, health, requests and costs."""
    import asyncio
    import json as codec

    from lmtool.gateway.pools.client import PoolsClient

    out = common.output()
    async with PoolsClient(common.address, common.api_key) as client:
        while True:
            selected = _named(await client.status(), name)
            if json:
                out.line(codec.dumps(selected, ensure_ascii=False))
            else:
                put(CLEAR if watch and out.terminal else "")
                out.line("\n\n".join("\n".join(lines(pool)) for pool in selected))
            if not watch:
                return
            await asyncio.sleep(REFRESH)


def _named(pools: Sequence[Mapping[str, Any]], name: str | None) -> list[Mapping[str, Any]]:
    """The pool of a name, or all pools. Raises `UnknownModelError`."""
    named = [pool for pool in pools if name in (None, pool["id"])]
    if not named and name is not None:
        known = ", ".join(one["id"] for one in pools)
        raise UnknownModelError(f"there is no pool {name!r:.100}", f"pools of this server: {known}")
    return named


def lines(pool: Mapping[str, Any]) -> list[str]:
    """A pool as text: one line for the pool, and one for each model."""
    head = f"{pool['id']}  {pool['strategy']}"
    if "requests" in pool:  # of all clients: for keys with `admin`
        head += f"  requests {pool['requests']}"
    if pool.get("cached"):
        head += f"  cached {pool['cached']}"
    if pool.get("p50_seconds") is not None:
        head += f"  p50 {duration(pool['p50_seconds'])}"
    if pool.get("cost") is not None:
        head += f"  cost {pool['cost']:.4f}"
    return [head, *(f"  {row}" for row in align_columns([_row(model) for model in pool["models"]]))]


def _row(model: Mapping[str, Any]) -> list[str]:
    state = model["state"]
    if state == "resting":
        state = f"resting {model['resting_seconds']:.0f} s ({model['reason']})"
    cost = "" if model.get("cost") is None else f"cost {model['cost']:.4f}"
    calls = f"{model['ok']} ok" if "ok" in model else ""
    counts = [calls, f"{model['failed']} failed" if model.get("failed") else "", cost]
    return [model["id"], model["provider"], model["model"] or "", state, *counts]
