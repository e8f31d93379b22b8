"""The numbers of a step where captured passes read them; the host sends what has changed since the step before.

Letters: T rows of a graph's batch, S of them single queries, which come first, n pages of the longest text.

A step that follows its predecessor needs next to nothing: the passes count positions on by themselves, and look up in
the texts' tables where keys and values go. What the device has is mirrored on the host, and a step's numbers are
compared with that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from lmtool.inference.engine.cuda.kernels.elementwise import place_rows
from lmtool.inference.engine.cuda.step_rows import TABLE_STEP, part_tiles
from lmtool.inference.engine.device import to_device
from lmtool.inference.engine.kv_cache import BLOCK_TOKENS

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    from numpy.typing import NDArray
    from torch import Tensor

    from lmtool.inference.engine.cuda.step_rows import Layout
    from lmtool.inference.engine.plan import Sequence

_ALIGNED = 64
"""Each kind of number begins at a multiple of this many."""

_UNKNOWN = -1
"""In the mirror: a number that the device has and the host has not."""


@dataclass(frozen=True, slots=True)
class GraphSize:
    """The shape of a captured batch."""

    singles: int
    """S"""
    part_tokens: int = 0
    """Rows of parts of prompts, behind those of single queries."""
    tiles: int = 0
    """See `Parts.tiles`."""
    logits: int = 0
    """Rows of logits; at least 1, and S where there are no parts."""

    @property
    def tokens(self) -> int:
        """T."""
        return self.singles + self.part_tokens


@dataclass(slots=True)
class _Text:
    """A text whose pages are in the table."""

    row: int
    blocks: list[int]
    """The text's own list: as long as it is this one, it only grows, but for what becomes a prefix."""
    sent: int
    """How many of its blocks the device has."""
    prefixes: int
    """How many of its chunks were in the prefix cache by then: of each new one the blocks may be others."""
    step: int
    """The last step that had rows of it."""


