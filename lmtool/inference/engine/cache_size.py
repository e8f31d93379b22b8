"""How much memory the key-value cache gets, and its allocation."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from lmtool.core.errors import OutOfMemoryError, ResourceError
from lmtool.inference.engine.device_memory import cache_room
from lmtool.inference.engine.kv_cache import BLOCK_TOKENS, KVCache, LayerShape, PagedCache, block_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import Tensor

    from lmtool.inference.engine.config import EngineConfig

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
    """How many blocks the key-value cache of a model gets, at least `fewest`.

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
