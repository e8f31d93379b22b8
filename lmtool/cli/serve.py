"""`lmtool serve`: a model behind a port or a pipe, until Ctrl-C."""

from __future__ import annotations

from typing import Annotated

import typer

from lmtool.cli.invocation import Common
from lmtool.cli.serving.access import AllowHost, AllowOrigin, NoAuth

MODELS = "Models"
MACHINE = "Machine"
WIRE = "Connections"
OUTPUT = "Output"


async def serve(
    common: Common,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]",
            help="A local folder, a hub name, or auto for whatever clients name.  [default: the embedded model]",
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="NAME", help="Interface to listen on; 0.0.0.0: every one.", rich_help_panel=WIRE)
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option("--port", "-p", min=0, max=65535, metavar="N", help="0 takes a free one.", rich_help_panel=WIRE),
    ] = 8080,
    stdio: Annotated[
        bool, typer.Option("--stdio", help="Speak on stdin and stdout, not on a port.", rich_help_panel=WIRE)
    ] = False,
    allow_origin: AllowOrigin = None,
    allow_host: AllowHost = None,
    no_auth: NoAuth = False,
    root_path: Annotated[
        str, typer.Option(metavar="PATH", help="Where a proxy in front puts this server.", rich_help_panel=WIRE)
    ] = "",
    uvicorn_log_level: Annotated[
        str,
        typer.Option(
            metavar="LEVEL", help="Of the HTTP carrier: critical, error, warning, info, debug.", rich_help_panel=WIRE
        ),
    ] = "error",
    max_connections: Annotated[
        int, typer.Option(min=1, metavar="N", help="Open at once.", rich_help_panel=WIRE)
    ] = 1024,
    drain_limit: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Longest wait for streams at the end.", rich_help_panel=WIRE)
    ] = 3600.0,
    device: Annotated[
        str, typer.Option(metavar="NAME", help="Where to compute: auto, cpu, cuda, cuda:N.", rich_help_panel=MACHINE)
    ] = "auto",
    cuda: Annotated[bool, typer.Option("--cuda", help="The same as --device cuda.", rich_help_panel=MACHINE)] = False,
    dtype: Annotated[
        str,
        typer.Option(metavar="TYPE", help="Of the weights: auto, float32, bfloat16, float16.", rich_help_panel=MACHINE),
    ] = "auto",
    kernels: Annotated[
        str,
        typer.Option(
            metavar="WORD",
            help="C kernels on a CPU: auto (where they compile), required, none.",
            rich_help_panel=MACHINE,
        ),
    ] = "auto",
    quantize: Annotated[
        str | None,
        typer.Option(metavar="WAY", help="Weights as bytes, on a CPU: int8; near, not equal.", rich_help_panel=MACHINE),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="CPU threads; 1 for a very small model, else torch's choice.",
            rich_help_panel=MACHINE,
        ),
    ] = None,
    prefix_cache: Annotated[
        bool,
        typer.Option(help="Keep what was computed of prompts for those that begin alike.", rich_help_panel=MACHINE),
    ] = True,
    speculation: Annotated[
        bool,
        typer.Option(help="Guess ahead what repeats, while it pays; ids stay the same.", rich_help_panel=MACHINE),
    ] = True,
    jump_forward: Annotated[
        bool, typer.Option(help="Take what a constraint forces without drawing it.", rich_help_panel=MACHINE)
    ] = True,
    step_ahead: Annotated[
        bool, typer.Option(help="Give a GPU the next step before reading this one.", rich_help_panel=MACHINE)
    ] = True,
    deterministic: Annotated[
        bool,
        typer.Option(
            "--deterministic",
            help="On a GPU, too: a stream is the same alone and in any batch.",
            rich_help_panel=MACHINE,
        ),
    ] = False,
    replicas: Annotated[
        int, typer.Option(min=1, max=256, metavar="N", help="Worker processes.", rich_help_panel=MACHINE)
    ] = 1,
    layout: Annotated[
        str | None, typer.Option(metavar="GxD", help="G workers of D CUDA devices each.", rich_help_panel=MACHINE)
    ] = None,
    max_streams: Annotated[
        int, typer.Option(min=1, metavar="N", help="Computed at once; more wait.", rich_help_panel=MACHINE)
    ] = 256,
    batch_size: Annotated[int | None, typer.Option(min=1, hidden=True, help="LMQL's --max-streams.")] = None,
    max_batch_tokens: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Tokens in one step of the model.", rich_help_panel=MACHINE)
    ] = None,
    max_context: Annotated[
        int | None,
        typer.Option(min=2, metavar="N", help="Tokens of prompt and output together.", rich_help_panel=MACHINE),
    ] = None,
    max_logprobs: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Most alternatives a token: LMTP gets no more, HTTP is refused.  [default: 256, over HTTP 20]",
            show_default=False,
            rich_help_panel=WIRE,
        ),
    ] = None,
    kv_cache_bytes: Annotated[
        int | None, typer.Option(min=1, metavar="BYTES", help="Memory for keys and values.", rich_help_panel=MACHINE)
    ] = None,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Show the model under this name (repeatable).", rich_help_panel=MODELS),
    ] = None,
    allow_model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Load this one too when a client names it (repeatable).", rich_help_panel=MODELS
        ),
    ] = None,
    static: Annotated[
        bool,
        typer.Option("--static", help="Load no other models: always so, except with auto.", rich_help_panel=MODELS),
    ] = False,
    max_loaded: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Models in memory at once.", rich_help_panel=MODELS)
    ] = None,
    idle_unload: Annotated[
        float | None,
        typer.Option(min=0, metavar="SECONDS", help="Unload a model unused so long.", rich_help_panel=MODELS),
    ] = None,
    revision: Annotated[
        str | None, typer.Option(metavar="NAME", help="Branch, tag or commit of a hub model.", rich_help_panel=MODELS)
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="Folder or hub name that has the model's tokenizer.", rich_help_panel=MODELS
        ),
    ] = None,
    chat_template: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Jinja template in place of the model's own.", rich_help_panel=MODELS),
    ] = None,
    tool_call_parser: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="How the model writes calls of tools: hermes, llama3_json, mistral, none.  [default: as its template]",
            show_default=False,
            rich_help_panel=MODELS,
        ),
    ] = None,
    trust_remote_code: Annotated[
        bool,
        typer.Option("--trust-remote-code", help="Run Python code that a model brings along.", rich_help_panel=MODELS),
    ] = False,
    backend: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="What runs it: transformers, llamacpp, vllm, random.", rich_help_panel=MODELS
        ),
    ] = "transformers",
    backend_python: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Python of the environment that has vLLM.", rich_help_panel=MODELS),
    ] = None,
    backend_option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="For the backend (repeatable).", rich_help_panel=MODELS),
    ] = None,
    ready_file: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Write the URL here once the model answers.", rich_help_panel=OUTPUT),
    ] = None,
    json_logs: Annotated[
        bool, typer.Option("--json-logs", help="One JSON object a line.", rich_help_panel=OUTPUT)
    ] = False,
    record: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Keep what is said as a trace; a folder: one a connection.", rich_help_panel=OUTPUT
        ),
    ] = None,
    inspect: Annotated[
        bool, typer.Option("--inspect", help="Show the traffic: lmtool inspect on this server.", rich_help_panel=OUTPUT)
    ] = False,
) -> None:
    """Serve a model over LMTP.

    Listens at once; requests wait while the model loads. Ctrl-C lets running streams end and exits with 0; a second
    one ends them.
    """
    import asyncio
    import os
    from dataclasses import replace

    from lmtool.access.policy import AccessPolicy
    from lmtool.cli.backends import BackendConfig
    from lmtool.cli.serving.access import AccessConfig
    from lmtool.cli.serving.listening import ListenConfig
    from lmtool.cli.serving.replicas import ReplicasConfig, commands
    from lmtool.cli.serving.run import ServingConfig, run
    from lmtool.cli.serving.service import CarrierConfig, ServiceConfig
    from lmtool.cli.wiring import GGUF, ModelsConfig, check_device, need_serve_packages, threads_for
    from lmtool.engine.config import EngineConfig
    from lmtool.errors import UsageError
    from lmtool.lmtp.config import ServerConfig

    need_serve_packages()
    if cuda and device not in {"auto", "cuda"} and not device.startswith("cuda:"):
        raise UsageError(f"--cuda and --device {device} contradict each other", "give one of them")
    if stdio and (other := common.typed & {"port", "host", "allow_origin", "allow_host", "no_auth"}):
        raise UsageError(
            f"--stdio and --{min(other).replace('_', '-')} contradict each other: it speaks on stdin and stdout",
            "give one of them",
        )
    if inspect and (stdio or json_logs):
        raise UsageError(
            f"--inspect and --{'stdio' if stdio else 'json-logs'} contradict each other: it takes the terminal",
            "leave one of them out",
        )
    if static and model == "auto":
        raise UsageError("--static serves one model, auto serves any", "name the model, or leave --static out")
    runs = BackendConfig(backend, backend_python, tuple(backend_option or ()))
    runs.check()
    if model is not None and model.endswith(GGUF) and backend == "transformers":
        raise UsageError(f"{model} is a GGUF file, which llama.cpp runs", "add:  --backend llamacpp")
    models = ModelsConfig(
        model,
        tuple(served_model_name or ()),
        tuple(allow_model or ()),
        max_loaded,
        idle_unload,
        tokenizer,
        chat_template,
        tool_call_parser,
    )
    models.check()
    carrier = CarrierConfig(root_path, uvicorn_log_level)
    carrier.check()
    engine = EngineConfig(
        device="cuda" if cuda and device == "auto" else device,
        dtype=dtype,
        kernels=kernels,
        quantize=quantize,
        max_streams=batch_size or max_streams,
        max_batch_tokens=max_batch_tokens,
        max_context=max_context,
        max_logprobs=max_logprobs,
        kv_cache_bytes=kv_cache_bytes,
        prefix_cache=prefix_cache,
        speculation=speculation,
        jump_forward=jump_forward,
        step_ahead=step_ahead,
        deterministic=deterministic,
        threads=threads if threads is not None else threads_for(model),
        trust_remote_code=trust_remote_code,
        revision=revision,
    )
    listen = None if stdio else ListenConfig(host, port)
    door = AccessConfig(common.api_key, tuple(allow_origin or ()), tuple(allow_host or ()), no_auth)
    access = AccessPolicy() if listen is None else door.policy(listen)
    await asyncio.to_thread(check_device, runs, engine)
    service = ServiceConfig(
        models, engine, ServerConfig(max_connections=max_connections), runs, access, carrier=carrier
    )
    workers = commands(ReplicasConfig(replicas, layout), service, dict(os.environ), verbose=bool(common.verbose))
    config = ServingConfig(
        listen,
        replace(service, workers=workers),
        ready_file=ready_file,
        drain_limit=drain_limit,
        json_logs=json_logs,
        record=record,
        inspect=inspect,
    )
    if config.inspect:
        from lmtool.cli.inspecting.screen import need_screen
        from lmtool.cli.inspecting.serving import serve_inspected
        from lmtool.cli.output import Output

        need_screen("--inspect")
        await serve_inspected(config, common, Output.of(common))
    else:
        await run(config, common)
