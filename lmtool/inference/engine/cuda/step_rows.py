"""Turns a plan's plain ints into the tensors of a forward pass over pages.

Letters: T tokens of the batch, N texts.

Generated positions come first in the batch, each as one row of its own, whether it was just sampled or is computed
again; parts of prompts follow. So a position always goes through the same kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lmtool.inference.engine.device import to_device
from lmtool.inference.engine.kv_cache import BLOCK_TOKENS
from lmtool.inference.engine.model_runner import Batch

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    from numpy.typing import NDArray

    from lmtool.inference.engine.plan import Plan, Sequence, Span

QUERY_TILE = 64
"""Queries of a part that are computed together."""

TABLE_STEP = 16
"""Tables are as wide as a multiple of this: kernels are compiled anew for a width that is none."""


@dataclass(frozen=True, slots=True)
class Singles:
    """The first rows of a batch: one query each."""

    table: Tensor
    """[N, n] int32, the pages of each one's text in order."""
    lengths: Tensor
    """[N] int32, positions of each one's text up to itself; 0 for a row of padding."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The other rows: consecutive queries of N texts, one part after the other."""

    first: int
    """The row at which they begin."""
    table: Tensor
    """[N, n] int32, the pages of each part's text in order."""
    lengths: Tensor
    """[N] int32, positions of each text up to its part's end."""
    bounds: Tensor
    """[N + 1] int32, where each part begins, counted from `first`, and where the last one ends."""
    longest: int
    """Queries of the longest part."""
    tiles: Tensor
    """[tiles, 4] int32, as in `prefill_attention`."""
    padded: bool = False
    """True if rows without a tile may follow."""


@dataclass(frozen=True, slots=True)
class StepRows:
    """Pages that the rows of a batch attend to."""

    slots: Tensor
    """[T] int64, where each token's keys and values go; negative for a row of padding."""
    singles: Singles | None
    parts: Parts | None


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive positions of a text, in the pages of these blocks."""

    blocks: list[int]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The rows of a plan in plain numbers."""

    ids: list[int]
    """[T]"""
    positions: list[int]
    """[T]"""
    singles: list[Sequence]
    """The text of each row that is one query by itself; these rows come first."""
    parts: list[Part]
    """Parts that the other rows belong to, one after the other."""
    part_texts: list[Sequence]
    """The text of each part."""
    logit_rows: list[int]
    """[R], the rows whose logits are needed, in the order of the plan."""

    @property
    def decodes(self) -> bool:
        """True if the rows are generated or guessed positions alone, and the logits of all are needed."""
        return not self.parts and len(self.logit_rows) == len(self.positions)


def lay_out(plan: Plan) -> Layout:
    """The rows of a plan."""
    return _lay_out_decode(plan) or _lay_out_any(plan)


def _lay_out_decode(plan: Plan) -> Layout | None:
    """The rows of a plan in which each text's last id is to be computed, the most frequent one; None for others."""
    ids, positions, singles = [], [], []
    for span in plan.spans:
        sequence, start = span.sequence, span.start
        tokens = sequence.tokens
        if span.count != 1 or start + 1 != len(tokens) or start < sequence.prompt_length or not sequence.generates:
            return None
        ids.append(tokens[start])
        positions.append(start)
        singles.append(sequence)
    return Layout(ids, positions, singles, [], [], list(range(len(ids))))


def _lay_out_any(plan: Plan) -> Layout:
    ids: list[int] = []
    positions: list[int] = []
    singles: list[Sequence] = []
    chunked: list[tuple[Span, int]] = []
    cuts: list[int] = []
    for span in plan.spans:
        sequence, start, end = span.sequence, span.start, span.end
        cut = min(max(sequence.chunked_length, start), end)
        cuts.append(cut)
        if end - cut == 1:
            singles.append(sequence)
        else:
            singles.extend([sequence] * (end - cut))
        ids.extend(sequence.ids(cut, end))
        positions.extend(range(cut, end))
        if cut > start:
            chunked.append((span, cut))
    for span, cut in chunked:
        ids.extend(span.sequence.ids(span.start, cut))
        positions.extend(range(span.start, cut))
    return Layout(
        ids,
        positions,
        singles,
        [Part(span.sequence.blocks, span.start, cut) for span, cut in chunked],
        [span.sequence for span, _ in chunked],
        _logit_rows(plan.spans, cuts, len(singles)),
    )


