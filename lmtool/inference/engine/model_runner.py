"""Runs a model's forward pass: the tensors of a plan, attention over block storage, and the rows of logits.

Letters: T tokens of the batch, H query heads, KV key heads, G = H / KV, D head size, N units of a group, Q queries of
a unit, S padded span.

The keys that a query attends to, and the shapes of its products, depend on its own stream alone: units are cut at fixed
positions, spans are padded to fixed lengths, and units of one shape are only stacked along the batch dimension. So the
bits of a stream do not depend on its neighbours.
"""

from __future__ import annotations

import functools
from array import array
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch
from torch import Tensor

from lmtool.inference.engine.kv_cache import BLOCK_TOKENS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lmtool.core.types import ModelInfo
    from lmtool.inference.engine.kv_cache import KVCache
    from lmtool.inference.engine.plan import Plan


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
    """Number of positions that a query sees, itself included; None for all."""
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
        """slots: [T'] int64, where the first T' tokens of the batch are stored; padding after them is not."""
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


_Unit: TypeAlias = "tuple[int, int, list[int]]"
"""Consecutive queries of one stream that go through attention together: the row and the position of the first one, and
the stream's blocks."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A flat batch of T tokens, of which the last few may be padding."""

    input_ids: Tensor
    """[1, T] int64"""
    positions: Tensor
    """[1, T] int64"""
    slots: Tensor
    """[T without padding] int64, where keys and values go: `block * BLOCK_TOKENS + offset`."""
    groups: list[Group]
    logit_rows: Tensor
    """[max(R, rows)] int64, which tokens' logits are needed, padded by repeating the last; empty when R is 0."""
    logits: int
    """R: how many rows of logits are needed."""
    fresh_blocks: Tensor
    """[n] int64, blocks to clear before the pass."""


