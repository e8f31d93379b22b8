"""Keys and values in pages as paged attention kernels want them: all heads of a position next to each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lmtool.engine.kv_cache import BLOCK_TOKENS, KVCache, LayerShape

if TYPE_CHECKING:
    from collections.abc import Sequence


class PagedCache(KVCache):
    """A `KVCache` whose tensors are [layers, blocks + 1, BLOCK_TOKENS, KV, dim].

    So a layer's own is [pages, BLOCK_TOKENS, KV, dim], which flash-attn, FlashInfer and our kernels read in place. All
    memory is taken at once.
    """

    def __init__(
        self, layers: Sequence[tuple[object, LayerShape]], blocks: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """See `KVCache`."""
        self.device, self.dtype = device, dtype
        self._pools = {}
        self._place = {}
        self._layers = [layer for layer, _ in layers]
        for shape in dict.fromkeys(shape for _, shape in layers):
            members = [layer for layer, other in layers if other == shape]
            size = (len(members), blocks + 1, BLOCK_TOKENS, shape.kv_heads)
            keys = torch.zeros(*size, shape.key_dim, dtype=dtype, device=device)
            values = torch.zeros(*size, shape.value_dim, dtype=dtype, device=device)
            self._pools[shape] = (keys, values)
            for index, layer in enumerate(members):
                self._place[id(layer)] = (keys[index], values[index])

    def pages(self, layer: object) -> tuple[Tensor, Tensor]:
        """Keys [pages, BLOCK_TOKENS, KV, D] and values [pages, BLOCK_TOKENS, KV, Dv] of a layer."""
        return self._place[id(layer)]

    def clear(self, blocks: Tensor) -> None:
        """Zero the given blocks [n] int64."""
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


def _gathered(pages: Tensor, table: Tensor, streams: int) -> Tensor:
    """[KV * streams, span, D] of whole blocks. table: [streams * n] int64."""
    chosen = pages.index_select(0, table).view(streams, -1, *pages.shape[2:])
    return chosen.permute(2, 0, 1, 3).reshape(-1, chosen.shape[1], chosen.shape[3])
