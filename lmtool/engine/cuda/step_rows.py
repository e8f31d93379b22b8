"""Turns a plan's plain ints into the tensors of a forward pass over pages.

Letters: T tokens of the batch, N texts.

Generated positions come first in the batch, each as one row of its own, whether it was just sampled or is computed
again; parts of prompts follow. So a position always goes through the same kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lmtool.engine.batch import Batch
from lmtool.engine.device_transfer import to_device
from lmtool.engine.kv_cache import BLOCK_TOKENS

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    from lmtool.engine.plan import Plan, Span
    from lmtool.engine.sequence import Sequence

QUERY_TILE = 64
"""Queries of a part that are computed together."""


@dataclass(frozen=True, slots=True)
class Singles:
    """The first rows of a batch: one query each."""

    table: Tensor
    """[N, n] int32, the pages of each one's text in order."""
    lengths: Tensor
    """[N] int32, positions of each one's text up to itself; 0 for a row of padding."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The other rows: consecutive queries of N texts, one part behind the other."""

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


@dataclass(frozen=True, slots=True)
class StepRows:
    """Which pages the rows of a batch attend to."""

    slots: Tensor
    """[T] int64, where each token's keys and values go; negative for a row of padding."""
    singles: Singles | None
    parts: Parts | None


@dataclass(frozen=True, slots=True)
class Place:
    """One position of a text, as a row of a batch."""

    sequence: Sequence
    token: int
    position: int


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive positions of a text, in the pages of these blocks."""

    blocks: list[int]
    start: int
    end: int


def single_rows(plan: Plan) -> list[Place] | None:
    """The plan's positions, if all were generated or guessed and the logits of all are needed; else None."""
    for span in plan.spans:
        if span.start < span.sequence.chunked_length or len(span.logits) != span.count:
            return None
    return [place for span in plan.spans for place in _places(span, span.start, span.end)]


def build(plan: Plan, device: torch.device) -> tuple[Batch, StepRows]:
    """The tensors of a plan; one copy for the tokens, one for each table."""
    cuts = [min(max(span.sequence.chunked_length, span.start), span.end) for span in plan.spans]
    spans = list(zip(plan.spans, cuts, strict=True))
    singles = [place for span, cut in spans for place in _places(span, cut, span.end)]
    parts = [Part(span.sequence.blocks, span.start, cut) for span, cut in spans if cut > span.start]
    places = singles + [place for span, cut in spans for place in _places(span, span.start, cut)]
    rows = _logit_rows(plan.spans, cuts, len(singles))
    tokens = len(places)
    packed = to_device(
        [
            *(place.token for place in places),
            *(place.position for place in places),
            *(slot(place) for place in places),
            *rows,
        ],
        torch.int64,
        device,
    )
    ids, positions, slots, logit_rows = torch.split(packed, [tokens, tokens, tokens, len(rows)])
    batch = Batch(
        input_ids=ids.unsqueeze(0),
        positions=positions.unsqueeze(0),
        slots=slots,
        groups=[],
        logit_rows=logit_rows,
        logits=len(rows),
        fresh_blocks=slots[:0],
    )
    return batch, StepRows(slots, _singles(singles, device), build_parts(parts, len(singles), device))


def _places(span: Span, start: int, end: int) -> list[Place]:
    ids = span.sequence.ids(start, end)
    return [Place(span.sequence, token, position) for token, position in zip(ids, range(start, end), strict=True)]


def slot(place: Place) -> int:
    """Where a position's keys and values go."""
    return place.sequence.blocks[place.position // BLOCK_TOKENS] * BLOCK_TOKENS + place.position % BLOCK_TOKENS


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


def _singles(places: Many[Place], device: torch.device) -> Singles | None:
    if not places:
        return None
    lengths = [place.position + 1 for place in places]
    return Singles(_table([place.sequence.blocks for place in places], device), to_device(lengths, torch.int32, device))


def build_parts(parts: Many[Part], first: int, device: torch.device) -> Parts | None:
    """The tensors of parts that begin at row `first` of the batch; None without any."""
    if not parts:
        return None
    bounds, tiles = [0], []
    for index, part in enumerate(parts):
        for start in range(part.start, part.end, QUERY_TILE):
            row = first + bounds[-1] + start - part.start
            tiles.append((index, row, min(QUERY_TILE, part.end - start), start))
        bounds.append(bounds[-1] + part.end - part.start)
    return Parts(
        first=first,
        table=_table([part.blocks for part in parts], device),
        lengths=to_device([part.end for part in parts], torch.int32, device),
        bounds=to_device(bounds, torch.int32, device),
        longest=max(part.end - part.start for part in parts),
        tiles=to_device(np.array(tiles, np.int32), torch.int32, device),
    )


def _table(blocks: Many[list[int]], device: torch.device) -> Tensor:
    """[N, n] int32, padded with block 0."""
    table = np.zeros((len(blocks), max(map(len, blocks))), np.int32)
    for row, own in zip(table, blocks, strict=True):
        row[: len(own)] = own
    return to_device(table, torch.int32, device)
