"""Loads a GGUF file: its weights straight into the C kernels' layout, or, without these, into transformers' modules.

The file's metadata becomes the configuration that transformers' config.json would have; weights get transformers' names
and are converted one by one when they are taken.
"""

from __future__ import annotations

import importlib.util
import math
import mmap
from collections import Counter
from collections.abc import Callable, Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lmtool.core.errors import ModelLoadError, ResourceError
from lmtool.core.types import LoadProgress, ModelInfo
from lmtool.inference.engine.cpu.forward import compiled_runner
from lmtool.inference.engine.cpu.library import kernels
from lmtool.inference.engine.cpu.products import BLOCK_TYPES, INT4_DTYPE, to_int8_blocks
from lmtool.inference.engine.decoder import decoder_config, default_frequencies
from lmtool.inference.engine.fingerprint import contents_digest
from lmtool.inference.engine.gguf.header import read_header
from lmtool.inference.engine.hardware import choose_dtype, kernel_dtype, this_machine
from lmtool.inference.engine.kv_cache import BLOCK_TOKENS
from lmtool.inference.engine.model_folder import few
from lmtool.inference.engine.model_runner import RunnableModel
from lmtool.inference.engine.weights import GGUF, display_name, load_errors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transformers import PreTrainedModel

    from lmtool.inference.engine.config import EngineConfig
    from lmtool.inference.engine.decoder import DecoderConfig
    from lmtool.inference.engine.gguf.header import GgufFile, TensorEntry


ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""Supported values of `general.architecture`; Mistral's files say `llama`."""
OTHER_BACKEND = "llama.cpp may run it:  --backend llamacpp"

_ENDS = (
    *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>"),
    *("<EOT>", "_<EOT>", "<\uff5cend▁of▁sentence\uff5c>", "<end_of_utterance>"),
)
"""Control tokens that end an answer whatever else the metadata names, as llama.cpp has them."""
_CONTROL = 3
"""`tokenizer.ggml.token_type` of special tokens."""
_MOST = 1 << 24
"""Upper limit for any size of a model."""


@dataclass(frozen=True, slots=True)
class GgufModel:
    """A model that our engine runs, as a file describes it."""

    raw: dict[str, Any]
    """The config.json that transformers would have."""
    decoder: DecoderConfig
    frequencies: Tensor
    """[head_dim / 2] float32, radians a position."""
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None

    @property
    def permuted(self) -> bool:
        """True if the rows of queries' and keys' weights stand in pairs, as llama.cpp rotates them."""
        return self.raw["model_type"] in ("llama", "mistral")


def model_of(file: GgufFile) -> GgufModel:
    """The model of a file. Raises `ModelLoadError` for one that our engine does not run, with the reason."""
    _check_kind(file)
    raw = _config(file)
    decoder = decoder_config(raw)
    assert decoder is not None, "our passes compute what `_config` lets through"
    eos = tuple(token for token in _ends(file) if 0 <= token < decoder.vocabulary)
    bos = file.whole("tokenizer.ggml.bos_token_id")
    known_bos = bos if bos is not None and 0 <= bos < decoder.vocabulary else None
    return GgufModel(raw, decoder, _frequencies(file, raw), eos, known_bos)


def refusal(file: GgufFile, reason: str) -> ModelLoadError:
    """The error for a sound file whose model our engine does not run."""
    return ModelLoadError(f"{file.path} cannot be served by our own engine: {reason}", OTHER_BACKEND)


def _check_kind(file: GgufFile) -> None:
    """Refuse what is no model of the families that we run."""
    name = file.architecture
    if name not in ARCHITECTURES:
        raise refusal(
            file, f"its architecture is {name!r}; those of GGUF files that run are {', '.join(ARCHITECTURES)}"
        )
    if (file.whole("split.count") or 1) > 1:
        raise refusal(file, "it is one of several parts; llama-gguf-split --merge makes one file of them")
    if file.whole(f"{name}.expert_count"):
        raise refusal(file, "it is a mixture of experts")
    scaling = file.text(f"{name}.rope.scaling.type")
    if scaling not in {"", "none", "linear"}:
        raise refusal(file, f"its positions are scaled in the way {scaling!r}")
    for key in ("rope.scaling.attn_factor", "logit_scale", "residual_scale", "embedding_scale", "attention.scale"):
        if file.number(f"{name}.{key}") not in {None, 0.0, 1.0}:
            raise refusal(file, f"it has a {key} of {file.number(f'{name}.{key}')}")