class GraphRows:
    """Tensors that stay in place, for all graphs of a model."""

    def __init__(self, sizes: Many[GraphSize], texts: int, context: int, device: torch.device) -> None:
        """sizes: of the graphs. texts: most texts of a step. context: positions of the longest one."""
        self._device = device
        self._width = -(-context // (BLOCK_TOKENS * TABLE_STEP)) * TABLE_STEP
        tokens = max(size.tokens for size in sizes)
        singles = max(size.singles for size in sizes)
        counts = {
            "ids": tokens,
            "lengths": tokens,
            "texts": tokens,
            "logits": max(size.logits for size in sizes),
            "tiles": 4 * max(size.tiles for size in sizes),
            "table": texts * self._width,
        }
        padded = [-(-count // _ALIGNED) * _ALIGNED for count in counts.values()]
        starts = np.cumsum([0, *padded])
        self._at = dict(zip(counts, starts.tolist(), strict=False))
        self._device_numbers = torch.zeros(int(starts[-1]), dtype=torch.int32, device=device)
        self._mirror = np.zeros(int(starts[-1]), np.int32)
        self._free = list(range(texts))
        self._texts: dict[int, _Text] = {}
        self._step = 0
        self._expected: tuple[GraphSize, list[Sequence], list[int]] | None = None
        """The size, texts and positions of a step of single queries that the device has rows and lengths of already."""
        self._changes: list[tuple[NDArray[np.int64], NDArray[np.int32]]] = []
        views = {name: self._device_numbers[self._at[name] :][:count] for name, count in counts.items()}
        self._ids, self._lengths, self._row_texts = views["ids"], views["lengths"], views["texts"]
        self._logit_rows, self._tiles = views["logits"], views["tiles"].view(-1, 4)
        self._order = torch.arange(singles, device=device)
        self.table = views["table"].view(texts, self._width)
        """[texts, n] int32, the pages of every text that was in one of the last steps."""
        self.input_ids, self.positions, self.slots = torch.zeros(3, tokens, dtype=torch.int64, device=device)
        """[T] int64 each, once `enqueue` has run."""
        self.text_lengths = torch.zeros(singles, dtype=torch.int32, device=device)
        """[S] int32, see `Singles.lengths`."""
        self.pages = torch.zeros(singles, self._width, dtype=torch.int32, device=device)
        """[S, n] int32, see `Singles.table`."""

    def enqueue(self, size: GraphSize) -> None:
        """Queue the work that fills the public tensors with the rows of the step that was sent last. Captured."""
        place_rows(
            self._ids[: size.tokens], self._lengths[: size.tokens], self._row_texts[: size.tokens], self.table,
            self.input_ids, self.positions, self.slots, self.text_lengths[: size.singles], self.pages, BLOCK_TOKENS,
        )  # fmt: skip

    def logit_rows(self, size: GraphSize) -> Tensor:
        """[logits] int64, which rows' logits are needed, in the order of the plan."""
        return self._logit_rows[: size.logits].long() if size.part_tokens else self._order[: size.logits]

    def tiles(self, size: GraphSize) -> Tensor:
        """[tiles, 4] int32, see `prefill_attention`; those behind the last one have no queries."""
        return self._tiles[: size.tiles]

    def send(self, layout: Layout, size: GraphSize, ids: Tensor | None = None) -> None:
        """Queue the copy of a step's numbers, which fit the size; its graph must run next.

        ids: [T] int64 on the device, in place of the layout's own; of a step of single queries.
        """
        self._step += 1
        singles = len(layout.singles)
        table_rows = self._table_rows([*layout.singles, *layout.part_texts])
        if self._expected != (size, layout.singles, layout.positions):
            self._write_rows(layout, size, np.array(table_rows, np.int32))
        if ids is None:
            self._write("ids", _spread(np.array(layout.ids, np.int32), singles, size))
        self._flush()
        following = [position + 1 for position in layout.positions]
        self._expected = None if size.part_tokens else (size, layout.singles, following)
        if ids is not None:
            self._ids[:singles].copy_(ids)
            self._mirror[self._at["ids"] :][:singles] = _UNKNOWN

    def follow(self, size: GraphSize) -> None:
        """Note that a graph of this size was queued: it has counted its single queries on."""
        lengths = self._mirror[self._at["lengths"] :][: size.singles]
        lengths += lengths > 0

    def rewind(self, size: GraphSize) -> None:
        """Let the next graph of this size repeat the step that was queued last, which was of this size."""
        self._lengths[: size.singles].copy_(self.text_lengths[: size.singles])
        lengths = self._mirror[self._at["lengths"] :][: size.singles]
        lengths -= lengths > 0

    def forget(self) -> None:
        """Send everything again at the next step: what the device has is not known."""
        self._mirror.fill(_UNKNOWN)
        self._expected = None
        self._free.extend(text.row for text in self._texts.values())
        self._texts.clear()
        self._changes.clear()

    def _write_rows(self, layout: Layout, size: GraphSize, texts: NDArray[np.int32]) -> None:
        """Note which text each row is of, and how long that is. texts: the table's row of each."""
        singles, counts = len(layout.singles), [part.end - part.start for part in layout.parts]
        self._write("texts", _spread(np.repeat(texts, [1] * singles + counts) if counts else texts, singles, size))
        self._write("lengths", _spread(np.array(layout.positions, np.int32) + 1, singles, size))
        if size.part_tokens:
            self._write_parts(layout, size, texts[singles:])

    def _write_parts(self, layout: Layout, size: GraphSize, texts: NDArray[np.int32]) -> None:
        """Note the tiles of parts, and which rows' logits are needed. texts: the table's row of each part."""
        own = part_tiles(layout.parts, size.singles)
        own[:, 0] = texts[own[:, 0]]
        tiles = np.zeros((size.tiles, 4), np.int32)
        tiles[: len(own)] = own
        self._write("tiles", tiles.ravel())
        needed, singles = np.array(layout.logit_rows, np.int32), len(layout.singles)
        logit_rows = np.zeros(size.logits, np.int32)
        logit_rows[: len(needed)] = np.where(needed < singles, needed, needed + size.singles - singles)
        self._write("logits", logit_rows)

    def _table_rows(self, texts: Many[Sequence]) -> list[int]:
        """The table's row of each text, once what is new of its pages is noted."""
        known, step = self._texts, self._step
        rows: list[int] = []
        places: list[int] = []
        pages: list[int] = []
        for text in texts:
            own = known.get(text.number) or self._place(text, texts)
            own.step = step
            rows.append(own.row)
            blocks, prefixes = text.blocks, len(text.prefixes)
            if own.blocks is blocks and own.sent == len(blocks) and own.prefixes == prefixes:
                continue
            first = 0
            if own.blocks is blocks and own.sent <= len(blocks):
                # chunks that were prefixes before stay: n have n blocks or more
                first = own.sent if own.prefixes == prefixes else min(own.prefixes, prefixes)
            start = own.row * self._width
            places += range(start + first, start + len(blocks))
            pages += blocks[first:]
            own.blocks, own.prefixes, own.sent = blocks, prefixes, len(blocks)
        if pages:
            self._write_at(np.array(places) + self._at["table"], np.array(pages, np.int32))
        return rows

    def _place(self, text: Sequence, texts: Many[Sequence]) -> _Text:
        """A row of the table for a text that has none: a free one, or that of the text that was away longest.

        texts: all of this step.
        """
        if not self._free:
            for other in texts:
                if (own := self._texts.get(other.number)) is not None:
                    own.step = self._step
            oldest = min(self._texts, key=lambda number: self._texts[number].step)
            assert self._texts[oldest].step < self._step, "a step of more texts than there are rows"
            self._free.append(self._texts.pop(oldest).row)
        self._texts[text.number] = own = _Text(self._free.pop(), [], 0, 0, self._step)
        return own

    def _write(self, kind: str, numbers: NDArray[np.int32]) -> None:
        """Note those of the first numbers of this kind that the device does not have."""
        first = self._at[kind]
        (changed,) = (self._mirror[first : first + len(numbers)] != numbers).nonzero()
        if len(changed):
            self._change(changed + first, numbers[changed])

    def _write_at(self, places: NDArray[np.int64], numbers: NDArray[np.int32]) -> None:
        """The same of the numbers at these places."""
        changed = self._mirror[places] != numbers
        if changed.any():
            self._change(places[changed], numbers[changed])

    def _change(self, places: NDArray[np.int64], numbers: NDArray[np.int32]) -> None:
        """Note numbers to send, each to another place."""
        self._changes.append((places, numbers))
        self._mirror[places] = numbers

    def _flush(self) -> None:
        """Queue one copy of all changes, from memory that torch does not use again before the copy is done."""
        if not self._changes:
            return
        where, values = zip(*self._changes, strict=True)
        self._changes.clear()
        pairs = to_device(np.stack([np.concatenate(where), np.concatenate(values)]), torch.int64, self._device)
        self._device_numbers.index_copy_(0, pairs[0], pairs[1].int())


def _spread(numbers: NDArray[np.int32], singles: int, size: GraphSize) -> NDArray[np.int32]:
    """[T] numbers of a graph's rows, 0 for padding. numbers: of the step's rows, those of `singles` queries first."""
    if singles == size.tokens:
        return numbers
    spread = np.zeros(size.tokens, np.int32)
    spread[:singles] = numbers[:singles]
    spread[size.singles : size.singles + len(numbers) - singles] = numbers[singles:]
    return spread
