"""The forward pass of a decoder through the C kernels, one call a step, and a runner of it with its own cache.

Letters: T tokens of the batch, H query heads, KV key heads, D head size, I inner size of the MLP, V vocabulary.
"""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from lmtool.inference.engine.cpu.library import STORE, CGroup, CLayer, CModel, CProduct, CStep, address
from lmtool.inference.engine.cpu.products import (
    INT4_DTYPE,
    PackedProduct,
    WeightMemory,
    interleaved,
    is_blocks,
    pack,
)
from lmtool.inference.engine.decoder import fuse, take_weights
from lmtool.inference.engine.kv_cache import allocate, cache_blocks
from lmtool.inference.engine.model_runner import CHUNK_TOKENS, ModelRunner

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lmtool.inference.engine.config import EngineConfig
    from lmtool.inference.engine.cpu.library import Kernels
    from lmtool.inference.engine.decoder import Affine, DecoderConfig, LayerWeights, Weights
    from lmtool.inference.engine.kv_cache import KVCache
    from lmtool.inference.engine.model_runner import Batch, BlockAttention


_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, eq=False)
class CompiledLayer:
    """One decoder layer; keeps its memory alive."""

    qkv: tuple[PackedProduct, ...]
    """Queries, keys and values, side by side: a product for each format of their weights."""
    output: PackedProduct
    up: PackedProduct
    """With its gates."""
    down: PackedProduct
    norms: tuple[Tensor | None, ...]
    """Norm and its bias, head norm, MLP norm and its bias; float32."""
    window: int | None