def _config(file: GgufFile) -> dict[str, Any]:
    name = file.architecture
    hidden, heads = _size(file, "embedding_length"), _size(file, "attention.head_count")
    head_dim = _size(file, "attention.key_length", hidden // heads)
    widths = {
        "attention.value_length": _size(file, "attention.value_length", head_dim),
        "rope.dimension_count": _size(file, "rope.dimension_count", head_dim),
    }
    for key, width in widths.items():
        if width != head_dim:
            raise refusal(file, f"its {key} is {width}, and its heads have {head_dim} numbers")
    kv_heads = _size(file, "attention.head_count_kv", heads)
    if heads % kv_heads or head_dim % 2:
        raise file.fault(f"it has {heads} heads of {head_dim} numbers, and {kv_heads} of keys and values")
    window = _size(file, "attention.sliding_window", 0, fewest=0) if name == "llama" else 0
    eps = file.number(f"{name}.attention.layer_norm_rms_epsilon")
    if eps is None or not 0 <= eps < 1:
        raise file.fault(f"its {name}.attention.layer_norm_rms_epsilon is {eps}")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or embedding.shape[1:] != (hidden,) or not 0 < embedding.shape[0] <= _MOST:
        shape = None if embedding is None else list(embedding.shape)
        raise file.fault(f"its token_embd.weight is {shape}; expected [vocabulary, {hidden}]")
    return {
        "model_type": "mistral" if window else name,
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "intermediate_size": _size(file, "feed_forward_length"),
        "num_hidden_layers": _size(file, "block_count", most=1 << 12),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": _size(file, "context_length", most=1 << 31),
        "rms_norm_eps": eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": _base(file)},
        "sliding_window": window or None,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
    }


def _size(file: GgufFile, key: str, default: int | None = None, *, fewest: int = 1, most: int = _MOST) -> int:
    value = file.whole(f"{file.architecture}.{key}")
    size = default if value is None else value
    if size is None or not fewest <= size <= most:
        raise file.fault(f"its {file.architecture}.{key} is {value}; expected a number from {fewest} to {most}")
    return size


def _base(file: GgufFile) -> float:
    """The base of the rotary frequencies (theta)."""
    base = file.number(f"{file.architecture}.rope.freq_base")
    base = 10_000.0 if base is None else base
    if not 1 <= base < 1e12:
        raise file.fault(f"its {file.architecture}.rope.freq_base is {base}")
    return base


def _frequencies(file: GgufFile, raw: dict[str, Any]) -> Tensor:
    """Divided by the linear scale, and by a factor for each where the file has them (Llama 3's scaling)."""
    frequencies = default_frequencies(raw["head_dim"], raw["rope_parameters"]["rope_theta"])
    name = file.architecture
    if file.text(f"{name}.rope.scaling.type") != "none":  # linear where it is not named, as llama.cpp has it
        factor = file.number(f"{name}.rope.scaling.factor") or file.number(f"{name}.rope.scale_linear") or 1.0
        if not 0 < factor < 1e6:
            raise file.fault(f"its {name}.rope.scaling.factor is {factor}")
        frequencies /= factor
    entry = file.tensors.get("rope_freqs.weight")
    if entry is None:
        return frequencies
    end = entry.start + 4 * len(frequencies)
    if entry.kind != 0 or entry.shape != (len(frequencies),) or end > len(file.data):
        raise file.fault(f"its rope_freqs.weight is {list(entry.shape)}; expected [{len(frequencies)}] in float32")
    factors = torch.frombuffer(bytearray(file.data[entry.start : end]), dtype=torch.float32)
    if not bool((factors > 0).all()):
        raise file.fault("its rope_freqs.weight has numbers that are not above 0")
    return frequencies / factors


def _ends(file: GgufFile) -> list[int]:
    """Ids that end an answer, the main one first."""
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    named = [file.whole(f"tokenizer.ggml.{key}") for key in keys]
    tokens, kinds = (file.metadata.get(f"tokenizer.ggml.{key}") for key in ("tokens", "token_type"))
    known: list[int] = []
    if isinstance(tokens, list) and isinstance(kinds, list):
        pairs = enumerate(zip(tokens, kinds, strict=False))
        known = [number for number, (token, kind) in pairs if kind == _CONTROL and token in _ENDS]
    return list(dict.fromkeys([token for token in named if token is not None] + known))


INSTALL = "pip install 'lmtool[serve,gguf]'"

_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""Names in transformers to names in GGUF."""
_IGNORED = {"rope_freqs.weight"}
"""It is part of the configuration."""
_FUSED = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.o_proj",),
    ("mlp.gate_proj", "mlp.up_proj"),
    ("mlp.down_proj",),
)
"""Weights of a layer that multiply the same inputs."""
PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_QUANTIZED = {*("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS")}
"""Types whose numbers the package gguf computes."""
_PIECE = 1 << 22
"""Weights that one thread converts at a time."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of the file whose size was checked."""

    kind: str
    """Such as `Q4_K`."""
    shape: tuple[int, ...]
    row_bytes: int
    start: int

    @property
    def bytes(self) -> int:
        """Size of all rows, in bytes."""
        return self.row_bytes * math.prod(self.shape[:-1])


class GgufWeights(MutableMapping[str, Tensor]):
    """Name to weight as transformers has it, converted at each look; what is taken out leaves memory.

    A weight is [out, in] in `dtype`, or [out, groups, bytes] uint8: blocks that the kernels multiply, see
    `products.pack`, of the file's own or made of its numbers.
    """

    def __init__(self, file: GgufFile, model: GgufModel, on_bytes: Callable[[int], None]) -> None:
        """on_bytes: called with the bytes of the file that were converted since the last call.

        Raises `ModelLoadError` for a tensor that is missing, left over, of another shape or type, or not in the file;
        `ResourceError` without the package gguf.
        """
        self.dtype = torch.float32
        self.blocks: Mapping[str, str] = {}
        """Weights that are handed out as blocks, with their type."""
        self._file, self._model, self._on_bytes = file, model, on_bytes
        self._stored = stored_tensors(file, model)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)

    def __getitem__(self, name: str) -> Tensor:
        stored = self._stored[name]
        raw = self.raw(name).view(stored.shape[0], -1)
        if heads := self._heads(name):
            raw = _unpermuted(raw, heads)
        if self.blocks.get(name) == stored.kind:
            return raw.view(stored.shape[0], -1, BLOCK_TYPES[stored.kind].bytes).clone()
        if name in self.blocks:
            return to_int8_blocks(converted(raw, stored, torch.float32))
        return converted(raw, stored, torch.float32 if len(stored.shape) == 1 else self.dtype)

    def __setitem__(self, name: str, _: Tensor) -> None:
        raise TypeError(f"{name}: a file's weights cannot be replaced")

    def __delitem__(self, name: str) -> None:
        stored = self._stored.pop(name)
        first = stored.start // mmap.PAGESIZE * mmap.PAGESIZE
        self._file.data.madvise(mmap.MADV_DONTNEED, first, stored.start + stored.bytes - first)  # read again if needed
        self._on_bytes(stored.bytes)

    def raw(self, name: str) -> Tensor:
        """A weight's bytes as they are in the file: [n] uint8, not copied."""
        stored = self._stored[name]
        return torch.frombuffer(self._file.data, dtype=torch.uint8, count=stored.bytes, offset=stored.start)

    @property
    def kinds(self) -> dict[str, str]:
        """Storage type of each weight."""
        return {name: stored.kind for name, stored in self._stored.items()}

    @property
    def numbers(self) -> int:
        """Total number of weights."""
        return sum(map(self.size, self._stored))

    def size(self, name: str) -> int:
        """Numbers of a weight."""
        return math.prod(self._stored[name].shape)

    def products(self) -> Iterator[tuple[str, ...]]:
        """The weights with the same inputs: those of each layer, the head, the embedding."""
        for layer in range(len(self._model.decoder.windows)):
            for parts in _FUSED:
                yield tuple(f"model.layers.{layer}.{part}.weight" for part in parts)
        yield ("model.embed_tokens.weight",)
        if not self._model.decoder.tied:
            yield ("lm_head.weight",)

    def _heads(self, name: str) -> int:
        """Heads whose rows must be put in order; 0: none."""
        decoder, part = self._model.decoder, name.rpartition(".")[0]
        if not self._model.permuted:
            return 0
        return decoder.heads * part.endswith("q_proj") + decoder.kv_heads * part.endswith("k_proj")


