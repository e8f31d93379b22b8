"""Loads a model through transformers, and picks the fastest forward pass that gives transformers' own logits.

The model that passed the check gets a key-value cache from the memory that it leaves.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from lmtool.core.errors import ModelLoadError, ResourceError
from lmtool.core.types import LoadProgress, ModelInfo
from lmtool.inference.engine.batch_invariant import (
    PACKED_MIN_ROWS,
    PLAIN_MIN_ROWS,
    has_uneven_layers,
    packing_pays,
    prepare_activations,
    prepare_linears,
    product_name,
)
from lmtool.inference.engine.checkpoint import load_model
from lmtool.inference.engine.cpu.forward import CompiledForward
from lmtool.inference.engine.cpu.library import kernels
from lmtool.inference.engine.cuda.attention_backends import AttentionCase, AttentionParams, choose_backend
from lmtool.inference.engine.cuda.products import make_cublas_deterministic
from lmtool.inference.engine.decoder import LlamaForward, matching_config
from lmtool.inference.engine.device import release
from lmtool.inference.engine.fingerprint import contents_digest
from lmtool.inference.engine.gguf.loader import gguf_modules, is_gguf
from lmtool.inference.engine.hardware import kernel_dtype, this_machine
from lmtool.inference.engine.kv_cache import BLOCK_TOKENS, PagedCache, allocate, cache_blocks
from lmtool.inference.engine.model_runner import CHUNK_TOKENS, ModelRunner, RunnableModel
from lmtool.inference.engine.selfcheck import (
    CHECK_BLOCKS,
    QUANTIZED,
    RecordedLayer,
    Reference,
    TransformersForward,
    check_runner,
    fix_frequencies,
    record_layers,
    reference_logits,
    register,
)
from lmtool.inference.engine.weights import display_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lmtool.inference.engine.config import EngineConfig
    from lmtool.inference.engine.cuda.forward import CudaLlamaForward
    from lmtool.inference.engine.decoder import DecoderConfig


_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CheckedModel:
    """A model that passed the check, without a key-value cache for streams."""

    name: str
    runner: ModelRunner
    reference: Reference
    info: ModelInfo
    """Description; its context length is the one that the model was made for."""
    contents: str | None
    token_bytes: int
    """Approximate size of a token's activations in one layer."""


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
    served = replace(info, context_length=context, dtype=config.quantize or info.dtype)
    return RunnableModel(runner, blocks, served, model.contents)


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
"""Bytes for each row and token of the vocabulary: its count in the stream, and a copy of its logit."""


def token_bytes(model: PreTrainedModel) -> int:
    """Bytes of a token's activations in one layer, about: see `CheckedModel.token_bytes`."""
    text = model.config.get_text_config()
    hidden, inner, experts = (
        size if isinstance(size := getattr(text, name, None), int) else usual
        for name, usual in (("hidden_size", 8192), ("intermediate_size", 32768), ("num_experts_per_tok", 1))
    )
    return int(model.dtype.itemsize * (8 * hidden + 3 * inner * experts))


def load_transformers(
    name: str, config: EngineConfig, device: torch.device, report: Callable[[LoadProgress], None]
) -> RunnableModel:
    """The model `name` on `device`, its logits compared with those of transformers' plain forward pass.

    Its key-value cache is allocated last, from what the weights in their final form leave. Raises `ModelLoadError`,
    `ResourceError` or `OutOfMemoryError`.
    """
    register()
    if config.deterministic and device.type == "cuda":
        make_cublas_deterministic()
    return with_cache(_fastest(name, config, device, report), config)


def _fastest(
    name: str, config: EngineConfig, device: torch.device, report: Callable[[LoadProgress], None]
) -> CheckedModel:
    """The model in the fastest form that gives the same logits, with a cache as large as the check needs.

    The first of these that gives the same: the compiled pass; the Llama pass; transformers' modules with linear layers
    and activations of ours; its modules as they are. Quantized weights have the compiled pass on a CPU, the Llama pass
    on a GPU, and no other.
    """
    baseline = _load_baseline(name, config, device, report)
    if runner := _compiled(baseline, config):
        if model := _if_equal(baseline, runner, "runs without compiled kernels", config.quantize):
            return model
        del runner, baseline  # or their memory would be missing for the next one
        baseline = _load_baseline(name, config, device, report)  # its weights were taken apart
    decoder = _llama_config(baseline)
    fp8 = config.quantize == "fp8" and type(baseline.checked.runner) is not ModelRunner
    if config.quantize and (decoder is None or not fp8):
        raise ResourceError(
            f"{name} cannot be served with --quantize {config.quantize} here", _QUANTIZE_NEEDS[device.type]
        )
    if decoder:
        if model := _llama(baseline, decoder, config.quantize):
            return model
        if config.quantize:
            raise ModelLoadError(
                f"{name} cannot be served with --quantize {config.quantize}: its logits are too far from its own",
                "leave --quantize out",
            )
        del baseline
        baseline = _load_baseline(name, config, device, report)  # its weights were taken apart
    if config.deterministic and device.type == "cuda":
        raise ModelLoadError(
            f"{name} cannot be served with --deterministic: its layers' own sums depend on the batch",
            "Llama, Mistral, Qwen2 and Qwen3 models can; or leave --deterministic out",
        )
    if model := _packed(baseline):
        return model
    del baseline
    return _varying(_load_baseline(name, config, device, report).checked)


