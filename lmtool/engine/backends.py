"""Makes an engine out of a model's name: load, size the key-value cache, check, start."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from lmtool.engine import attention
from lmtool.engine.activations import even_activations
from lmtool.engine.config import EngineConfig
from lmtool.engine.engine import Engine
from lmtool.engine.kv_cache import BLOCK_TOKENS, KVCache, LayerShape, block_bytes
from lmtool.engine.linear import PLAIN_MIN_ROWS, prepare_linears
from lmtool.engine.load_progress import quiet
from lmtool.engine.model_runner import ModelRunner
from lmtool.engine.scheduler import Limits
from lmtool.engine.selfcheck import CHECK_BLOCKS, check_runner, record_layers, reference_logits
from lmtool.engine.weights import checkpoint_bytes, find_device, load_model
from lmtool.errors import ModelLoadError, OutOfMemoryError, ResourceError
from lmtool.types import LoadProgress, ModelInfo

if TYPE_CHECKING:
    from collections.abc import Callable

_logger = logging.getLogger(__name__)

_CPU_SHARE = 0.4
"""Of the memory that is free after loading, the most that keys and values may take on CPU; taken as it is needed."""

_CUDA_SHARE = 0.85
"""The same on a GPU, where the rest is for the activations of a step."""


def load_engine(
    model: str, config: EngineConfig | None = None, on_progress: Callable[[LoadProgress], None] | None = None
) -> Engine:
    """A running engine for `model`, checked against transformers' own forward pass. Blocks; call it from a thread.

    model: a local folder or a hub name. on_progress: called in this thread, last with `ready` or `failed`.
    Raises `ModelLoadError` (not found, not a causal language model, damaged, an architecture that cannot be served),
    `ResourceError` (no such device, unknown dtype, too small a cache) or `OutOfMemoryError`.
    """
    config = config or EngineConfig()
    report = on_progress or _silent
    try:
        with torch.inference_mode(), quiet():
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
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    attention.register()
    checked = _checked(name, config, device, report)
    prepared = _prepared(checked, name) or _checked(name, config, device, report)
    limits = Limits(
        max_streams=config.max_streams,
        max_batch_tokens=config.max_batch_tokens or (256 if device.type == "cpu" else 2048),
        chunk_tokens=prepared.runner.chunk_tokens,
        block_tokens=BLOCK_TOKENS,
        max_scored_rows=512,
    )
    return Engine(prepared.runner, limits, prepared.blocks, prepared.info, config.threads)


@dataclass(frozen=True, slots=True)
class _Checked:
    runner: ModelRunner
    reference: list[Tensor]
    blocks: int
    info: ModelInfo


def _checked(name: str, config: EngineConfig, device: torch.device, report: Callable[[LoadProgress], None]) -> _Checked:
    """The model with plain linear layers, its logits compared with transformers' own."""
    model = load_model(name, config, device, report)
    reference = reference_logits(model, name)
    context = _context_length(model.config, config)
    layers = record_layers(model, name, context)
    blocks = _blocks(name, [shape for _, shape in layers], context, model.dtype, device, config)
    cache = _allocate(name, layers, blocks, model, device)
    runner = ModelRunner(
        model=model,
        cache=cache,
        device=device,
        chunk_tokens=64 if device.type == "cpu" else 512,
        min_rows=PLAIN_MIN_ROWS if device.type == "cpu" else 1,
    )
    check_runner(runner, name, reference)
    embedding = model.get_input_embeddings()
    assert isinstance(embedding, nn.Embedding)
    vocabulary = min(reference[0].shape[-1], embedding.num_embeddings)
    info = _info(name, model, vocabulary, min(context, blocks * BLOCK_TOKENS + 1))
    return _Checked(runner, reference, blocks, info)


def _prepared(checked: _Checked, name: str) -> _Checked | None:
    """The same with layers of ours in it; None if the model cannot do with them and must be loaded again."""
    plain = checked.runner
    runner = ModelRunner(
        model=plain.model,
        cache=plain.cache,
        device=plain.device,
        chunk_tokens=plain.chunk_tokens,
        min_rows=prepare_linears(plain.model, plain.device),
    )
    even_activations(plain.model, plain.device)
    try:
        check_runner(runner, name, checked.reference)
    except ModelLoadError as problem:
        _logger.warning("%s runs with its own layers only: %s", name, problem.message)
        return None
    return _Checked(runner, checked.reference, checked.blocks, checked.info)