def build(plan: Plan, chunk_tokens: int, min_rows: int, device: torch.device) -> Batch:
    """The tensors of a plan.

    chunk_tokens: where prompts are cut, as in the scheduler. min_rows: pad the tokens and the rows of logits to at
    least this many, because a matrix product of fewer rows takes another path with other rounding.
    """
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    logit_rows: list[int] = []
    units: dict[tuple[int, int], list[_Unit]] = defaultdict(list)
    for span in plan.spans:
        sequence, start, row = span.sequence, span.start, len(ids)
        own, end = sequence.blocks, start + span.count
        if span.count == 1 and span.yields_one_id:  # as nearly all do; what follows gives the same
            ids.append(sequence.tokens[start])
            positions.append(start)
            slots.append(own[start // BLOCK_TOKENS] * BLOCK_TOKENS + start % BLOCK_TOKENS)
            logit_rows.append(row)
            units[1, padded_blocks(end)].append((row, start, own))
            continue
        ids += sequence.ids(start, end)
        for position in range(start, end):
            positions.append(position)
            slots.append(own[position // BLOCK_TOKENS] * BLOCK_TOKENS + position % BLOCK_TOKENS)
        needed = span.logits
        logit_rows += range(row + needed.start - start, row + needed.stop - start)
        last = sequence.chunked_length
        while start < end:  # cut at the multiples of `chunk_tokens`, and generated positions one by one
            count = 1 if start >= last else min((start // chunk_tokens + 1) * chunk_tokens, end, last) - start
            units[count, padded_blocks(start + count)].append((row, start, own))
            start, row = start + count, row + count
    padding = [0] * max(min_rows - len(ids), 0)
    logits = len(logit_rows)
    logit_rows += logit_rows[-1:] * max(min_rows - logits, 0)
    whole_batch = len(units) == 1 and not padding
    parts = [ids + padding, positions + padding, slots, logit_rows, plan.fresh_blocks]
    for (queries, width), members in units.items():
        parts += _group_parts(members, queries, width)
    flat, *tensors = _tensors(parts, device)
    groups = [
        _group(tensors[4 + 3 * at : 7 + 3 * at], parts[5 + 3 * at : 8 + 3 * at], kind, whole_batch=whole_batch)
        for at, kind in enumerate(units)
    ]
    return Batch(flat.unsqueeze(0), tensors[0].unsqueeze(0), tensors[1], groups, tensors[2], logits, tensors[3])


def _tensors(parts: list[list[int]], device: torch.device) -> tuple[Tensor, ...]:
    """Each part as int64 on the device; one copy takes them there."""
    numbers: list[int] = []
    for part in parts:
        numbers += part
    whole = torch.frombuffer(array("q", numbers), dtype=torch.int64).to(device)
    return torch.split_with_sizes(whole, [len(part) for part in parts])


@functools.lru_cache(4096)
def padded_blocks(positions: int) -> int:
    """Number of blocks that a unit ending after this position reads: a fixed ladder, at most a quarter too many.

    A ladder, and not the exact number, so that streams of similar length share a matrix product.
    """
    blocks = -(-positions // BLOCK_TOKENS)
    step = max(2, 1 << max(blocks - 1, 1).bit_length() - 3) if blocks > 8 else 2
    return -(-blocks // step) * step


def _group_parts(units: list[_Unit], queries: int, width: int) -> list[list[int]]:
    """Rows, positions and table of a `Group` of units of as many queries each, over `width` blocks."""
    rows: list[int] = []
    positions: list[int] = []
    table: list[int] = []
    for row, start, blocks in units:
        rows += range(row, row + queries)
        positions += range(start, start + queries)
        own = blocks[:width]
        table += own
        if len(own) < width:
            table += [0] * (width - len(own))
    return [rows, positions, table]


def _group(tensors: Sequence[Tensor], parts: list[list[int]], kind: tuple[int, int], *, whole_batch: bool) -> Group:
    """A group of its parts, see `_group_parts`. kind: queries and width."""
    (queries, width), numbers, (rows, positions, table) = kind, parts[2], tensors
    consecutive = len(numbers) == width and numbers == list(range(numbers[0], numbers[0] + width))
    return Group(
        rows=None if whole_batch else rows,
        positions=positions.view(-1, queries),
        table=table,
        first_block=numbers[0] if consecutive else None,
        span=width * BLOCK_TOKENS,
    )


class Forward(Protocol):
    """A way to compute a model's layers."""

    def logits(self, batch: Batch, attention: BlockAttention) -> Tensor:
        """Run a batch through all layers, with attention by `attention`.

        Returns logits [rows, V] for the batch's `logit_rows`, empty where there are none.
        """


@dataclass(frozen=True, slots=True)
class ModelRunner:
    """A loaded model with its key-value cache. Used by one thread at a time, under `torch.inference_mode`."""

    forward: Forward
    cache: KVCache
    device: torch.device
    chunk_tokens: int
    """Prompts are cut at multiples of this position, as in the scheduler."""
    min_rows: int
    """Fewest rows of a matrix product for which a row's bits do not depend on the others."""
    free_cuts: bool = field(default=False, kw_only=True)
    """True if a position's bits do not depend on the cuts of its text either."""
    kernels: str = field(default="torch", kw_only=True)
    """See `ModelInfo.kernels`."""
    doubling_position: int | None = field(default=None, kw_only=True)
    """See `Limits.doubling_position`."""

    def prepared(self, max_streams: int, context: int, *, samples: bool = False) -> ModelRunner:  # noqa: ARG002  # a GPU's captures graphs
        """Prepare for up to `max_streams` streams of up to `context` positions, such as capturing CUDA graphs.

        samples: whether the kernels that sample on a GPU work, see `sampler.prepare_gpu`, and may be captured, too.
        """
        return self

    def close(self) -> None:
        """Free keys and values; nothing may be computed afterwards."""
        self.cache.free()

    @property
    def block_bytes(self) -> int | None:
        """Bytes of one block of the key-value cache; None: not known."""
        return self.cache.block_bytes

    @property
    def max_ahead_rows(self) -> int:
        """Rows of the largest step that `run_ahead` takes; 0 where nothing runs ahead."""
        return 0

    def run_ahead(self, plan: Plan, ids: Tensor) -> Tensor:
        """Like `run`, for a plan of one new position of each text, whose ids the host does not know yet.

        ids: [N] int64 on the device, one for each span. Does not wait for the device.
        """
        raise NotImplementedError

    @property
    def samples_ahead(self) -> bool:
        """True if it is a `step.AheadSampler`, any of whose passes samples."""
        return False

    def run(self, plan: Plan) -> Tensor:
        """Compute the plan's spans and store their keys and values.

        Returns logits [R, V] float32: one row for each position of each span's `logits`, in order.
        """
        batch = build(plan, self.chunk_tokens, self.min_rows, self.device)
        if plan.fresh_blocks:
            self.cache.clear(batch.fresh_blocks)
        attention = BlockAttention(self.cache, batch.slots, batch.groups)
        logits = self.forward.logits(batch, attention)
        return (logits if logits.shape[0] == batch.logits else logits[: batch.logits]).float()


@dataclass(frozen=True, slots=True)
class RunnableModel:
    """A model in memory, ready for the engine."""

    runner: ModelRunner
    blocks: int
    """Number of blocks in the runner's key-value cache."""
    info: ModelInfo
    contents: str | None = None
    """See `fingerprint.contents_digest`; None where the code that computes it is not known."""


CHUNK_TOKENS = BLOCK_TOKENS
"""Prompts are cut, and cached, at multiples of this position: as little as the cache can hold.

A step computes any number of chunks; one is small enough for streams beside a long prompt to keep their pace.
"""