class CompiledForward:
    """A `Forward` in float32, weights stored as `dtype`, which inputs of products may be rounded to.

    Keys and values are stored in float16 beside weights of less than 32 bits, those beyond its range as its largest
    number, 65504.

    A row's bits are the same in any batch, alone as well, and however its stream is cut into steps. No other pass can
    read its cache: keys are transposed within their blocks, [D, BLOCK_TOKENS] each.
    """

    def __init__(
        self,
        kernels: Kernels,
        config: DecoderConfig,
        weights: Weights,
        frequencies: Tensor | None,
        context: int,
        dtype: torch.dtype,
    ) -> None:
        """Take the weights out of `weights`, layer by layer.

        frequencies: [D / 2] float32, radians a position; None where positions have embeddings. context: positions of
        the longest stream. dtype: float32, bfloat16, int8, or int4, see `hardware.kernel_dtype`; the head of
        int4 is int8, because its rounding is the logits' own. Weights of blocks stay as they are, see `products.pack`.
        """
        if isinstance(weights, dict):
            tracked = _TrackedWeights(weights)
            decoder = take_weights(config, tracked)
            layers = _page_out_behind(kernels, decoder.layers, tracked)
        else:  # whoever converts them knows what is in memory
            decoder = take_weights(config, weights)
            layers = decoder.layers
        self._kernels = kernels
        self._config = config
        self._positions = None if decoder.position_embedding is None else decoder.position_embedding.float().clone()
        self.cache_dtype = torch.float32 if dtype == torch.float32 else torch.float16
        """Storage dtype of keys and values: half as much to read, as precise as weights of these types justify."""
        tied = decoder.head is None
        head = torch.int8 if dtype == INT4_DTYPE else dtype
        memory = WeightMemory(kernels)
        self._head = pack(kernels, decoder.embedding if decoder.head is None else decoder.head, None, head, memory)
        self._embedding: PackedProduct | Tensor
        if tied and (head != torch.int8 or is_blocks(decoder.embedding)):
            self._embedding = self._head
        elif is_blocks(decoder.embedding):
            self._embedding = pack(kernels, decoder.embedding, None, head, memory)
        else:
            self._embedding = decoder.embedding.clone()
        self._norm = [None if part is None else part.float().clone() for part in decoder.norm]
        self.layers = [
            _compiled(kernels, layer, window, dtype, memory)
            for layer, window in zip(layers, config.windows, strict=True)
        ]
        self._inner = self.layers[0].down.inputs
        angles = None if frequencies is None else torch.outer(torch.arange(context).float(), frequencies)
        self._cos = None if angles is None else angles.cos()
        self._sin = None if angles is None else angles.sin()
        self._model = CModel(
            **{name: getattr(config, name) for name in ("heads", "kv_heads", "head_dim", "hidden")},
            centred=config.is_gpt2,
            gated=not config.is_gpt2,
            halved=self.cache_dtype == torch.float16,
            inner=self._inner,
            cos=address(self._cos),
            sin=address(self._sin),
            eps=config.eps,
            scaling=config.head_dim**-0.5,
        )
        self._head_structure = self._head.structure
        self._norm_addresses = [address(part) for part in self._norm]
        self._norm_settings = (config.hidden, config.is_gpt2, config.eps)
        self._structures = (CLayer * len(self.layers))(*(_structure(layer) for layer in self.layers))
        self._cache: KVCache | None = None
        self._buffers = _Buffers(self, 0)

    def runner(self, cache: KVCache, chunk_tokens: int) -> ModelRunner:
        """A runner of steps through this pass."""
        return ModelRunner(
            self,
            cache,
            _CPU,
            chunk_tokens,
            1,
            free_cuts=True,
            kernels=self._kernels.name,
            doubling_position=self._config.doubling_position,
        )

    def logits(self, batch: Batch, attention: BlockAttention) -> Tensor:
        """See `Forward.logits`; float32."""
        if attention.cache is not self._cache:
            self._bind(attention.cache)
        self._kernels.use_threads(torch.get_num_threads())
        tokens = batch.input_ids.shape[1]
        if tokens > self._buffers.tokens:
            self._buffers = _Buffers(self, tokens)
        hidden = self._buffers.hidden[:tokens]
        self._embed(batch, hidden)
        self._kernels.layers(self._model, self._structures, len(self.layers), self._buffers.step(batch))
        if not batch.logits:
            return hidden.new_empty(0, 0)
        count = batch.logit_rows.shape[0]
        rows = hidden if count == tokens == batch.logits else hidden.index_select(0, batch.logit_rows)
        return self._project(rows, count)

    def _embed(self, batch: Batch, hidden: Tensor) -> None:
        """Write the hidden states before the first layer, [T, hidden] float32."""
        ids = batch.input_ids[0]
        if isinstance(self._embedding, PackedProduct):
            hidden.copy_(self._embedding.rows(self._kernels, ids))
        elif self._embedding.dtype == torch.float32:
            torch.index_select(self._embedding, 0, ids, out=hidden)
        else:
            hidden.copy_(self._embedding.index_select(0, ids))
        if self._positions is not None:
            hidden += self._positions.index_select(0, batch.positions[0])

    def _project(self, rows: Tensor, count: int) -> Tensor:
        """The logits of `count` rows of hidden states: [R, V] float32."""
        step, outputs = self._buffers.structure, self._head.outputs
        out = torch.empty(count, outputs, dtype=torch.float32)
        self._kernels.norm(rows.data_ptr(), *self._norm_addresses, count, *self._norm_settings, step.normed)
        self._kernels.product(self._head_structure, step.normed, count, STORE, out.data_ptr(), outputs, step.room)
        return out

    def _bind(self, cache: KVCache) -> None:
        """Let the layers store their keys and values there."""
        assert cache.dtype == self.cache_dtype
        for layer, structure in zip(self.layers, self._structures, strict=True):
            keys, values = cache.memory(layer)
            structure.keys, structure.values = address(keys), address(values)
            self._model.head_stride = keys.stride(0)
        self._cache = cache

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Numbers for a token: hidden state, queries with keys and values, attention's output, inner ones."""
        config = self._config
        qkv = (config.heads + 2 * config.kv_heads) * config.head_dim
        return config.hidden, qkv, config.heads * config.head_dim, self._inner


