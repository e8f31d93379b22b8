"""A GGUF file's weights by transformers' names, converted one by one when they are taken."""

from __future__ import annotations

import importlib.util
import math
import mmap
from collections.abc import Callable, Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lmtool.core.errors import ModelLoadError, ResourceError
from lmtool.inference.engine.cpu.products import BLOCK_TYPES, to_int8_blocks
from lmtool.inference.engine.gguf.config import refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.inference.engine.gguf.config import GgufModel
    from lmtool.inference.engine.gguf.header import GgufFile, TensorEntry

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
"""What a layer multiplies the same inputs with."""
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
        """Of all rows."""
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
        """How each weight is stored."""
        return {name: stored.kind for name, stored in self._stored.items()}

    @property
    def numbers(self) -> int:
        """Of all weights together."""
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
        raise refusal(file, f"it has tensors that its architecture does not: {_few(unknown)}")
    found = {names[own]: _checked(file, own, entry) for own, entry in file.tensors.items() if own not in _IGNORED}
    missing = sorted(own for own, name in names.items() if name not in found and not own.endswith(".bias"))
    if missing:
        raise ModelLoadError(f"{file.path} lacks tensors: {_few(missing)}", "download the file again, or copy it whole")
    for name, stored in found.items():
        part, _, kind = name.rpartition(".")
        expected = shapes[part.split(".", 3)[-1] if part.startswith("model.layers.") else part]
        if stored.shape != (expected if kind == "weight" else expected[:1]):
            raise file.fault(f"its {name} is {list(stored.shape)}, and its metadata says {list(expected)}")
    if not model.decoder.accepts(found):
        raise refusal(file, "it has biases where its architecture has none")
    return found


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
    """Rows in transformers' order: of a head, llama.cpp has those beside each other that rotate together."""
    return rows.view(heads, len(rows) // heads // 2, 2, -1).transpose(1, 2).reshape(rows.shape)


def _few(names: list[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
