"""Attention of one step over pages, by any backend: what a model's layers call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.inference.engine.attention import AttentionCall, BlockAttention
from lmtool.inference.engine.cuda.attention_backends import AttentionBackend, AttentionParams
from lmtool.inference.engine.cuda.kernels.kv_write import kv_write

if TYPE_CHECKING:
    from torch import Tensor

    from lmtool.inference.engine.cuda.step_rows import StepRows
    from lmtool.inference.engine.kv_cache import PagedCache


class PagedAttention(BlockAttention):
    """Attention of one step."""

    def __init__(self, cache: PagedCache, rows: StepRows, backend: AttentionBackend) -> None:
        super().__init__(cache, rows.slots, [])
        self._rows = rows
        self._backend = backend

    @property
    def slots(self) -> Tensor:
        """[T] int64, where the batch's tokens are stored; negative for padding."""
        return self._rows.slots

    def attend(self, call: AttentionCall) -> Tensor:
        """Store the new keys and values, then [T, H, Dv]; anything for padding."""
        keys, values = self.cache.memory(call.layer)
        scales = self.cache.scales(call.layer)
        kv_write(call.key.transpose(0, 1), call.value.transpose(0, 1), keys, values, self.slots, scales)
        params = AttentionParams(call.scaling, call.sliding_window, call.softcap)
        return self.attend_stored(call.query.transpose(0, 1), keys, values, params, scales)

    def attend_stored(
        self, query: Tensor, keys: Tensor, values: Tensor, params: AttentionParams, scales: Tensor | None = None
    ) -> Tensor:
        """The attention output [T, H, Dv] over a layer's stored keys and values. query: [T, H, D].

        keys, values, scales: see `PagedCache`.
        """
        query = query.contiguous()
        singles, parts = self._rows.singles, self._rows.parts
        if parts is None:
            assert singles is not None
            return self._backend.decode(query, keys, values, singles, params, scales)
        empty = query.new_zeros if parts.padded else query.new_empty
        output = empty((*query.shape[:2], values.shape[3]))
        if singles is not None:
            decoded = self._backend.decode(query[: parts.first], keys, values, singles, params, scales)
            output[: parts.first] = decoded
        self._backend.prefill(query, keys, values, parts, params, output, scales)
        return output
