"""Makes a running engine of a model's name: picks the loader, sets the limits of a step."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from lmtool.core.errors import OutOfMemoryError, ResourceError
from lmtool.core.types import LoadProgress
from lmtool.inference.engine.batch_invariant import PLAIN_MIN_ROWS, product_name, warn_if_variant
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.engine.cpu.library import use_kernels
from lmtool.inference.engine.device import forgetting_frames, release
from lmtool.inference.engine.embedded import is_embedded, load_embedded
from lmtool.inference.engine.engine import Engine
from lmtool.inference.engine.fingerprint import engine_fingerprint
from lmtool.inference.engine.gguf.loader import is_gguf, load_gguf
from lmtool.inference.engine.hardware import check_formats
from lmtool.inference.engine.kv_cache import BLOCK_TOKENS
from lmtool.inference.engine.plan import Limits
from lmtool.inference.engine.sampler import prepare_gpu
from lmtool.inference.engine.weights import checkpoint_bytes, find_device, import_transformers

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmtool.inference.engine.model_runner import RunnableModel


def load_engine(
    model: str, config: EngineConfig | None = None, on_progress: Callable[[LoadProgress], None] | None = None
) -> Engine:
    """A running engine for `model`, checked against transformers' own forward pass. Blocks; call it from a thread.

    model: a local folder, a GGUF file or a hub name. on_progress: called in this thread, last with `ready` or `failed`.
    Raises `ModelLoadError` (not found, not a causal language model, damaged, an architecture that cannot be served),
    `ResourceError` (no such device, unknown dtype, no C kernels, too small a cache) or `OutOfMemoryError`.
    """
    config = config or EngineConfig()
    report = on_progress or (lambda _progress: None)
    try:
        with torch.inference_mode(), forgetting_frames():
            engine = _load(model, config, report)
    except ResourceError as problem:
        report(LoadProgress(model, "failed", message=problem.message))
        raise
    except (torch.OutOfMemoryError, MemoryError) as problem:
        report(LoadProgress(model, "failed", message="out of memory"))
        raise OutOfMemoryError(
            f"{model} leaves no memory to run it", "try --kv-cache-bytes, --dtype bfloat16 or a smaller model"
        ) from problem
    engine.start()
    size = checkpoint_bytes(model)
    report(LoadProgress(model, "ready", size, size, f"{model} is ready"))
    return engine


def _load(name: str, config: EngineConfig, report: Callable[[LoadProgress], None]) -> Engine:
    device = find_device(config.device)
    check_formats(config, device)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # of this thread: Triton launches where the thread is
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    use_kernels(config.kernels)
    embedded = is_embedded(name) and device.type == "cpu" and not config.quantize  # else as all models
    if embedded:
        loaded = load_embedded(name, config, device, report)
    else:
        own = load_gguf(name, config, device, report) if is_gguf(name) else None
        loaded = own or _load_transformers(name, config, device, report)
    context = loaded.info.context_length or loaded.blocks * BLOCK_TOKENS
    samples = False
    if device.type == "cuda" and loaded.info.vocab_size is not None:
        gpu = torch.device("cuda", torch.cuda.current_device())
        samples = prepare_gpu(gpu, loaded.info.vocab_size, torch.float32) is not None
    runner = loaded.runner.prepared(config.max_streams, context, samples=samples)
    release()  # what steps take for good, as cuBLAS does, is no part of a large piece that loading has left
    lossless = device.type == "cpu" or config.deterministic
    limits = Limits(
        max_streams=config.max_streams,
        max_batch_tokens=config.max_batch_tokens or (256 if device.type == "cpu" else 2048),
        chunk_tokens=runner.chunk_tokens,
        block_tokens=BLOCK_TOKENS,
        max_scored_rows=512,
        prompt_share=1 if device.type == "cpu" else None,
        free_cuts=runner.free_cuts,
        cache_generated=runner.free_cuts or not lossless,
        doubling_position=runner.doubling_position,
    )
    config_here = replace(config, speculation=config.speculation and lossless)
    known = loaded.contents
    found = None if known is None else engine_fingerprint(known, loaded.info, config, device)
    info = replace(loaded.info, fingerprint=found, batch_invariant=_is_batch_invariant(loaded, config, device))
    return Engine(runner, limits, loaded.blocks, info, config_here)


def _is_batch_invariant(loaded: RunnableModel, config: EngineConfig, device: torch.device) -> bool:
    """See `ModelInfo.batch_invariant`."""
    info = loaded.info
    if device.type != "cpu":
        return config.deterministic
    plain = info.kernels == product_name(PLAIN_MIN_ROWS)
    if plain and info.dtype is not None and warn_if_variant(getattr(torch, info.dtype)):
        return False
    return info.batch_invariant is not False


def _load_transformers(
    name: str, config: EngineConfig, device: torch.device, report: Callable[[LoadProgress], None]
) -> RunnableModel:
    import_transformers()
    from lmtool.inference.engine.load_progress import quiet
    from lmtool.inference.engine.transformers_loader import load_transformers

    with quiet():
        return load_transformers(name, config, device, report)