_QUANTIZE_NEEDS = {
    "cpu": "it needs a C compiler, and a GPT-2, Llama, Mistral, Qwen2 or Qwen3 model; or leave --quantize out",
    "cuda": "it needs Triton, and a Llama, Mistral, Qwen2 or Qwen3 model; or leave --quantize out",
}


@dataclass(frozen=True, slots=True)
class _Baseline:
    """A transformers model with its own layers, that passed the check."""

    name: str
    model: PreTrainedModel
    reference: Reference
    layers: list[RecordedLayer]
    context: int
    """Most tokens of a stream."""
    config: DecoderConfig | None
    """Sizes of a model that our own passes compute; None for any other."""
    checked: CheckedModel


def _load_baseline(
    name: str, config: EngineConfig, device: torch.device, report: Callable[[LoadProgress], None]
) -> _Baseline:
    release()
    model = (gguf_modules if is_gguf(name) else load_model)(name, config, device, report)
    contents = _contents(model)
    reference = reference_logits(model, name)
    fix_frequencies(model)
    context = _context_length(model.config, config)
    layers = record_layers(model, name, context)
    shapes = [(layer.layer, layer.shape) for layer in layers]
    cache = allocate(name, shapes, CHECK_BLOCKS, model.dtype, device)
    rows = PLAIN_MIN_ROWS if device.type == "cpu" else 1
    runner = ModelRunner(TransformersForward(model), cache, device, CHUNK_TOKENS, rows)
    if device.type == "cuda":
        own = config.deterministic or config.kv_cache_dtype != "auto"
        runner = paged_runner(runner, layers, model.dtype, deterministic=config.deterministic, own_kernels=own)
    check_runner(runner, name, reference)
    embedding = model.get_input_embeddings()
    assert isinstance(embedding, nn.Embedding)
    vocabulary = min(reference.logits[0].shape[-1], embedding.num_embeddings)
    info = replace(_info(name, model, vocabulary, context), kernels=runner.kernels)
    return _Baseline(
        name,
        model,
        reference,
        layers,
        context,
        _decoder_config(model, layers),
        CheckedModel(name, runner, reference, info, contents, token_bytes(model)),
    )


def _contents(model: PreTrainedModel) -> str | None:
    """See `RunnableModel.contents`; before the weights are taken apart."""
    if not _known_code(model):
        return None
    return contents_digest(model.config.to_dict(), (*model.named_parameters(), *model.named_buffers()))


def _known_code(model: PreTrainedModel) -> bool:
    """True if it is computed by transformers' own code, and not by some that came with it."""
    return type(model).__module__.startswith("transformers.")


def _decoder_config(model: PreTrainedModel, layers: list[RecordedLayer]) -> DecoderConfig | None:
    if not _known_code(model):
        return None
    names = [name for name, _ in model.named_parameters()]
    stored = [(layer.shape, layer.window) for layer in layers]
    return matching_config(model.config.to_dict(), type(model).__name__, names, stored)


def paged_runner(
    runner: ModelRunner,
    layers: Iterable[RecordedLayer],
    dtype: torch.dtype,
    *,
    deterministic: bool,
    own_kernels: bool = False,
) -> ModelRunner:
    """A `CudaRunner` in place of `runner`, whose cache must be a `PagedCache`; `runner` where no kernel works here.

    own_kernels: no library's attention, also where that works.

    Raises `ModelLoadError` for `deterministic` where no kernel works.
    """
    cases = dict.fromkeys(_attention_case(layer) for layer in layers)
    backend = choose_backend(list(cases), dtype, runner.device, deterministic=deterministic or own_kernels)
    if backend is None:
        if deterministic:
            raise ModelLoadError("--deterministic needs Triton, which does not work here", "leave --deterministic out")
        return runner
    from lmtool.inference.engine.cuda.runner import CudaRunner

    return CudaRunner(
        runner.forward,
        runner.cache,
        runner.device,
        runner.chunk_tokens,
        runner.min_rows,
        backend,
        deterministic,
        kernels=backend.decode_name,
    )


def _attention_case(layer: RecordedLayer) -> AttentionCase:
    params = AttentionParams(layer.scaling, layer.window, layer.softcap)
    return AttentionCase(layer.heads, layer.shape.kv_heads, layer.shape.key_dim, layer.shape.value_dim, params)


def _packed(baseline: _Baseline) -> CheckedModel | None:
    """The model with layers of ours in it; None if it cannot do with them and must be loaded again."""
    runner = baseline.checked.runner
    rows = prepare_linears(baseline.model, runner.device)
    prepare_activations(baseline.model, runner.device)
    model = _if_equal(baseline, _with_products(runner, rows), "runs with its own layers only")
    return _varying(model) if model and has_uneven_layers(baseline.model, rows) else model