class _Buffers:
    """Memory for steps of up to `tokens` tokens, reused at each."""

    def __init__(self, model: CompiledForward, tokens: int) -> None:
        self.tokens = tokens
        hidden, qkv, attended, inner = model.sizes
        widest = max(*model.sizes, 10)  # so many words a group of inputs takes when it is quantized
        widths = {"hidden": hidden, "normed": hidden, "qkv": qkv, "attended": attended, "inner": inner, "room": widest}
        self._memory = {name: torch.empty(tokens, width, dtype=torch.float32) for name, width in widths.items()}
        self.hidden = self._memory["hidden"]
        self.structure = CStep(**{name: address(own) for name, own in self._memory.items()})
        """For C, with the last batch of `step`."""

    def step(self, batch: Batch) -> CStep:
        """The batch as a C structure, which the batch must outlive; good until the next call."""
        groups = (CGroup * len(batch.groups))()
        for group, structure in zip(batch.groups, groups, strict=True):
            count, queries = group.positions.shape
            structure.rows = None if group.rows is None else group.rows.data_ptr()
            structure.positions, structure.table = group.positions.data_ptr(), group.table.data_ptr()
            structure.count, structure.queries, structure.width = count, queries, group.table.shape[0] // count
        step = self.structure
        step.tokens, step.stored = batch.input_ids.shape[1], batch.slots.shape[0]
        step.positions, step.slots = batch.positions.data_ptr(), batch.slots.data_ptr()
        step.groups, step.group_count = groups, len(groups)
        return step


def _compiled(
    kernels: Kernels, layer: LayerWeights, window: int | None, dtype: torch.dtype, memory: WeightMemory
) -> CompiledLayer:
    up, down = layer.up, layer.down
    if layer.gate is not None:
        up = _gated(kernels, layer.gate, layer.up)
        if not is_blocks(down[0]):  # the inputs of whole groups are multiples of a vector
            down = (pad(down[0], (0, len(up[0]) // 2 - down[0].shape[1])), down[1])
    runs = [list(run) for _, run in groupby(layer.qkv, lambda part: part[0].shape[2:])]  # dense, or blocks of one type
    norms = (*layer.norm, layer.head_norm, *layer.mlp_norm)
    return CompiledLayer(
        qkv=tuple(pack(kernels, *fuse(run), dtype, memory) for run in runs),
        output=pack(kernels, *layer.output, dtype, memory),
        up=pack(kernels, *up, dtype, memory),
        down=pack(kernels, *down, dtype, memory),
        norms=tuple(None if part is None else part.float().clone() for part in norms),
        window=window,
    )


def _gated(kernels: Kernels, gate: Affine, up: Affine) -> Affine:
    if gate[1] is None or up[1] is None:
        return interleaved(kernels, gate[0], up[0]), None
    return interleaved(kernels, gate[0], up[0]), interleaved(kernels, gate[1], up[1])


def _structure(layer: CompiledLayer) -> CLayer:
    qkv, missing = [product.structure for product in layer.qkv], CProduct()
    norm, norm_bias, head_norm, mlp_norm, mlp_norm_bias = (address(part) for part in layer.norms)
    return CLayer(
        norm=norm,
        norm_bias=norm_bias,
        qkv=(*qkv, *[missing] * (3 - len(qkv))),
        head_norm=head_norm,
        output=layer.output.structure,
        mlp_norm=mlp_norm,
        mlp_norm_bias=mlp_norm_bias,
        up=layer.up.structure,
        down=layer.down.structure,
        window=layer.window or 0,
    )


class _TrackedWeights(UserDict[str, Tensor]):
    """Weights, with the memory of those that were taken out."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__()
        self.data = weights
        self.places: list[tuple[int, int]] = []
        """Address and bytes."""

    def __delitem__(self, name: str) -> None:
        self.places.append((self.data[name].data_ptr(), self.data[name].nbytes))
        super().__delitem__(name)


def _page_out_behind(
    library: Kernels, layers: Iterator[LayerWeights], tracked: _TrackedWeights
) -> Iterator[LayerWeights]:
    """Each layer in turn; its weights in the checkpoint file leave memory before the next one.

    Else the whole checkpoint file would be in memory beside the packed weights.
    """
    for layer in layers:
        yield layer
        for place, size in tracked.places:
            library.page_out(place, size)
        tracked.places.clear()


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
