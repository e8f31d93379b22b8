"""The model that comes with lmtool, in memory without transformers, whose import takes longer than all the rest.

That its logits are transformers' own is not checked at each load, as it is for other models, but by a test.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from lmtool.engine.cache_size import allocate, cache_blocks
from lmtool.engine.cpu.decoder import llama_shape
from lmtool.engine.cpu.forward import CompiledModel
from lmtool.engine.cpu.library import kernels
from lmtool.engine.cpu.load import compiled_model
from lmtool.engine.kv_cache import BLOCK_TOKENS
from lmtool.engine.lean import LeanModel
from lmtool.engine.lean_config import FAMILIES, default_frequencies, lean_config
from lmtool.engine.linear import PACKED_MIN_ROWS, PLAIN_MIN_ROWS, packing_works, product_name
from lmtool.engine.loaded import Loaded, chunk_tokens, shown_name
from lmtool.engine.model_runner import ModelRunner
from lmtool.engine.numerics import choose_dtype, choose_packed, this_machine
from lmtool.engine.weights import checkpoint_bytes, is_folder, translated
from lmtool.errors import ModelLoadError
from lmtool.types import LoadProgress, ModelInfo

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from lmtool.engine.config import EngineConfig
    from lmtool.engine.lean_config import LeanConfig

FOLDER = Path(__file__).parents[1] / "tiny/lmtool-tiny"
"""Where the model lies; the rooms do not import each other, so its own room tells it once more."""


def is_embedded(name: str) -> bool:
    """Whether a model's name is the folder of the embedded model."""
    return is_folder(name) and FOLDER.is_dir() and Path(name).samefile(FOLDER)


def load_embedded(
    name: str, config: EngineConfig, device: torch.device, report: Callable[[LoadProgress], None]
) -> Loaded:
    """The embedded model on `device`, a CPU. Raises `ModelLoadError`, `ResourceError` or `OutOfMemoryError`."""
    size = checkpoint_bytes(name)
    report(LoadProgress(name, "loading", 0, size, f"reading {name}"))
    machine = this_machine(device)
    with translated(name, config):
        raw, generation = (
            json.loads((FOLDER / file).read_text(encoding="utf-8"))
            for file in ("config.json", "generation_config.json")
        )
        dtype = choose_dtype(config.dtype, getattr(torch, raw["dtype"]), size, machine)
        shape, weights = lean_config(raw), _read(FOLDER / "model.safetensors", dtype, device)
    if shape is None or not shape.accepts(weights) or raw["rope_parameters"]["rope_type"] != "default":
        raise ModelLoadError(f"the embedded model in {FOLDER} is damaged", "install lmtool again")
    parameters = sum(weight.numel() for weight in weights.values())
    context = min(raw["max_position_embeddings"], config.max_context or raw["max_position_embeddings"])
    frequencies = default_frequencies(shape.head_dim, raw["rope_parameters"]["rope_theta"])
    packed = choose_packed(dtype, None, llama_shape(shape, FAMILIES[shape.family]), machine)
    model = _forward(shape, weights, frequencies, context, dtype, packed)
    kept = dtype if packed is None else torch.float32
    blocks = cache_blocks(name, [shape.layer_shape] * len(model.layers), context, kept, device, config, fewest=1)
    cache = allocate(name, [(layer, shape.layer_shape) for layer in model.layers], blocks, kept, device)
    if isinstance(model, CompiledModel):
        runner = model.runner(cache, chunk_tokens(device))
    else:
        rows = PACKED_MIN_ROWS if packing_works(dtype) else PLAIN_MIN_ROWS
        runner = ModelRunner(model, cache, device, chunk_tokens(device), rows, kernels=product_name(rows))
    info = ModelInfo(
        model=shown_name(name),
        constructor=f"lmtool.load({name!r})",
        backend="lmtool",
        vocab_size=shape.vocabulary,
        context_length=min(context, blocks * BLOCK_TOKENS + 1),
        eos_token_ids=tuple(generation["eos_token_id"]),
        bos_token_id=generation["bos_token_id"],
        architecture=FAMILIES[shape.family],
        parameters=parameters,
        dtype=str(dtype).removeprefix("torch."),
        device=str(device),
        kernels=runner.kernels,
        versions={"torch": str(torch.__version__)},
    )
    return Loaded(runner, blocks, info)


def _forward(
    shape: LeanConfig,
    weights: dict[str, Tensor],
    frequencies: Tensor,
    context: int,
    dtype: torch.dtype,
    packed: torch.dtype | None,
) -> CompiledModel | LeanModel:
    """The pass over the weights, which it takes. packed: see `choose_packed`."""
    library = kernels()
    if packed is not None and library is not None:
        decoder = llama_shape(shape, FAMILIES[shape.family])
        return compiled_model(library, decoder, weights, frequencies, context, packed)
    return LeanModel(shape, weights, frequencies, context, packed=packing_works(dtype))


def _read(path: Path, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    from safetensors import safe_open

    with safe_open(path, framework="pt", device=str(device)) as file:
        return {name: file.get_tensor(name).to(dtype) for name in file.keys()}  # noqa: SIM118  # no mapping