def stored_tensors(file: GgufFile, model: GgufModel) -> dict[str, StoredTensor]:
    """The file's tensors by transformers' names, each with the shape that the configuration gives it.

    Raises as `GgufWeights` does.
    """
    shapes = _shapes(model)
    names = _names(model)
    unknown = sorted(set(file.tensors) - names.keys() - _IGNORED)
    if unknown:
        raise refusal(file, f"it has tensors that its architecture does not: {few(unknown)}")
    tensors = {names[own]: _checked(file, own, entry) for own, entry in file.tensors.items() if own not in _IGNORED}
    missing = sorted(own for own, name in names.items() if name not in tensors and not own.endswith(".bias"))
    if missing:
        raise ModelLoadError(f"{file.path} lacks tensors: {few(missing)}", "download the file again, or copy it whole")
    for name, stored in tensors.items():
        part, _, kind = name.rpartition(".")
        expected = shapes[part.split(".", 3)[-1] if part.startswith("model.layers.") else part]
        if stored.shape != (expected if kind == "weight" else expected[:1]):
            raise file.fault(f"its {name} is {list(stored.shape)}, and its metadata says {list(expected)}")
    if not model.decoder.accepts(tensors):
        raise refusal(file, "it has biases where its architecture has none")
    return tensors


def _names(model: GgufModel) -> dict[str, str]:
    """All names in GGUF that the model may have, to transformers' own."""
    parts = {own: part for part, own in _TOP.items() if part != "lm_head" or not model.decoder.tied}
    norms = set() if model.decoder.head_norms else {"self_attn.q_norm", "self_attn.k_norm"}
    for layer in range(len(model.decoder.windows)):
        named = ((part, own) for part, own in _LAYER.items() if part not in norms)
        parts |= {f"blk.{layer}.{own}": f"model.layers.{layer}.{part}" for part, own in named}
    return {f"{own}.{kind}": f"{part}.{kind}" for own, part in parts.items() for kind in ("weight", "bias")}


