"""A model in memory that came through transformers, in the fastest form that gives transformers' own logits."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from lmtool.engine import transformers_attention
from lmtool.engine.activations import even_activations
from lmtool.engine.cache_size import allocate, cache_blocks
from lmtool.engine.cpu.library import kernels
from lmtool.engine.cpu.load import compiled_model, compiled_shape, no_quantized_pass
from lmtool.engine.cuda.load import lean_model, no_fixed_pass, paged_runner
from lmtool.engine.cuda.products import settle
from lmtool.engine.kv_cache import BLOCK_TOKENS
from lmtool.engine.lean import LeanModel
from lmtool.engine.lean_config import FAMILIES, LeanConfig, lean_config
from lmtool.engine.linear import PACKED_MIN_ROWS, PLAIN_MIN_ROWS, packing_pays, product_name
from lmtool.engine.loaded import Loaded, chunk_tokens, shown_name
from lmtool.engine.model_runner import ModelRunner
from lmtool.engine.numerics import choose_packed, this_machine
from lmtool.engine.packing import prepare_linears
from lmtool.engine.selfcheck import (
    CHECK_BLOCKS,
    QUANTIZED,
    RecordedLayer,
    Reference,
    check_runner,
    record_layers,
    reference_logits,
)
from lmtool.engine.transformers_forward import TransformersForward
from lmtool.engine.weights import load_model
from lmtool.errors import ModelLoadError
from lmtool.types import LoadProgress, ModelInfo

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmtool.engine.config import EngineConfig

_logger = logging.getLogger(__name__)


def load_checked(
    name: str, config: EngineConfig, device: torch.device, report: Callable[[LoadProgress], None]
) -> Loaded:
    """The model `name` on `device`, its logits compared with those of transformers' plain forward pass.

    Taken is the first of these that gives the same: the compiled pass; the lean pass; transformers' modules with linear
    layers and activations of ours; its modules as they are. Quantized weights have the compiled pass only. Raises
    `ModelLoadError`, `ResourceError` or `OutOfMemoryError`.
    """
    transformers_attention.register()
    if config.deterministic and device.type == "cuda":
        settle()
    plain = _plain(name, config, device, report)
    if made := _compiled(plain, config):
        if found := _if_equal(plain, made, "runs without compiled kernels", config.quantize):
            return _as_quantized(found, config)
        del made, plain  # or their memory would be missing for the next one
        plain = _plain(name, config, device, report)  # its weights were taken apart
    if config.quantize:
        raise no_quantized_pass(name)
    if shape := _lean_shape(plain):
        if found := _lean(plain, shape):
            return found
        del plain
        plain = _plain(name, config, device, report)  # its weights were taken apart
    if config.deterministic and device.type == "cuda":
        raise no_fixed_pass(name)
    return _packed(plain) or _plain(name, config, device, report).loaded


@dataclass(frozen=True, slots=True)
class _Plain:
    """A transformers model with its own layers, that passed the check."""

    name: str
    model: PreTrainedModel
    reference: Reference
    layers: list[RecordedLayer]
    context: int
    """Most tokens of a stream."""
    loaded: Loaded


def _plain(name: str, config: EngineConfig, device: torch.device, report: Callable[[LoadProgress], None]) -> _Plain:
    model = load_model(name, config, device, report)
    reference = reference_logits(model, name)
    context = _context_length(model.config, config)
    layers = record_layers(model, name, context)
    shapes = [layer.shape for layer in layers]
    widest = torch.float32 if device.type == "cpu" else model.dtype  # as the compiled pass keeps them
    blocks = cache_blocks(name, shapes, context, widest, device, config, fewest=CHECK_BLOCKS)
    cache = allocate(name, [(layer.layer, layer.shape) for layer in layers], blocks, model.dtype, device)
    rows = PLAIN_MIN_ROWS if device.type == "cpu" else 1
    runner = ModelRunner(TransformersForward(model), cache, device, chunk_tokens(device), rows)
    if device.type == "cuda":
        runner = paged_runner(runner, layers, model.dtype, deterministic=config.deterministic)
    check_runner(runner, name, reference)
    embedding = model.get_input_embeddings()
    assert isinstance(embedding, nn.Embedding)
    vocabulary = min(reference.logits[0].shape[-1], embedding.num_embeddings)
    info = replace(_info(name, model, vocabulary, min(context, blocks * BLOCK_TOKENS + 1)), kernels=runner.kernels)
    return _Plain(name, model, reference, layers, context, Loaded(runner, blocks, info))


def _packed(plain: _Plain) -> Loaded | None:
    """The model with layers of ours in it; None if it cannot do with them and must be loaded again."""
    runner = plain.loaded.runner
    rows = prepare_linears(plain.model, runner.device)
    even_activations(plain.model, runner.device)
    return _if_equal(plain, _with_products(runner, rows), "runs with its own layers only")


def _compiled(plain: _Plain, config: EngineConfig) -> ModelRunner | None:
    """What runs the model through compiled kernels; None, and nothing taken apart, where they do not compute it."""
    model, old = plain.model, plain.loaded.runner
    if old.device.type != "cpu" or not type(model).__module__.startswith("transformers."):
        return None
    weights = dict(model.named_parameters())
    seen = [(layer.shape, layer.window) for layer in plain.layers]
    shape = compiled_shape(model.config.to_dict(), type(model).__name__, set(weights), seen)
    packed = choose_packed(model.dtype, config.quantize, shape, this_machine(old.device))
    library = kernels()
    if shape is None or packed is None or library is None:
        return None
    rotary = dict(model.named_buffers()).get("model.rotary_emb.inv_freq")
    forward = compiled_model(library, shape, _taken(model), rotary, plain.context, packed)
    layers = [(layer, shape.layer_shape) for layer in forward.layers]
    cache = allocate(plain.name, layers, plain.loaded.blocks, torch.float32, old.device)
    return forward.runner(cache, old.chunk_tokens)


def _as_quantized(loaded: Loaded, config: EngineConfig) -> Loaded:
    return replace(loaded, info=replace(loaded.info, dtype=config.quantize)) if config.quantize else loaded


def _lean_shape(plain: _Plain) -> LeanConfig | None:
    """What the lean pass needs to know about a model; None where it does not compute exactly that."""
    model, kind = plain.model, type(plain.model)
    shape = lean_config(model.config.to_dict())
    if shape is None or kind.__name__ != FAMILIES[shape.family] or not kind.__module__.startswith("transformers."):
        return None
    weights = dict(model.named_parameters())
    asked = [(layer.shape, layer.window) for layer in plain.layers]
    same = asked == [(shape.layer_shape, window) for window in shape.windows]
    one_dtype = {weight.dtype for weight in weights.values()} == {model.dtype}
    return shape if same and one_dtype and shape.accepts(weights) else None


def _lean(plain: _Plain, shape: LeanConfig) -> Loaded | None:
    """The lean pass over the model's weights, which it loses; None if the logits differ."""
    runner = plain.loaded.runner
    products = shape.products[:-1] * len(shape.windows) + shape.products[-1:]
    packed = runner.device.type == "cpu" and packing_pays(products, plain.model.dtype)
    frequencies = plain.model.get_submodule("model.rotary_emb").get_buffer("inv_freq")
    weights = _taken(plain.model)
    fused = lean_model(runner, shape, weights, frequencies, plain.context)
    model = fused or LeanModel(shape, weights, frequencies, plain.context, packed=packed)
    runner.cache.rename(model.layers)
    rows = PACKED_MIN_ROWS if packed else runner.min_rows
    lean = replace(_with_products(runner, rows), forward=model)
    return _if_equal(plain, lean, "runs through transformers' modules")


