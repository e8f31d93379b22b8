"""`lmtool serve`: a model behind a port or a pipe, until Ctrl-C."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from lmtool.cli.common_options import ServerCommon
from lmtool.core.errors import UsageError
from lmtool.inference.backends.registry import BackendConfig
from lmtool.inference.engine.config import EngineConfig
from lmtool.protocol.lmtp.config import ServerConfig
from lmtool.serving.access_config import AccessConfig
from lmtool.serving.config import (
    CONNECTIONS,
    ENGINE,
    MODELS,
    OUTPUT,
    EvergreenOptions,
    HttpConfig,
    LifeConfig,
    ListenConfig,
    ModelsConfig,
    PoolsConfig,
    ReplicasConfig,
    ServiceConfig,
    ServingConfig,
    WatchConfig,
)
from lmtool.serving.tls_config import TlsConfig
from lmtool.settings.option import option


async def serve(
    common: ServerCommon,
    listen: ListenConfig,
    access: AccessConfig,
    http: HttpConfig,
    tls: TlsConfig,
    evergreen: EvergreenOptions,
    server: ServerConfig,
    watch: WatchConfig,
    engine: EngineConfig,
    replicas: ReplicasConfig,
    models: ModelsConfig,
    backend: BackendConfig,
    life: LifeConfig,
    model: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]...",
            help="Folders, GGUF files, hub names, random:NAME; auto: what clients name.  [default: the embedded model]",
            show_default=False,
        ),
    ] = None,
    stdio: bool = option(False, "Speak on stdin and stdout, not on a port.", CONNECTIONS),
    cuda: bool = option(False, "The same as --device cuda.", ENGINE),
    batch_size: int | None = option(None, "LMQL's --max-streams.", minimum=1, hidden=True),
    static: bool = option(False, "Load no other models: always so, except with auto.", MODELS),
    record: str | None = option(None, "Record traffic as a trace; a folder: one a connection.", OUTPUT, metavar="FILE"),
    pools: str | None = option(None, "Serve the pools of this file too, see gateway.", MODELS, metavar="FILE"),
    inspect: bool = option(False, "Show the traffic: lmtool inspect on this server.", OUTPUT),
) -> None:
    """Serve models over LMTP, Evergreen, and HTTP as OpenAI's and Anthropic's APIs.

    Listens at once; requests wait while their model loads. Ctrl-C lets running streams end and exits with 0; a second
    one ends them.
    """
    import asyncio
    import os

    from lmtool.net.access.policy import AccessPolicy
    from lmtool.serving.composition import check_device, need_serve_packages

    need_serve_packages()  # before anything is imported that needs them
    from lmtool.serving.model_names import threads_for
    from lmtool.serving.replicas import commands
    from lmtool.serving.run import run

    _check_contradictions(common, engine.device, stdio=stdio, cuda=cuda, json_logs=life.json_logs, inspect=inspect)
    main, extra = (model[0], tuple(model[1:])) if model else (None, ())
    models = replace(models, model=main, extra_models=extra)
    _check_models(models, backend, static=static)
    models.check()
    listen.check(common.typed)
    http.check()
    evergreen.check()
    engine = replace(
        engine,
        device="cuda" if cuda and engine.device == "auto" else engine.device,
        max_streams=batch_size or engine.max_streams,
        threads=engine.threads if engine.threads is not None else threads_for(main, *extra),
    )
    policy = AccessPolicy() if stdio else access.policy(listen, common.api_key)
    await asyncio.to_thread(check_device, backend, engine)
    pooled = _pools(pools)
    service = ServiceConfig(
        models,
        engine,
        server,
        backend,
        policy,
        http=http,
        pools=pooled,
        evergreen=evergreen,
        certificate=tls.load(None if stdio else listen),
        api_keys=access.api_keys,
        watch=watch,
    )
    workers = commands(replicas, service, dict(os.environ), verbose=bool(common.verbose))
    config = ServingConfig(
        None if stdio else listen,
        replace(service, workers=workers),
        life,
        record,
        verbose=bool(common.verbose),
        debug=common.debug,
    )
    if inspect:
        from lmtool.cli.inspect_servers import serve_inspected
        from lmtool.terminal.tui.headless import need_screen

        need_screen("--inspect")
        await serve_inspected(config, common, common.output())
    else:
        await run(config, common.output())


def _check_models(models: ModelsConfig, backend: BackendConfig, *, static: bool) -> None:
    """Raise `UsageError` for models that contradict other options; what the backend's `check` raises."""
    from lmtool.inference.backends.registry import VLLM
    from lmtool.serving.model_names import AUTO

    if static and models.model == AUTO:
        raise UsageError("--static serves one model, auto serves any", "name the model, or leave --static out")
    if static and models.allow_model:
        raise UsageError(
            "--static loads no other models, and --allow-model names one",
            "leave one of them out; models that are named without it are loaded at the start",
        )
    backend.check()
    if models.extra_models and backend.backend == VLLM:
        raise UsageError(
            f"a worker of vLLM serves one model, and {1 + len(models.extra_models)} are named",
            "start a server for each",
        )


def _pools(file: str | None) -> PoolsConfig | None:
    """The pools of a file; None without one. Raises `FileError`."""
    if file is None:
        return None
    from lmtool.serving.composition import need_gateway_packages

    need_gateway_packages()
    from lmtool.gateway.pools.config_reader import load

    return PoolsConfig(load(file), file)


_OF_PORTS = {
    *("port", "host", "unix", "grpc_port", "allow_origin", "allow_host", "no_auth", "api_keys", "trusted_proxy"),
    *("allow_ref", "peer_actions", "watch"),
}


def _check_contradictions(
    common: ServerCommon, device: str, *, stdio: bool, cuda: bool, json_logs: bool, inspect: bool
) -> None:
    if cuda and device not in {"auto", "cuda"} and not device.startswith("cuda:"):
        raise UsageError(f"--cuda and --device {device} contradict each other", "give one of them")
    if stdio and (other := common.typed & _OF_PORTS):
        raise UsageError(
            f"--stdio and --{min(other).replace('_', '-')} contradict each other: it speaks on stdin and stdout",
            "give one of them",
        )
    if inspect and (stdio or json_logs):
        raise UsageError(
            f"--inspect and --{'stdio' if stdio else 'json-logs'} contradict each other: it takes the terminal",
            "leave one of them out",
        )