def _varying(model: CheckedModel) -> CheckedModel:
    """The model, described as one whose rows depend on the batch."""
    return replace(model, info=replace(model.info, batch_invariant=False))


def _compiled(baseline: _Baseline, config: EngineConfig) -> ModelRunner | None:
    """A runner of the compiled pass; None, and nothing taken apart, where the C kernels do not compute the model."""
    model, old, decoder = baseline.model, baseline.checked.runner, baseline.config
    if old.device.type != "cpu":
        return None
    dtype = kernel_dtype(model.dtype, config.quantize, decoder, this_machine(old.device))
    library = kernels()
    if decoder is None or dtype is None or library is None:
        return None
    rotary = dict(model.named_buffers()).get("model.rotary_emb.inv_freq")
    forward = CompiledForward(library, decoder, _take_weights(model), rotary, baseline.context, dtype)
    layers = [(layer, decoder.layer_shape) for layer in forward.layers]
    cache = allocate(baseline.name, layers, CHECK_BLOCKS, forward.cache_dtype, old.device)
    return forward.runner(cache, old.chunk_tokens)


def _llama_config(baseline: _Baseline) -> DecoderConfig | None:
    """The config for the Llama pass; None where it does not compute exactly this model."""
    config, model = baseline.config, baseline.model
    one_dtype = {weight.dtype for weight in model.parameters()} == {model.dtype}
    return config if config is not None and not config.is_gpt2 and one_dtype else None


def _llama(baseline: _Baseline, config: DecoderConfig, quantize: str | None) -> CheckedModel | None:
    """The Llama pass over the model's weights, which it loses; None if the logits differ. quantize: None or `fp8`."""
    runner = baseline.checked.runner
    products = config.products[:-1] * len(config.windows) + config.products[-1:]
    packed = runner.device.type == "cpu" and packing_pays(products, baseline.model.dtype)
    frequencies = baseline.model.get_submodule("model.rotary_emb").get_buffer("inv_freq")
    weights = _take_weights(baseline.model)
    fused = fused_llama(runner, config, weights, frequencies, baseline.context, fp8=quantize == "fp8")
    forward = fused or LlamaForward(config, weights, frequencies, baseline.context, packed=packed)
    runner.cache.rename(forward.layers)
    rows = PACKED_MIN_ROWS if packed else runner.min_rows
    otherwise = "cannot be quantized" if quantize else "runs through transformers' modules"
    return _if_equal(baseline, replace(_with_products(runner, rows), forward=forward), otherwise, quantize)


def fused_llama(
    runner: ModelRunner,
    config: DecoderConfig,
    weights: dict[str, Tensor],
    frequencies: Tensor,
    context: int,
    *,
    fp8: bool = False,
) -> CudaLlamaForward | None:
    """The Llama pass of fused GPU kernels over the weights; None, and nothing taken, without a `CudaRunner`."""
    if type(runner) is ModelRunner:
        return None
    from lmtool.inference.engine.cuda.forward import CudaLlamaForward
    from lmtool.inference.engine.cuda.runner import CudaRunner

    assert isinstance(runner, CudaRunner)
    return CudaLlamaForward(config, weights, frequencies, context, deterministic=runner.deterministic, fp8=fp8)


def _with_products(runner: ModelRunner, rows: int) -> ModelRunner:
    """The runner with products of at least `rows` rows."""
    kernels = product_name(rows) if runner.device.type == "cpu" else runner.kernels
    return replace(runner, min_rows=rows, kernels=kernels)


def _take_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """Take all weights out of a model, which is unusable afterwards."""
    weights = {}
    for name, parameter in model.named_parameters():
        weights[name], parameter.data = parameter.data, torch.empty(0)
    return weights


def _if_equal(
    baseline: _Baseline, runner: ModelRunner, otherwise: str, quantized: str | None = None
) -> CheckedModel | None:
    try:
        check_runner(runner, baseline.name, baseline.reference, QUANTIZED[quantized] if quantized else None)
    except ModelLoadError as problem:
        _logger.warning("%s %s: %s", baseline.name, otherwise, problem.message)
        return None
    model = baseline.checked
    return replace(model, runner=runner, info=replace(model.info, kernels=runner.kernels))


def _context_length(model_config: PreTrainedConfig, config: EngineConfig) -> int:
    """Most tokens of prompt and output together that the model is right for."""
    text = model_config.get_text_config()
    lengths = [getattr(text, "max_position_embeddings", None), config.max_context, *_fixed_rope_lengths(text)]
    known = [length for length in lengths if isinstance(length, int) and length > 0]
    return min(known) if known else 4096


def _fixed_rope_lengths(text: PreTrainedConfig) -> list[int]:
    """Lengths up to which rotary frequencies do not depend on the longest stream of a batch, where they do beyond.

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
        model=display_name(name),
        constructor=f"lmtool.load({name!r})" if is_gguf(name) else f"AutoModelForCausalLM.from_pretrained({name!r})",
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
