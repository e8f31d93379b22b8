"""A model that passed the check at load, and the key-value cache that its streams get, from what memory it leaves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from lmtool.core.errors import ResourceError
from lmtool.inference.engine.kv_cache import BLOCK_TOKENS, PagedCache, allocate, cache_blocks
from lmtool.inference.engine.model_runner import ModelRunner, RunnableModel
from lmtool.inference.engine.selfcheck import CHECK_BLOCKS, QUANTIZED, check_runner

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from lmtool.core.types import ModelInfo
    from lmtool.inference.engine.config import EngineConfig
    from lmtool.inference.engine.selfcheck import Reference


@dataclass(frozen=True, slots=True)
class CheckedModel:
    """A model that passed the check, without a key-value cache for streams."""

    name: str
    runner: ModelRunner
    reference: Reference
    info: ModelInfo
    """Its context is what the model is right for."""
    contents: str | None
    token_bytes: int
    """Of a token's activations in one layer, about."""


def with_cache(model: CheckedModel, config: EngineConfig) -> RunnableModel:
    """The model with keys and values for streams."""
    info, old = model.info, model.runner.cache
    assert info.context_length is not None
    shapes, reserved = [shape for _, shape in old.layers], _graph_bytes(model, config)
    scales = _cache_scales(model) if config.kv_cache_dtype == "fp8" else None
    dtype = old.dtype if scales is None else torch.uint8
    blocks = cache_blocks(model.name, shapes, info.context_length, dtype, old.device, config, CHECK_BLOCKS, reserved)
    paged = isinstance(old, PagedCache)
    cache = allocate(model.name, old.layers, blocks, dtype, old.device, scales, paged=paged)
    runner = replace(model.runner, cache=cache)
    if scales is not None:
        tolerance = QUANTIZED["fp8" if config.quantize else "fp8 keys and values"]
        check_runner(runner, f"{model.name} with --kv-cache-dtype fp8", model.reference, tolerance)
    context = min(info.context_length, blocks * BLOCK_TOKENS + 1)
    shown = replace(info, context_length=context, dtype=config.quantize or info.dtype)
    return RunnableModel(runner, blocks, shown, model.contents)


def _cache_scales(model: CheckedModel) -> list[Tensor]:
    """For keys and values of eight bits, from those that the check stored. Raises `ResourceError` without kernels."""
    cache = model.runner.cache
    if type(model.runner) is ModelRunner or not isinstance(cache, PagedCache):
        raise ResourceError(
            f"{model.name} cannot be served with --kv-cache-dtype fp8: it needs Triton, which does not work here",
            "leave --kv-cache-dtype out",
        )
    return cache.e4m3_scales()


def _graph_bytes(model: CheckedModel, config: EngineConfig) -> int:
    """Bytes on a GPU that CUDA graphs will need, and what they sample with; 0 without any."""
    if type(model.runner) is ModelRunner:
        return 0
    from lmtool.inference.engine.cuda.graphs import graph_bytes

    info, rows = model.info, config.max_streams
    assert info.context_length is not None
    assert info.vocab_size is not None
    layers = len(model.runner.cache.layers)
    kept = graph_bytes(rows, info.context_length, info.vocab_size, layers, model.token_bytes)
    return kept + rows * info.vocab_size * _SAMPLING_BYTES


_SAMPLING_BYTES = 8
"""Of a row and a token of the vocabulary: how often the stream has it, and a copy of its logit."""


def token_bytes(model: PreTrainedModel) -> int:
    """Bytes of a token's activations in one layer, about: see `CheckedModel.token_bytes`."""
    text = model.config.get_text_config()
    hidden, inner, experts = (
        size if isinstance(size := getattr(text, name, None), int) else usual
        for name, usual in (("hidden_size", 8192), ("intermediate_size", 32768), ("num_experts_per_tok", 1))
    )
    return int(model.dtype.itemsize * (8 * hidden + 3 * inner * experts))