def _shapes(model: GgufModel) -> Mapping[str, tuple[int, ...]]:
    """Shapes of weights, by the last part of their names."""
    decoder = model.decoder
    hidden, inner, attention = decoder.hidden, decoder.intermediate, decoder.heads * decoder.head_dim
    head, keys = (decoder.vocabulary, hidden), (decoder.kv_heads * decoder.head_dim, hidden)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": head, "lm_head": head, "model.norm": (hidden,)}
    shapes |= {f"{part}_layernorm": (hidden,) for part in ("input", "post_attention")}
    shapes |= {f"self_attn.{part}_norm": (decoder.head_dim,) for part in "qk"}
    shapes |= {"self_attn.q_proj": (attention, hidden), "self_attn.o_proj": (hidden, attention)}
    shapes |= {"self_attn.k_proj": keys, "self_attn.v_proj": keys, "mlp.down_proj": (hidden, inner)}
    return shapes | {"mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden)}


def _checked(file: GgufFile, name: str, entry: TensorEntry) -> StoredTensor:
    gguf = gguf_package()
    try:
        kind = gguf.GGMLQuantizationType(entry.kind)
        numbers, size = gguf.GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError):
        raise refusal(file, f"its tensor {name} is of type {entry.kind}, which gguf does not know") from None
    if kind.name not in PLAIN.keys() | _QUANTIZED:
        raise refusal(file, f"its tensor {name} is of type {kind.name}, which is not converted here")
    if len(entry.shape) == 1 and kind.name not in PLAIN:
        raise file.fault(f"its tensor {name} is of type {kind.name}, and has no rows")
    if entry.shape[-1] % numbers:
        raise file.fault(f"its tensor {name} has rows of {entry.shape[-1]} numbers, no multiple of {numbers}")
    stored = StoredTensor(kind.name, entry.shape, entry.shape[-1] // numbers * size, entry.start)
    if 0 in entry.shape or stored.start + stored.bytes > len(file.data):
        end = stored.start + stored.bytes
        raise file.fault(f"its tensor {name} {list(entry.shape)} would end at byte {end}, and it has {len(file.data)}")
    return stored


def gguf_package() -> Any:  # noqa: ANN401  # a module without types
    """The package gguf. Raises `ResourceError` with the install line without it."""
    if importlib.util.find_spec("gguf") is None:
        raise ResourceError("GGUF files need the package gguf", f"install it:  {INSTALL}")
    import gguf

    return gguf


def converted(raw: Tensor, stored: StoredTensor, dtype: torch.dtype) -> Tensor:
    """The numbers in `dtype`, a few rows at a time: hardly any are in memory twice.

    raw: [rows, row bytes] uint8, or [numbers, bytes of one].
    """
    if stored.kind in PLAIN:
        return raw.contiguous().view(PLAIN[stored.kind]).to(dtype, copy=True).view(stored.shape)
    gguf = gguf_package()
    kind = gguf.GGMLQuantizationType[stored.kind]
    out = torch.empty(stored.shape, dtype=dtype)
    rows = max(1, _PIECE // stored.shape[-1])

    def convert(first: int) -> None:
        with torch.inference_mode():  # of this thread
            numbers = gguf.quants.dequantize(raw[first : first + rows].numpy(), kind)
            out[first : first + rows] = torch.from_numpy(numbers)

    with ThreadPoolExecutor(torch.get_num_threads(), thread_name_prefix="lmtool-gguf") as pool:
        list(pool.map(convert, range(0, len(out), rows)))
    return out


def _unpermuted(rows: Tensor, heads: int) -> Tensor:
    """Rows in transformers' order: llama.cpp puts those of a head that rotate together side by side."""
    return rows.view(heads, len(rows) // heads // 2, 2, -1).transpose(1, 2).reshape(rows.shape)


_FORMATS = {"Q4_0": "int4", "Q8_0": "int8"}
"""Types of blocks to our names of the same formats."""


def is_gguf(name: str) -> bool:
    """True if a model's name is that of a GGUF file."""
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
    """The model of a file as transformers' modules on `device`, all weights in one dtype, like `checkpoint.load_model`.

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
