"""Loads a model by name and starts its engine: picks the loader, and sets the limits of a step.

The included model is loaded without transformers, whose import takes longer than everything else. That its logits are
transformers' own is checked by a test, not at each load as for other models.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from lmtool.core.errors import ModelLoadError, OutOfMemoryError, ResourceError
from lmtool.core.types import LoadProgress, ModelInfo
from lmtool.inference.engine.batch_invariant import (
    PACKED_MIN_ROWS,
    PLAIN_MIN_ROWS,
    packing_works,
    product_name,
    warn_if_variant,
)
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.engine.cpu.forward import compiled_runner
from lmtool.inference.engine.cpu.library import kernels, use_kernels
from lmtool.inference.engine.decoder import LlamaForward, decoder_config, default_frequencies
from lmtool.inference.engine.device import forgetting_frames, release
from lmtool.inference.engine.engine import Engine
from lmtool.inference.engine.fingerprint import contents_digest, engine_fingerprint
from lmtool.inference.engine.gguf.loader import is_gguf, load_gguf
from lmtool.inference.engine.hardware import check_formats, choose_dtype, kernel_dtype, this_machine
from lmtool.inference.engine.kv_cache import BLOCK_TOKENS, allocate, cache_blocks
from lmtool.inference.engine.model_runner import CHUNK_TOKENS, ModelRunner, RunnableModel
from lmtool.inference.engine.plan import Limits
from lmtool.inference.engine.sampler import prepare_gpu
from lmtool.inference.engine.weights import (
    checkpoint_bytes,
    display_name,
    find_device,
    import_transformers,
    is_folder,
    load_errors,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from lmtool.inference.engine.decoder import DecoderConfig


FOLDER = Path(__file__).parents[1] / "tiny/lmtool-tiny"
"""The model's folder; also known to its own room, which this one must not import."""


def is_embedded(name: str) -> bool:
    """True if a model's name is the folder of the embedded model."""
    return is_folder(name) and FOLDER.is_dir() and Path(name).samefile(FOLDER)


def load_embedded(
    name: str, config: EngineConfig, device: torch.device, report: Callable[[LoadProgress], None]
) -> RunnableModel:
    """The embedded model on `device`, a CPU. Raises `ModelLoadError`, `ResourceError` or `OutOfMemoryError`."""
    size = checkpoint_bytes(name)
    report(LoadProgress(name, "loading", 0, size, f"reading {name}"))
    machine = this_machine(device)
    with load_errors(name, config):
        raw, generation = (
            json.loads((FOLDER / file).read_text(encoding="utf-8"))
            for file in ("config.json", "generation_config.json")
        )
        dtype = choose_dtype(config.dtype, getattr(torch, raw["dtype"]), size, machine)
        decoder, weights = decoder_config(raw), _read(FOLDER / "model.safetensors", dtype, device)
        contents = contents_digest(raw, weights.items())
    if decoder is None or not decoder.accepts(weights) or raw["rope_parameters"]["rope_type"] != "default":
        raise ModelLoadError(f"the embedded model in {FOLDER} is damaged", "install lmtool again")
    parameters = sum(weight.numel() for weight in weights.values())
    context = min(raw["max_position_embeddings"], config.max_context or raw["max_position_embeddings"])
    frequencies = default_frequencies(decoder.head_dim, raw["rope_parameters"]["rope_theta"])
    stored, library = kernel_dtype(dtype, None, decoder, machine), kernels()
    if stored is not None and library is not None:
        runner, blocks = compiled_runner(name, library, decoder, weights, frequencies, context, stored, config)
    else:
        runner, blocks = _torch_runner(name, decoder, weights, frequencies, context, dtype, device, config)
    info = ModelInfo(
        model=display_name(name),
        constructor=f"lmtool.load({name!r})",
        backend="lmtool",
        vocab_size=decoder.vocabulary,
        context_length=min(context, blocks * BLOCK_TOKENS + 1),
        eos_token_ids=tuple(generation["eos_token_id"]),
        bos_token_id=generation["bos_token_id"],
        architecture=decoder.architecture,
        parameters=parameters,
        dtype=str(dtype).removeprefix("torch."),
        device=str(device),
        kernels=runner.kernels,
        versions={"torch": str(torch.__version__)},
    )
    return RunnableModel(runner, blocks, info, contents)


def _torch_runner(
    name: str,
    decoder: DecoderConfig,
    weights: dict[str, Tensor],
    frequencies: Tensor,
    context: int,
    dtype: torch.dtype,
    device: torch.device,
    config: EngineConfig,
) -> tuple[ModelRunner, int]:
    """Like `compiled_runner`, with torch's operators."""
    packed = packing_works(dtype)
    forward = LlamaForward(decoder, weights, frequencies, context, packed=packed)
    shape = decoder.layer_shape
    blocks = cache_blocks(name, [shape] * len(forward.layers), context, dtype, device, config, fewest=1)
    cache = allocate(name, [(layer, shape) for layer in forward.layers], blocks, dtype, device)
    rows = PACKED_MIN_ROWS if packed else PLAIN_MIN_ROWS
    return ModelRunner(forward, cache, device, CHUNK_TOKENS, rows, kernels=product_name(rows)), blocks


def _read(path: Path, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    from safetensors import safe_open

    with safe_open(path, framework="pt", device=str(device)) as file:
        return {name: file.get_tensor(name).to(dtype) for name in file.keys()}  # noqa: SIM118  # no mapping


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
    fingerprint = None if known is None else engine_fingerprint(known, loaded.info, config, device)
    info = replace(loaded.info, fingerprint=fingerprint, batch_invariant=_is_batch_invariant(loaded, config, device))
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
    from lmtool.inference.engine.checkpoint import quiet
    from lmtool.inference.engine.transformers_loader import load_transformers

    with quiet():
        return load_transformers(name, config, device, report)
