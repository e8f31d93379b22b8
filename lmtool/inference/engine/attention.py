"""Attention of a flat batch over block storage.

Letters: T tokens of the batch, H query heads, KV key heads, G = H / KV, D head size, N units of a group, Q queries of
a unit, S padded span.

What a query attends to, and in which shapes, depends on its own stream alone: units are cut at fixed positions, spans
are padded to fixed lengths, and units of one shape are only stacked along the batch dimension. So a stream's bits do
not depend on its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lmtool.inference.engine.kv_cache import KVCache


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """The arguments of one layer's attention."""

    layer: object
    """The key-value cache's key for the layer."""
    query: Tensor
    """[H, T, D]"""
    key: Tensor
    """[KV, T, D]"""
    value: Tensor
    """[KV, T, Dv]"""
    scaling: float
    """Factor on the dot products."""
    sliding_window: int | None = None
    """How many positions back a query sees, itself included; None: all."""
    softcap: float | None = None
    """Scores are squeezed into plus or minus this by tanh; None: not at all."""
    mask: Any = None
    """The mask that a transformers model made for this layer; None without one."""
    extras: Mapping[str, Any] = field(default_factory=dict)
    """Keywords that transformers passes and we do not interpret."""


@dataclass(slots=True)
class Group:
    """Units of one shape: N times Q consecutive queries, each over a span of S positions of its own stream."""

    rows: Tensor | None
    """[N * Q] int64, where the queries are in the flat batch; None when they are the whole batch in order."""
    positions: Tensor
    """[N, Q] int64, each query's position in its stream."""
    table: Tensor
    """[N * S / BLOCK_TOKENS] int64, blocks of each unit in turn."""
    first_block: int | None
    """The first of `table` where it is consecutive."""
    span: int
    """S"""
    masks: dict[int | None, Tensor] = field(default_factory=dict)
    """Sliding window to [N, Q, S] bool, True where a query must not look."""

    def mask(self, window: int | None) -> Tensor:
        """[N, Q, S] bool, True where a query must not look; shared by all layers with this window."""
        if window not in self.masks:
            keys = torch.arange(self.span, device=self.positions.device)
            queries = self.positions.unsqueeze(-1)
            hidden = keys > queries
            self.masks[window] = hidden if window is None else hidden | (keys <= queries - window)
        return self.masks[window]


class BlockAttention:
    """Attention of one step: stores the new keys and values, then lets each group look at its streams' blocks."""

    def __init__(self, cache: KVCache, slots: Tensor, groups: Sequence[Group]) -> None:
        """slots: [T'] int64, where the first T' tokens of the batch are stored; padding behind them is not."""
        self.cache = cache
        self._slots = slots
        self._groups = groups

    def mask(self, arguments: Mapping[str, Any]) -> Tensor | None:  # noqa: ARG002  # each group makes its own
        """None: masks are made by each group, from positions."""
        return None

    def attend(self, call: AttentionCall) -> Tensor:
        """The attention output [T, H, Dv]; zero for padding."""
        stored = len(self._slots)
        self.cache.write(call.layer, self._slots, call.key[:, :stored], call.value[:, :stored])
        query = call.query.transpose(0, 1)
        tokens, heads, _ = query.shape
        if len(self._groups) == 1 and self._groups[0].rows is None:
            return self.group(call, self._groups[0], query)
        output = query.new_zeros(tokens, heads, call.value.shape[-1])
        for group in self._groups:
            assert group.rows is not None
            output.index_copy_(0, group.rows, self.group(call, group, query.index_select(0, group.rows)))
        return output

    def group(self, call: AttentionCall, group: Group, query: Tensor) -> Tensor:
        """Attention of one group, whose keys and values are stored. query: [N * Q, H, D]; returns [N * Q, H, Dv]."""
        units, queries = group.positions.shape
        key, value = self.cache.read(call.layer, group.table, group.first_block, units)
        kv_heads = key.shape[0] // units
        mask = group.mask(call.sliding_window)
        query = query.view(units, queries, kv_heads, -1, query.shape[-1])
        output = attend(query, key, value, mask, call.scaling, call.softcap)
        return output.reshape(units * queries, -1, value.shape[-1])


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float, softcap: float | None) -> Tensor:
    """Attention of N units of Q queries over S positions each; the softmax is in float32.

    query: [N, Q, KV, G, D]. key: [KV * N, S, D]. value: [KV * N, S, Dv]. mask: [N, Q, S], True where hidden.
    Returns [N, Q, KV, G, Dv].

    The G query heads of a key head are rows of one matrix, next to each other, so the keys are read once for all.
    """
    units, queries, kv_heads, heads, size = query.shape
    rows = (query * scaling).permute(2, 0, 1, 3, 4).reshape(kv_heads * units, queries * heads, size)
    scores = torch.bmm(rows, key.transpose(1, 2)).float()
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores.view(kv_heads, units, queries, heads, -1).masked_fill_(mask.unsqueeze(-2), float("-inf"))
    weights = torch.softmax(scores, dim=-1).to(value.dtype)
    output = torch.bmm(weights, value)
    return output.view(kv_heads, units, queries, heads, -1).permute(1, 2, 0, 3, 4)