def lay_out_ahead(plan: Plan) -> Layout:
    """The rows of a plan of one new position of each text, whose ids are not known: 0 in their place."""
    rows = len(plan.spans)
    return Layout(
        [0] * rows,
        [span.start for span in plan.spans],
        [span.sequence for span in plan.spans],
        [],
        [],
        list(range(rows)),
    )


def build(plan: Plan, device: torch.device) -> tuple[Batch, StepRows]:
    """The tensors of a plan."""
    return to_tensors(lay_out(plan), device)


def to_tensors(layout: Layout, device: torch.device) -> tuple[Batch, StepRows]:
    """The tensors of the rows; one copy for the tokens, one for the tables, one for each text."""
    singles = len(layout.singles)
    table = _table([*(text.blocks for text in layout.singles), *(part.blocks for part in layout.parts)])
    counts = [part.end - part.start for part in layout.parts]
    texts = np.concatenate([np.arange(singles), np.repeat(np.arange(singles, len(table)), counts)])
    positions = np.array(layout.positions, np.int64)
    places = table[texts, positions // BLOCK_TOKENS].astype(np.int64) * BLOCK_TOKENS + positions % BLOCK_TOKENS
    numbers = [np.array(layout.ids, np.int64), positions, places, np.array(layout.logit_rows, np.int64)]
    ids, own_positions, slots, logit_rows = _send(numbers, torch.int64, device)
    batch = Batch(
        input_ids=ids.unsqueeze(0),
        positions=own_positions.unsqueeze(0),
        slots=slots,
        groups=[],
        logit_rows=logit_rows,
        logits=len(layout.logit_rows),
        fresh_blocks=slots[:0],
    )
    pages, lengths = _send([table, positions[:singles] + 1], torch.int32, device)
    rows = Singles(pages[:singles], lengths) if singles else None
    return batch, StepRows(slots, rows, _parts(layout.parts, singles, pages[singles:]))


def build_parts(parts: Many[Part], first: int, device: torch.device) -> Parts | None:
    """The tensors of parts that begin at row `first` of the batch; None without any."""
    (table,) = _send([_table([part.blocks for part in parts])], torch.int32, device)
    return _parts(parts, first, table)


def part_tiles(parts: Many[Part], first: int) -> NDArray[np.int32]:
    """[tiles, 4], as in `prefill_attention`, of parts that begin at row `first` of the batch."""
    tiles = []
    for index, part in enumerate(parts):
        starts = range(part.start, part.end, QUERY_TILE)
        tiles += [(index, first + at - part.start, min(QUERY_TILE, part.end - at), at) for at in starts]
        first += part.end - part.start
    return np.array(tiles, np.int32).reshape(-1, 4)


def _parts(parts: Many[Part], first: int, table: Tensor) -> Parts | None:
    if not parts:
        return None
    counts = [part.end - part.start for part in parts]
    numbers = [np.array([part.end for part in parts]), np.cumsum([0, *counts]), part_tiles(parts, first)]
    lengths, bounds, tiles = _send(numbers, torch.int32, table.device)
    return Parts(first, table, lengths, bounds, max(counts), tiles)


def _logit_rows(spans: Many[Span], cuts: Many[int], singles: int) -> list[int]:
    rows: list[int] = []
    single, part = 0, singles
    for span, cut in zip(spans, cuts, strict=True):
        rows.extend(
            single + position - cut if position >= cut else part + position - span.start for position in span.logits
        )
        single += span.end - cut
        part += cut - span.start
    return rows


def _table(blocks: Many[list[int]]) -> NDArray[np.int32]:
    """[N, n], padded with block 0."""
    width = -(-max(map(len, blocks), default=1) // TABLE_STEP) * TABLE_STEP
    table = np.zeros((len(blocks), width), np.int32)
    for row, own in zip(table, blocks, strict=True):
        row[: len(own)] = own
    return table


def _send(arrays: Many[NDArray[Any]], dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """The arrays on the device, by one copy.

    Each begins at a multiple of 16 bytes: kernels are compiled anew for a pointer that does not.
    """
    sizes = [-(-array.size // 4) * 4 for array in arrays]
    host = np.zeros(sum(sizes), np.int64 if dtype == torch.int64 else np.int32)
    starts = np.cumsum([0, *sizes])
    for array, start in zip(arrays, starts, strict=False):
        host[start : start + array.size] = array.ravel()
    sent = torch.split(to_device(host, dtype, device), sizes)
    return [own[: array.size].view(array.shape) for own, array in zip(sent, arrays, strict=True)]
