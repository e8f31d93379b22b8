"""An engine over pages on a CPU, its kernels in Triton's interpreter: a GPU's path, to try the sections without one."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from lmtool.core.types import ModelInfo
from lmtool.inference.engine.decoder import decoder_config
from lmtool.inference.engine.engine import Engine
from lmtool.inference.engine.kv_cache import BLOCK_TOKENS, PagedCache
from lmtool.inference.engine.model_runner import CHUNK_TOKENS, ModelRunner
from lmtool.inference.engine.plan import Limits
from lmtool.inference.engine.random_model import random_model

if TYPE_CHECKING:
    from lmtool.inference.engine.config import EngineConfig

CONTEXT = 256
BLOCKS = 64
PROGRAMS = 8
"""Of an attention kernel: each takes the interpreter milliseconds."""
PART_TOKENS = (64,)
"""Sizes of captured steps with parts of prompts."""


def works(device: torch.device) -> bool:
    """True if kernels are to be interpreted: on a CPU, with TRITON_INTERPRET=1."""
    return (
        device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1" and bool(importlib.util.find_spec("triton"))
    )


def load(name: str, config: EngineConfig) -> Engine:
    """A running engine over a random model, as `load_engine` would make it on a GPU; nothing is compared."""
    from lmtool.inference.engine import selfcheck
    from lmtool.inference.engine.cuda import graphs
    from lmtool.inference.engine.cuda.kernels import attention
    from lmtool.inference.engine.selfcheck import TransformersForward, record_layers
    from lmtool.inference.engine.transformers_loader import fused_llama, paged_runner

    attention._PROGRAMS = PROGRAMS  # here alone
    attention._ROWS = (8, 64, 4096)  # sums over rows are loops there
    sizes: Any = graphs
    sizes._PART_TOKENS, sizes._PART_SINGLES = PART_TOKENS, ()  # here alone
    selfcheck.register()
    device = torch.device("cpu")
    with torch.inference_mode():
        model = random_model(name, torch.float32, device)
        layers = record_layers(model, name, CONTEXT)
        cache = PagedCache([(layer.layer, layer.shape) for layer in layers], BLOCKS, model.dtype, device)
        plain = ModelRunner(TransformersForward(model), cache, device, CHUNK_TOKENS, 1)
        runner = paged_runner(plain, layers, model.dtype, deterministic=config.deterministic)
        shape = decoder_config(model.config.to_dict())
        assert shape is not None
        weights = {name: parameter.data for name, parameter in model.named_parameters()}
        frequencies = model.get_submodule("model.rotary_emb").get_buffer("inv_freq")
        forward = fused_llama(runner, shape, weights, frequencies, CONTEXT)
        assert forward is not None
        cache.rename(forward.layers)
        runner = replace(runner, forward=forward).prepared(config.max_streams, CONTEXT)
    limits = Limits(config.max_streams, 64, CHUNK_TOKENS, BLOCK_TOKENS, 512)
    info = ModelInfo(
        model=name,
        constructor="",
        backend="transformers",
        vocab_size=shape.vocabulary,
        context_length=CONTEXT,
        parameters=model.num_parameters(),
        dtype="float32",
        device="cpu",
        kernels=runner.kernels,
    )
    engine = Engine(runner, limits, BLOCKS, info, config)
    engine.start()
    return engine
