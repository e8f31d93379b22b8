"""Loads a GGUF file: its weights straight into the C kernels' layout, or, without these, into transformers' modules."""

from __future__ import annotations

from collections import Counter
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from lmtool.core.types import LoadProgress, ModelInfo
from lmtool.inference.engine.cpu.forward import compiled_runner
from lmtool.inference.engine.cpu.library import kernels
from lmtool.inference.engine.cpu.products import BLOCK_TYPES, INT4_DTYPE
from lmtool.inference.engine.fingerprint import contents_digest
from lmtool.inference.engine.gguf.header import read_header
from lmtool.inference.engine.gguf.model import PLAIN, GgufWeights, gguf_package, model_of
from lmtool.inference.engine.hardware import choose_dtype, kernel_dtype, this_machine
from lmtool.inference.engine.kv_cache import BLOCK_TOKENS
from lmtool.inference.engine.model_runner import RunnableModel
from lmtool.inference.engine.weights import GGUF, display_name, load_errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel

    from lmtool.inference.engine.config import EngineConfig
    from lmtool.inference.engine.gguf.model import GgufModel

_FORMATS = {"Q4_0": "int4", "Q8_0": "int8"}
"""Types of blocks to our names of the same formats."""


def is_gguf(name: str) -> bool:
    """Whether a model's name is that of a GGUF file."""
    return name.endswith(GGUF)


def load_gguf(
    name: str, config: EngineConfig, device: torch.device, report: Callable[[LoadProgress], None]
) -> RunnableModel | None:
    """The model of a file through the C kernels; None where these do not compute it, see `gguf_modules`.

    That its logits are right is not checked at each load, as for other models, but by tests against llama.cpp and
    transformers: the file has weights for one of them at a time only. Raises `ModelLoadError`, `ResourceError` or
    `OutOfMemoryError`.
    """
    with load_errors(name, config):
        model, weights = open_gguf(name, report)
        machine, library = this_machine(device), kernels()
        dtype = choose_gguf_dtype(config.dtype, weights, device)
        stored = kernel_dtype(dtype, config.quantize, model.decoder, machine)
        if stored is None or library is None:
            return None
        weights.dtype = torch.float32 if config.quantize else dtype
        weights.blocks = choose_blocks(weights, config)
        held = held_formats(weights, stored)
        contents = contents_digest(model.raw, ((part, weights.raw(part)) for part in weights))
        parameters = weights.numbers
        context = min(model.raw["max_position_embeddings"], config.max_context or (1 << 31))
        runner, blocks = compiled_runner(
            name, library, model.decoder, weights, model.frequencies, context, stored, config
        )
    info = ModelInfo(
        model=display_name(name),
        constructor=f"lmtool.load({name!r})",
        backend="lmtool",
        vocab_size=model.decoder.vocabulary,
        context_length=min(context, blocks * BLOCK_TOKENS + 1),
        eos_token_ids=model.eos_token_ids,
        bos_token_id=model.bos_token_id,
        architecture=model.decoder.architecture,
        parameters=parameters,
        dtype=held,
        device=str(device),
        kernels=runner.kernels,
        versions={"torch": str(torch.__version__), "gguf": version("gguf")},
    )
    return RunnableModel(runner, blocks, info, contents)


def open_gguf(name: str, report: Callable[[LoadProgress], None]) -> tuple[GgufModel, GgufWeights]:
    """A file's model and its weights, of which none is converted yet; `report` is called as they are."""
    gguf_package()
    file = read_header(Path(name))
    model, total, done = model_of(file), len(file.data), 0

    def count(size: int) -> None:
        nonlocal done
        done += size
        report(LoadProgress(name, "loading", done, total, f"reading {name}"))

    report(LoadProgress(name, "loading", 0, total, f"reading {name}"))
    return model, GgufWeights(file, model, count)


def choose_gguf_dtype(setting: str, weights: GgufWeights, device: torch.device) -> torch.dtype:
    """The dtype of what is converted. `auto`: as for other checkpoints, quantized ones counting as bfloat16."""
    matrices = {kind for product in weights.products() for kind in (weights.kinds[part] for part in product)}
    stored = torch.float32 if matrices == {"F32"} else torch.bfloat16
    return choose_dtype(setting, stored, 4 * weights.numbers, this_machine(device))


def choose_blocks(weights: GgufWeights, config: EngineConfig) -> dict[str, str]:
    """The weights that are held as blocks, and their type; none where a dtype was asked for.

    Those of `BLOCK_TYPES` stay as they are, which loses nothing. Other quantized types become blocks of Q8_0: as many
    bits or more, a rounding that is finer than that of products' inputs. So do gates and what they let through where
    their types differ: they are multiplied together. `--quantize` leaves Q4_0 alone, and packs or converts the rest.
    """
    if config.dtype != "auto" and not config.quantize:
        return {}
    kept = {"Q4_0", "Q8_0"} if config.quantize else BLOCK_TYPES.keys()
    chosen = dict[str, str]()
    for product in weights.products():
        kinds = {part: weights.kinds[part] for part in product}
        if PLAIN.keys() & kinds.values():
            continue
        mixed = len(set(kinds.values())) > 1 and "gate" in product[0]
        blocks = {part: kind if kind in kept and not mixed else "Q8_0" for part, kind in kinds.items()}
        if config.quantize != "int4" or set(blocks.values()) == {"Q4_0"}:
            chosen |= blocks
    return chosen


def held_formats(weights: GgufWeights, stored: torch.dtype) -> str:
    """The formats of all weights, the one with the most numbers first, for `ModelInfo.dtype`."""
    counts = Counter[str]()
    for part in chain.from_iterable(weights.products()):
        top = "layers" not in part  # of int4 these are int8
        own = str(torch.int8 if stored == INT4_DTYPE and top else stored).removeprefix("torch.")
        kind = weights.blocks.get(part, own)
        counts[_FORMATS.get(kind, kind)] += weights.size(part)
    return "+".join(name for name, _ in counts.most_common())


def gguf_modules(
    name: str, config: EngineConfig, device: torch.device, report: Callable[[LoadProgress], None]
) -> PreTrainedModel:
    """The model of a file as transformers' modules on `device`, all weights in one dtype, as `weights.load_model` does.

    Raises `ModelLoadError`, `ResourceError` or `OutOfMemoryError`.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    with load_errors(name, config):
        described, weights = open_gguf(name, report)
        weights.dtype = choose_gguf_dtype(config.dtype, weights, device)
        raw = dict(described.raw)
        settings = AutoConfig.for_model(raw.pop("model_type"), **raw, dtype=weights.dtype)
        settings._attn_implementation = "eager"  # noqa: SLF001  # as `from_pretrained` sets it
        with torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(settings, dtype=weights.dtype)
        converted = {part: weights.pop(part).to(weights.dtype).to(device) for part in list(weights)}
        model.load_state_dict(converted, strict=False, assign=True)
        del converted
        model.tie_weights()
        _set_frequencies(model, described)
        torch.nn.Module.to(model, device)
        model.train(mode=False)
        for parameter in model.parameters():
            parameter.requires_grad = False
        ends = list(described.eos_token_ids) or None
        model.generation_config = GenerationConfig(eos_token_id=ends, bos_token_id=described.bos_token_id)
        return model


def _set_frequencies(model: PreTrainedModel, described: GgufModel) -> None:
    """The rotary frequencies of the file, which none of transformers' settings need give."""
    rotary = model.get_submodule("model.rotary_emb")
    for buffer in ("inv_freq", "original_inv_freq"):
        if hasattr(rotary, buffer):
            setattr(rotary, buffer, described.frequencies.clone())