def _context_length(model_config: PreTrainedConfig, config: EngineConfig) -> int:
    """Most tokens of prompt and output together that the model is right for."""
    text = model_config.get_text_config()
    lengths = [getattr(text, "max_position_embeddings", None), config.max_context, *_fixed_rope_lengths(text)]
    known = [length for length in lengths if isinstance(length, int) and length > 0]
    return min(known) if known else 4096


def _fixed_rope_lengths(text: PreTrainedConfig) -> list[int]:
    """Where rotary frequencies depend on the longest stream of a batch, the length up to which they do not.

    Beyond it a stream would change its neighbours: transformers picks the frequencies for a whole forward pass.
    """
    parameters = getattr(text, "rope_parameters", None) or {}
    kinds = [parameters, *(value for value in parameters.values() if isinstance(value, dict))]
    dynamic = [kind for kind in kinds if kind.get("rope_type") in ("dynamic", "longrope")]
    original = getattr(text, "original_max_position_embeddings", None)
    lengths: list[Any] = [kind.get("original_max_position_embeddings", original) for kind in dynamic]
    return [length for length in lengths if isinstance(length, int)]


def _blocks(
    name: str,
    shapes: list[LayerShape],
    context: int,
    dtype: torch.dtype,
    device: torch.device,
    config: EngineConfig,
) -> int:
    """How many blocks the key-value cache gets."""
    size = block_bytes(shapes, dtype)
    most = config.max_streams * -(-context // BLOCK_TOKENS)
    if config.kv_cache_bytes is None:
        blocks = min(int(_free_bytes(device)) // size, most)
        if blocks < CHECK_BLOCKS:
            raise OutOfMemoryError(f"{name} leaves no memory for keys and values", "choose a smaller model or dtype")
        return max(blocks, CHECK_BLOCKS)
    blocks = config.kv_cache_bytes // size
    if blocks < CHECK_BLOCKS:
        raise ResourceError(
            f"a key-value cache of {config.kv_cache_bytes} bytes is too small for {name}; "
            f"it needs at least {CHECK_BLOCKS * size}",
            f"one full stream of {context} tokens needs {-(-context // BLOCK_TOKENS) * size} bytes",
        )
    return blocks


def _free_bytes(device: torch.device) -> float:
    if device.type == "cuda":
        return _CUDA_SHARE * torch.cuda.mem_get_info(device)[0]
    return _CPU_SHARE * min(_free_ram(), _cgroup_limit())


def _free_ram() -> float:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(float(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) / 2


def _cgroup_limit() -> float:
    try:
        return float(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii"))
    except (OSError, ValueError):  # no cgroup, or the word "max"
        return float("inf")


def _allocate(
    name: str, layers: list[tuple[nn.Module, LayerShape]], blocks: int, model: PreTrainedModel, device: torch.device
) -> KVCache:
    try:
        return KVCache(layers, blocks, model.dtype, device)
    except (RuntimeError, MemoryError) as problem:
        size = blocks * block_bytes((shape for _, shape in layers), model.dtype)
        raise OutOfMemoryError(
            f"no memory for the key-value cache of {name}: {size} bytes", "give less with --kv-cache-bytes"
        ) from problem


def _info(name: str, model: PreTrainedModel, vocabulary: int, context: int) -> ModelInfo:
    text = model.config.get_text_config()
    generation = model.generation_config
    eos = getattr(generation, "eos_token_id", None)
    eos = getattr(text, "eos_token_id", None) if eos is None else eos
    ids = [eos] if isinstance(eos, int) else list(eos or [])
    bos = getattr(generation, "bos_token_id", None)
    bos = getattr(text, "bos_token_id", None) if bos is None else bos
    return ModelInfo(
        model=Path(name).resolve().name if Path(name).is_dir() else name,  # clients read it: paths are not for them
        constructor=f"AutoModelForCausalLM.from_pretrained({name!r})",
        backend="transformers",
        vocab_size=vocabulary,
        context_length=context,
        eos_token_ids=tuple(token for token in ids if 0 <= token < vocabulary),
        bos_token_id=bos if isinstance(bos, int) and 0 <= bos < vocabulary else None,
        architecture=type(model).__name__,
        parameters=model.num_parameters(),
        dtype=str(model.dtype).removeprefix("torch."),
        device=str(model.device),
        versions={"torch": str(torch.__version__), "transformers": transformers.__version__},
    )


def _silent(progress: LoadProgress) -> None:
    """Nobody asked how the load proceeds."""
