"""Puts a decoder's weights behind the C kernels, without transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from lmtool.inference.engine.cpu.forward import CompiledForward
from lmtool.inference.engine.kv_cache import allocate, cache_blocks
from lmtool.inference.engine.model_runner import CHUNK_TOKENS

if TYPE_CHECKING:
    from torch import Tensor

    from lmtool.inference.engine.config import EngineConfig
    from lmtool.inference.engine.cpu.library import Kernels
    from lmtool.inference.engine.decoder import DecoderConfig, Weights
    from lmtool.inference.engine.model_runner import ModelRunner

_CPU = torch.device("cpu")


def compiled_runner(
    name: str,
    library: Kernels,
    decoder: DecoderConfig,
    weights: Weights,
    frequencies: Tensor,
    context: int,
    stored: torch.dtype,
    config: EngineConfig,
) -> tuple[ModelRunner, int]:
    """A runner of the compiled pass with a cache of its own, and the cache's blocks.

    weights: taken out. frequencies: [head_dim / 2] float32. context: positions of the longest stream. stored: what
    weights are stored as. Raises `OutOfMemoryError`, or `ResourceError` for too small a cache.
    """
    forward = CompiledForward(library, decoder, weights, frequencies, context, stored)
    shape = decoder.layer_shape
    blocks = cache_blocks(name, [shape] * len(forward.layers), context, forward.cache_dtype, _CPU, config, fewest=1)
    cache = allocate(name, [(layer, shape) for layer in forward.layers], blocks, forward.cache_dtype, _CPU)
    return forward.runner(cache, CHUNK_TOKENS), blocks
