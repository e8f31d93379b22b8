"""Attention of one step over pages: what a model's layers call, whichever way computes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lmtool.engine.attention import AttentionCall, BlockAttention
from lmtool.engine.cuda.backends import Asked, Backend
from lmtool.engine.cuda.kernels.kv_write import kv_write

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from lmtool.engine.cuda.paged_cache import PagedCache
    from lmtool.engine.cuda.step_rows import StepRows


class PagedAttention(BlockAttention):
    """Attention of one step."""

    def __init__(self, cache: PagedCache, rows: StepRows, backend: Backend) -> None:
        super().__init__(cache, rows.slots, [])
        self._pages = cache
        self._rows = rows
        self._backend = backend

    @property
    def slots(self) -> Tensor:
        """[T] int64, where the batch's tokens are stored; negative for padding."""
        return self._rows.slots

    def pages(self, layer: object) -> tuple[Tensor, Tensor]:
        """See `PagedCache.pages`."""
        return self._pages.pages(layer)

    def mask(self, arguments: Mapping[str, Any]) -> Tensor | None:  # noqa: ARG002  # positions say what is seen
        """None: no mask is needed."""
        return None

    def attend(self, call: AttentionCall) -> Tensor:
        """Store the new keys and values, then [T, H, Dv]; anything for padding."""
        keys, values = self.pages(call.layer)
        kv_write(call.key.transpose(0, 1), call.value.transpose(0, 1), keys, values, self.slots)
        asked = Asked(call.scaling, call.sliding_window, call.softcap)
        return self.look(call.query.transpose(0, 1), keys, values, asked)

    def look(self, query: Tensor, keys: Tensor, values: Tensor, asked: Asked) -> Tensor:
        """The attention output [T, H, Dv] over keys and values that are stored already. query: [T, H, D]."""
        query = query.contiguous()
        singles, parts = self._rows.singles, self._rows.parts
        if parts is None:
            assert singles is not None
            return self._backend.single(query, keys, values, singles, asked)
        output = query.new_empty(*query.shape[:2], values.shape[3])
        if singles is not None:
            output[: parts.first] = self._backend.single(query[: parts.first], keys, values, singles, asked)
        self._backend.part(query, keys, values, parts, asked, output)
        return output
