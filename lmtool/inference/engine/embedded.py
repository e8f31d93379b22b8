"""Loads the model that comes with lmtool without transformers, whose import takes longer than all the rest.

That its logits are transformers' own is not checked at each load, as for other models, but by a test.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from lmtool.core.errors import ModelLoadError
from lmtool.core.types import LoadProgress, ModelInfo
from lmtool.inference.engine.batch_invariant import PACKED_MIN_ROWS, PLAIN_MIN_ROWS, packing_works, product_name
from lmtool.inference.engine.cpu.library import kernels
from lmtool.inference.engine.decoder import decoder_config, default_frequencies
from lmtool.inference.engine.decoder_loader import compiled_runner
from lmtool.inference.engine.fingerprint import contents_digest
from lmtool.inference.engine.hardware import choose_dtype, kernel_dtype, this_machine
from lmtool.inference.engine.kv_cache import BLOCK_TOKENS, allocate, cache_blocks
from lmtool.inference.engine.llama_forward import LlamaForward
from lmtool.inference.engine.model_runner import CHUNK_TOKENS, ModelRunner, RunnableModel
from lmtool.inference.engine.weights import checkpoint_bytes, display_name, is_folder, load_errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from lmtool.inference.engine.config import EngineConfig
    from lmtool.inference.engine.decoder import DecoderConfig

FOLDER = Path(__file__).parents[1] / "tiny/lmtool-tiny"
"""The model's folder; also known to its own room, which this one must not import."""


def is_embedded(name: str) -> bool:
    """Whether a model's name is the folder of the embedded model."""
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
    """The same as `compiled_runner` by torch's operators."""
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