def _with_products(runner: ModelRunner, rows: int) -> ModelRunner:
    """The runner where products are of so many rows at least."""
    kernels = product_name(rows) if runner.device.type == "cpu" else runner.kernels
    return replace(runner, min_rows=rows, kernels=kernels)


def _taken(model: PreTrainedModel) -> dict[str, Tensor]:
    """Take all weights out of a model, which is of no use afterwards."""
    weights = {}
    for name, parameter in model.named_parameters():
        weights[name], parameter.data = parameter.data, torch.empty(0)
    return weights


def _if_equal(plain: _Plain, runner: ModelRunner, otherwise: str, quantized: str | None = None) -> Loaded | None:
    try:
        check_runner(runner, plain.name, plain.reference, QUANTIZED if quantized else None)
    except ModelLoadError as problem:
        _logger.warning("%s %s: %s", plain.name, otherwise, problem.message)
        return None
    return replace(plain.loaded, runner=runner, info=replace(plain.loaded.info, kernels=runner.kernels))


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


def _info(name: str, model: PreTrainedModel, vocabulary: int, context: int) -> ModelInfo:
    text = model.config.get_text_config()
    generation = model.generation_config
    eos = getattr(generation, "eos_token_id", None)
    eos = getattr(text, "eos_token_id", None) if eos is None else eos
    ids = [eos] if isinstance(eos, int) else list(eos or [])
    bos = getattr(generation, "bos_token_id", None)
    bos = getattr(text, "bos_token_id", None) if bos is None else bos
    return ModelInfo(
        model=shown_name(name),
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
