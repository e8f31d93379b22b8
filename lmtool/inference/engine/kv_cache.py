"""Keys and values of all streams, in blocks of positions: storage for CPU, pages for GPU kernels, and their sizes."""

from __future__ import annotations

import math
import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lmtool.core.errors import OutOfMemoryError, ResourceError
from lmtool.inference.engine.device import cache_room
from lmtool.net.subprocesses.resources import give_back_pages

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lmtool.inference.engine.config import EngineConfig


BLOCK_TOKENS = 16
"""Positions a block holds."""

_SCRATCH_BYTES = 256 << 20
"""Most bytes of scratch memory for gathered keys, and as many for values."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Shape of what one attention layer stores for a position."""

    kv_heads: int
    key_dim: int
    value_dim: int

    @property
    def values(self) -> int:
        """Numbers stored for one position."""
        return self.kv_heads * (self.key_dim + self.value_dim)


class KVCache:
    """Block storage for every attention layer of a model.

    Layers of one shape share a tensor `[layers, KV, blocks + 1, BLOCK_TOKENS, dim]` for keys and one for values; KV
    heads come before blocks so that gathered blocks are the batch of a matrix product without another copy. Block 0
    pads tables and is always zero. Memory is touched, and so allocated, when a block is first handed out, until it is
    given back.
    """

    def __init__(
        self, layers: Sequence[tuple[object, LayerShape]], blocks: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """layers: an object for each layer, with its shape. blocks: how many can be handed out, without block 0."""
        self.device, self.dtype = device, dtype
        self.block_bytes = block_bytes((shape for _, shape in layers), dtype)
        """Bytes of one block over all layers."""
        self._pools: dict[LayerShape, tuple[Tensor, Tensor]] = {}
        self._place: dict[int, tuple[Tensor, Tensor]] = {}
        self._key_scratch = _Scratch(dtype, device)
        self._value_scratch = _Scratch(dtype, device)
        self._layers = [layer for layer, _ in layers]
        self._shapes = [shape for _, shape in layers]
        for shape in dict.fromkeys(shape for _, shape in layers):
            members = [layer for layer, other in layers if other == shape]
            keys = self._allocate(len(members), blocks + 1, shape.kv_heads, shape.key_dim)
            values = self._allocate(len(members), blocks + 1, shape.kv_heads, shape.value_dim)
            self._pools[shape] = (keys, values)
            for index, layer in enumerate(members):
                self._place[id(layer)] = (keys[index], values[index])
        self.clear(torch.zeros(1, dtype=torch.int64, device=device))

    @property
    def layers(self) -> list[tuple[object, LayerShape]]:
        """An object for each layer, with its shape, in order."""
        return list(zip(self._layers, self._shapes, strict=True))

    def _allocate(self, layers: int, blocks: int, kv_heads: int, size: int) -> Tensor:
        return _empty_on_pages((layers, kv_heads, blocks, BLOCK_TOKENS, size), self.dtype, self.device)

    def give_back(self, first: int, count: int) -> None:
        """Return the memory of consecutive blocks that nobody uses to the system; `clear` them before they are used."""
        for pool in (pool for pools in self._pools.values() for pool in pools):
            plane, block = (pool.stride(dim) * pool.itemsize for dim in (1, 2))
            for number in range(pool.shape[0] * pool.shape[1]):
                give_back_pages(pool.data_ptr() + number * plane + first * block, count * block)

    def free(self) -> None:
        """Free all of it, also where this object is still referred to; nothing may be read or written afterwards."""
        self._pools.clear()
        self._place.clear()
        self._key_scratch, self._value_scratch = _Scratch(self.dtype, self.device), _Scratch(self.dtype, self.device)

    def memory(self, layer: object) -> tuple[Tensor, Tensor]:
        """The layer's own keys [KV, blocks + 1, BLOCK_TOKENS, D] and values [KV, blocks + 1, BLOCK_TOKENS, Dv]."""
        return self._place[id(layer)]

    def scales(self, layer: object) -> Tensor | None:  # noqa: ARG002  # a `PagedCache` may have some
        """Factors [2, KV] float32 on the layer's stored keys and values; None where they are stored as they are."""
        return None

    def rename(self, layers: Sequence[object]) -> None:
        """Identify the layers by other objects from now on, in the same order."""
        self._place = {id(new): self._place[id(old)] for old, new in zip(self._layers, layers, strict=True)}
        self._layers = list(layers)

    def clear(self, blocks: Tensor) -> None:
        """Zero the given blocks [n] int64: a masked position still meets its value, and 0 * NaN is NaN."""
        for keys, values in self._pools.values():
            keys.index_fill_(2, blocks, 0)
            values.index_fill_(2, blocks, 0)

    def write(self, layer: object, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Store keys [KV, T, D] and values [KV, T, Dv] of T positions.

        slots: [T] int64, `block * BLOCK_TOKENS + offset` for each position.
        """
        keys, values = self._place[id(layer)]
        keys.view(keys.shape[0], -1, keys.shape[-1]).index_copy_(1, slots, key)
        values.view(values.shape[0], -1, values.shape[-1]).index_copy_(1, slots, value)

    def read(self, layer: object, table: Tensor, first: int | None, streams: int) -> tuple[Tensor, Tensor]:
        """Keys [KV * streams, span, D] and values [KV * streams, span, Dv] of whole blocks.

        table: [streams * n] int64, the blocks of each stream in turn, n each. first: the first of them where they are
        consecutive, which saves the copy. They are good until the next call.
        """
        keys, values = self._place[id(layer)]
        return (
            _blocks(keys, table, first, streams, self._key_scratch),
            _blocks(values, table, first, streams, self._value_scratch),
        )


class PagedCache(KVCache):
    """A `KVCache` for a GPU, whose tensors are [layers, blocks + 1, BLOCK_TOKENS, KV, dim].

    So a layer's `memory` is [pages, BLOCK_TOKENS, KV, dim], which flash-attn, FlashInfer and our kernels read in place.
    All of it is allocated at once.

    With scales, keys and values are e4m3, in bytes (uint8): what they were, divided by their head's scale and rounded.
    """

    def __init__(
        self,
        layers: Sequence[tuple[object, LayerShape]],
        blocks: int,
        dtype: torch.dtype,
        device: torch.device,
        scales: Sequence[Tensor] | None = None,
    ) -> None:
        """See `KVCache`. scales: of each layer, [2, KV] float32; dtype must be uint8 then."""
        assert (scales is None) == (dtype != torch.uint8)
        super().__init__(layers, blocks, dtype, device)
        pairs = zip(layers, scales or [], strict=scales is not None)
        self._scales = {id(layer): scale for (layer, _), scale in pairs}

    def scales(self, layer: object) -> Tensor | None:
        """See `KVCache.scales`."""
        return self._scales.get(id(layer))

    def rename(self, layers: Sequence[object]) -> None:
        """See `KVCache.rename`."""
        if self._scales:
            self._scales = {id(new): self._scales[id(old)] for old, new in zip(self._layers, layers, strict=True)}
        super().rename(layers)

    def e4m3_scales(self) -> list[Tensor]:
        """Scales for each layer, [2, KV], with which what is stored now uses a quarter of e4m3's range.

        They are powers of two: but for what is too small or too large, they change no rounding. What is stored later
        may be four times as large.
        """
        return [torch.stack([_e4m3_scale(part) for part in self.memory(layer)]) for layer in self._layers]

    def _allocate(self, layers: int, blocks: int, kv_heads: int, size: int) -> Tensor:
        return torch.zeros(layers, blocks, BLOCK_TOKENS, kv_heads, size, dtype=self.dtype, device=self.device)

    def give_back(self, first: int, count: int) -> None:
        """Keep it: a GPU's memory is allocated once."""

    def clear(self, blocks: Tensor) -> None:
        """See `KVCache.clear`."""
        for keys, values in self._pools.values():
            keys.index_fill_(1, blocks, 0)
            values.index_fill_(1, blocks, 0)

    def write(self, layer: object, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """See `KVCache.write`."""
        keys, values = self._place[id(layer)]
        keys.flatten(0, 1).index_copy_(0, slots, key.transpose(0, 1))
        values.flatten(0, 1).index_copy_(0, slots, value.transpose(0, 1))

    def read(self, layer: object, table: Tensor, first: int | None, streams: int) -> tuple[Tensor, Tensor]:  # noqa: ARG002  # pages are always gathered
        """See `KVCache.read`."""
        keys, values = self._place[id(layer)]
        return _gathered(keys, table, streams), _gathered(values, table, streams)


_E4M3_QUARTER = 112.0
"""A quarter of the largest number of e4m3."""


def _e4m3_scale(pages: Tensor) -> Tensor:
    """[KV] float32 for [pages, BLOCK_TOKENS, KV, dim]; 1 for a head that stores nothing but zeros."""
    largest = pages.abs().amax(dim=(0, 1, 3)).float()
    return torch.where(largest > 0, (largest / _E4M3_QUARTER).log2().ceil().exp2(), 1.0)


def _empty_on_pages(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of that size with any content, at the start of a page of memory."""
    count = math.prod(size)
    room = torch.empty(count + mmap.PAGESIZE // dtype.itemsize, dtype=dtype, device=device)
    skipped = -room.data_ptr() % mmap.PAGESIZE // dtype.itemsize
    return room[skipped : skipped + count].view(size)


def _gathered(pages: Tensor, table: Tensor, streams: int) -> Tensor:
    """[KV * streams, span, D] of whole blocks. table: [streams * n] int64."""
    chosen = pages.index_select(0, table).view(streams, -1, *pages.shape[2:])
    return chosen.permute(2, 0, 1, 3).reshape(-1, chosen.shape[1], chosen.shape[3])


class _Scratch:
    """Memory reused at each read: fresh memory costs a page fault for every 4 KiB."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._memory = torch.empty(0, dtype=dtype, device=device)

    def tensor(self, *size: int) -> Tensor:
        """A tensor of that size with any content."""
        count = math.prod(size)
        if count * self._memory.itemsize > _SCRATCH_BYTES:
            return self._memory.new_empty(size)
        if count > len(self._memory):
            self._memory = self._memory.new_empty(count)
        return self._memory[:count].view(size)


def _blocks(pool: Tensor, table: Tensor, first: int | None, streams: int, scratch: _Scratch) -> Tensor:
    if first is None:
        kv_heads, _, positions, size = pool.shape
        chosen = torch.index_select(pool, 1, table, out=scratch.tensor(kv_heads, len(table), positions, size))
    else:
        chosen = pool.narrow(1, first, len(table))
    if streams == 1:
        return chosen.flatten(1, 2)
    return chosen.reshape(pool.shape[0] * streams, -1, pool.shape[-1])


def block_bytes(shapes: Iterable[LayerShape], dtype: torch.dtype) -> int:
    """Bytes that one block takes over all layers."""
    return BLOCK_TOKENS * dtype.itemsize * sum(shape.values for shape in shapes)


_CPU_SHARE = 0.4
"""Share of the memory free after loading that keys and values may use at most on CPU; touched as it is needed."""

_CPU_CONTEXTS = 32
"""Full contexts of keys and values for which there is room on a CPU: streams share it, and what does not fit waits."""


def cache_blocks(
    name: str,
    shapes: Sequence[LayerShape],
    context: int,
    dtype: torch.dtype,
    device: torch.device,
    config: EngineConfig,
    fewest: int,
    reserved: int = 0,
) -> int:
    """Number of blocks in the key-value cache of a model, at least `fewest`.

    context: most tokens of a stream. reserved: bytes on a GPU that CUDA graphs will need. There, call it last, when the
    weights have their final form. Raises `OutOfMemoryError` or `ResourceError` when it would be fewer.
    """
    size = block_bytes(shapes, dtype)
    contexts = config.max_streams if device.type == "cuda" else min(config.max_streams, _CPU_CONTEXTS)
    most = max(contexts * -(-context // BLOCK_TOKENS), fewest)
    if config.kv_cache_bytes is None:
        room = _CPU_SHARE * min(_free_ram(), _cgroup_limit())
        if device.type == "cuda":
            room = cache_room(device, reserved)
        blocks = min(int(room) // size, most)
        if blocks < fewest:
            raise OutOfMemoryError(f"{name} leaves no memory for keys and values", "choose a smaller model or dtype")
        return blocks
    blocks = config.kv_cache_bytes // size
    if blocks < fewest:
        raise ResourceError(
            f"a key-value cache of {config.kv_cache_bytes} bytes is too small for {name}; "
            f"it needs at least {fewest * size}",
            f"one full stream of {context} tokens needs {-(-context // BLOCK_TOKENS) * size} bytes",
        )
    return blocks


def _free_ram() -> float:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(float(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) / 2


def _cgroup_limit() -> float:
    try:
        return float(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii"))
    except (OSError, ValueError):  # no cgroup, or the word "max"
        return float("inf")


def allocate(
    name: str,
    layers: Sequence[tuple[object, LayerShape]],
    blocks: int,
    dtype: torch.dtype,
    device: torch.device,
    scales: Sequence[Tensor] | None = None,
    *,
    paged: bool = False,
) -> KVCache:
    """The cache, a `PagedCache` on a GPU or if asked for one, with these scales.

    Raises `OutOfMemoryError` when there is no memory for it.
    """
    try:
        if device.type == "cuda" or paged:
            return PagedCache(layers, blocks, dtype, device, scales)
        return KVCache(layers, blocks, dtype, device)
    except (RuntimeError, MemoryError) as problem:
        size = blocks * block_bytes((shape for _, shape in layers), dtype)
        raise OutOfMemoryError(
            f"no memory for the key-value cache of {name}: {size} bytes", "give less with --kv-cache-bytes"
        ) from problem
