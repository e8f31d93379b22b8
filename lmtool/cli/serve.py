"""`lmtool serve`: models on a port or a pipe, until Ctrl-C."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from lmtool.cli.common_options import ServerCommon
from lmtool.core.errors import UsageError
from lmtool.inference.backends.registry import BackendConfig
from lmtool.inference.engine.config import EngineConfig
from lmtool.serving.access_config import PortOptions
from lmtool.serving.config import (
    CONNECTIONS,
    ENGINE,
    MODELS,
    OUTPUT,
    EvergreenOptions,
    LifeConfig,
    ListenConfig,
    ModelsConfig,
    PoolsConfig,
    ReplicasConfig,
    ServiceConfig,
    ServingConfig,
)
from lmtool.settings.option import option


async def serve(
    common: ServerCommon,
    listen: ListenConfig,
    port_options: PortOptions,
    evergreen: EvergreenOptions,
    engine: EngineConfig,
    replicas: ReplicasConfig,
    models: ModelsConfig,
    backend: BackendConfig,
    life: LifeConfig,
    model: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]...",
            help="Folders, GGUF files, hub names, random:NAME; auto: what clients name.  [default: the included model]",
            show_default=False,
        ),
    ] = None,
    stdio: bool = option(False, "Use stdin and stdout instead of a port.", CONNECTIONS),
    cuda: bool = option(False, "Same as --device cuda.", ENGINE),
    batch_size: int | None = option(None, "LMQL's --max-streams.", minimum=1, hidden=True),
    static: bool = option(False, "Load no other models; always true except with auto.", MODELS),
    record: str | None = option(
        None, "Record traffic as a trace; a folder gets one trace per connection.", OUTPUT, metavar="FILE"
    ),
    pools: str | None = option(None, "Serve the pools of this file as well, see gateway.", MODELS, metavar="FILE"),
    inspect: bool = option(False, "Show the traffic as lmtool inspect does.", OUTPUT),
) -> None:
    """Serve models over LMTP, Evergreen, and HTTP with OpenAI's and Anthropic's APIs.

    Listens at once; requests wait while their model loads. Ctrl-C lets running streams finish and exits with 0; a
    second Ctrl-C stops them.
    """
    import asyncio
    import os

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
    evergreen.check()
    engine = replace(
        engine,
        device="cuda" if cuda and engine.device == "auto" else engine.device,
        max_streams=batch_size or engine.max_streams,
        threads=engine.threads if engine.threads is not None else threads_for(main, *extra),
    )
    place = None if stdio else listen
    service = ServiceConfig(models, engine, backend=backend, pools=_pools(pools), evergreen=evergreen)
    service = port_options.applied(service, place, common.api_key, common.typed)
    await asyncio.to_thread(check_device, backend, engine)
    workers = commands(replicas, service, dict(os.environ), verbose=bool(common.verbose))
    service = replace(service, workers=workers)
    config = ServingConfig(place, service, life, record, verbose=bool(common.verbose), debug=common.debug)
    if inspect:
        from lmtool.cli.inspect_servers import serve_inspected
        from lmtool.terminal.tui.headless import need_screen

        need_screen("--inspect")
        await serve_inspected(config, common, common.output())
    else:
        await run(config, common.output())


def _check_models(models: ModelsConfig, backend: BackendConfig, *, static: bool) -> None:
    """Raise `UsageError` for models that contradict other options, and what the backend's `check` raises."""
    from lmtool.inference.backends.registry import VLLM
    from lmtool.serving.model_names import AUTO

    if static and models.model == AUTO:
        raise UsageError("--static serves one model, auto serves any", "name the model, or omit --static")
    if static and models.allow_model:
        raise UsageError(
            "--static loads no other models, and --allow-model names one",
            "omit one of them; models named on the command line are loaded at the start",
        )
    backend.check()
    if models.extra_models and backend.backend == VLLM:
        raise UsageError(
            f"a vLLM worker serves one model, but {1 + len(models.extra_models)} are named",
            "start one server for each",
        )


def _pools(file: str | None) -> PoolsConfig | None:
    """The pools of a file, or None without a file. Raises `FileError`."""
    if file is None:
        return None
    from lmtool.serving.composition import need_gateway_packages

    need_gateway_packages()
    from lmtool.gateway.pools.config_reader import load

    return PoolsConfig(load(file), file)


_PORT_OPTIONS = {
    *("port", "host", "unix", "grpc_port", "allow_origin", "allow_host", "no_auth", "api_keys", "trusted_proxy"),
    *("allow_ref", "peer_actions", "watch"),
}


def _check_contradictions(
    common: ServerCommon, device: str, *, stdio: bool, cuda: bool, json_logs: bool, inspect: bool
) -> None:
    if cuda and device not in {"auto", "cuda"} and not device.startswith("cuda:"):
        raise UsageError(f"--cuda and --device {device} contradict each other", "give one of them")
    if stdio and (other := common.typed & _PORT_OPTIONS):
        raise UsageError(
            f"--stdio and --{min(other).replace('_', '-')} contradict each other: it speaks on stdin and stdout",
            "give one of them",
        )
    if inspect and (stdio or json_logs):
        raise UsageError(
            f"--inspect and --{'stdio' if stdio else 'json-logs'} contradict each other: it takes the terminal",
            "omit one of them",
        )
