"""Workers of one model: their number, devices and start commands."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmtool.core.errors import ResourceError, UsageError
from lmtool.inference.backends.registry import VLLM, option_value
from lmtool.inference.engine.cpu.library import find_kernels
from lmtool.inference.engine.model_folder import ADAPTER, refuse_adapter
from lmtool.serving.model_names import served

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.serving.config import ReplicasConfig, ServiceConfig

DRIVER = Path("/proc/driver/nvidia/gpus")
VLLM_PROGRAM = Path(__file__).with_name("vllm_worker.py")
"""Run by path: vLLM's environment has no lmtool, and multiprocessing runs it again in each process."""
MOST = 256


def commands(
    config: ReplicasConfig, service: ServiceConfig, environment: dict[str, str], *, verbose: bool = False
) -> tuple[str, ...]:
    """Endpoints (`stdio:COMMAND`) of the workers; empty for a server with one process.

    verbose: forward vLLM's output through the worker's stderr.

    Raises `UsageError` for an invalid layout, `ResourceError` for too few devices.
    """
    if config.layout is None:
        if config.replicas == 1 and service.backend.backend != VLLM:
            return ()
        return (_command(_same_kernels(service), environment, {}, verbose=verbose),) * config.replicas
    if config.replicas != 1:
        raise UsageError("--replicas and --layout contradict each other", "give one of them: 2x1 is two workers")
    workers, each = parse_layout(config.layout)
    if each > 1 and service.backend.backend != VLLM:
        raise UsageError(
            f"--layout {config.layout} gives a worker {each} devices, but this backend uses one",
            f"--layout {workers}x1, or --backend vllm, which splits a model over devices",
        )
    groups = device_groups(workers, each, _devices(environment))
    return tuple(
        _command(service, environment, {"CUDA_VISIBLE_DEVICES": ",".join(group)}, each, verbose=verbose)
        for group in groups
    )


def _same_kernels(service: ServiceConfig) -> ServiceConfig:
    """The configuration with `--kernels auto` resolved, so that all workers use the same kernels."""
    if service.engine.kernels != "auto" or service.backend.backend == VLLM:
        return service
    kernels = "none" if isinstance(find_kernels(), ResourceError) else "required"
    return replace(service, engine=replace(service.engine, kernels=kernels))


def parse_layout(text: str) -> tuple[int, int]:
    """`2x4` as (2, 4). Raises `UsageError`."""
    match = re.fullmatch(r"([1-9]\d{0,2})x([1-9]\d{0,2})", text)
    if match is None or int(match[1]) > MOST:
        raise UsageError(f"--layout {text!r} is not GxD: G workers on D devices each", "such as --layout 2x1")
    return int(match[1]), int(match[2])


def device_groups(workers: int, each: int, devices: Sequence[str]) -> list[list[str]]:
    """Disjoint devices for each worker. Raises `ResourceError` for too few."""
    if workers * each > len(devices):
        raise ResourceError(
            f"a layout of {workers}x{each} needs {workers * each} CUDA devices, but {len(devices)} are visible here",
            "see nvidia-smi and CUDA_VISIBLE_DEVICES; on a CPU use --replicas",
        )
    return [list(devices[number * each : (number + 1) * each]) for number in range(workers)]


def _devices(environment: dict[str, str]) -> list[str]:
    """CUDA devices visible to this process, named as in CUDA_VISIBLE_DEVICES."""
    allowed = environment.get("CUDA_VISIBLE_DEVICES")
    if allowed is not None:
        return [name.strip() for name in allowed.split(",") if name.strip() not in {"", "-1", "NoDevFiles"}]
    return [str(number) for number in range(len(list(DRIVER.iterdir())))] if DRIVER.is_dir() else []


def _command(
    service: ServiceConfig, environment: dict[str, str], more: dict[str, str], devices: int = 1, *, verbose: bool
) -> str:
    """Command of one worker with this server's configuration; it reads neither settings nor LMTOOL variables."""
    hidden = [f"-u{name}" for name in sorted(environment) if name.startswith("LMTOOL_")]
    named = [f"{name}={value}" for name, value in more.items()]
    words = _vllm(service, devices, verbose=verbose) if service.backend.backend == VLLM else _own(service)
    return "stdio:" + shlex.join(["env", *hidden, *named, *words])


def _own(service: ServiceConfig) -> list[str]:
    program = [sys.executable, "-m", "lmtool", "--quiet", "--settings", os.devnull]
    flags = [word for part in (service.models, service.engine, service.backend) for word in _flags(part)]
    named = [name for name in (service.models.model, *service.models.extra_models) if name is not None]
    model = ["--", *named] if named else []
    return [*program, "serve", "--stdio", "--replicas", "1", "--stall-limit", "0", *flags, *model]


def _vllm(service: ServiceConfig, devices: int, *, verbose: bool) -> list[str]:
    """Arguments of a vLLM worker in its own Python: our flags translated, its own options unchanged."""
    engine, model = service.engine, served(service.models.model, service.models.served_model_name)
    options: dict[str, Any] = {"dtype": engine.dtype, "max_num_seqs": engine.max_streams}
    named = {
        "max_model_len": engine.max_context,
        "max_num_batched_tokens": engine.max_batch_tokens,
        "kv_cache_memory_bytes": engine.kv_cache_bytes,
        "max_logprobs": engine.max_logprobs,
        "revision": engine.revision,
        "trust_remote_code": engine.trust_remote_code or None,
        "tensor_parallel_size": devices if devices > 1 else None,
    }
    options |= {name: value for name, value in named.items() if value is not None}
    given = dict(service.backend.options)
    python = given.pop("python")
    options |= {name: option_value(value) for name, value in given.items()}
    refuse_adapter(model.source, Path(model.source) / ADAPTER)
    settings = {
        "model": model.source,
        "name": model.names[0],
        "options": options,
        "verbose": verbose,
        "chat_template": service.models.template(),
        "generation_config": service.models.generation_config,
        "reasoning_parser": service.models.reasoning_parser,
    }
    return [python, str(VLLM_PROGRAM), json.dumps(settings)]


def _flags(config: Any) -> list[str]:
    """Command-line flags for the fields of a configuration that differ from their defaults."""
    words: list[str] = []
    for field in fields(config):
        value = getattr(config, field.name)
        default = field.default if field.default is not MISSING else None
        if field.name in {"model", "extra_models"} or value == default:
            continue
        flag = f"--{field.name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag[2:]}")
        elif isinstance(value, tuple):
            words += [word for one in value for word in (flag, str(one))]
        else:
            words += [flag, str(value)]
    return words
