"""Steps as CUDA graphs: one captured pass for each of a few batch sizes, over numbers that stay in place.

Letters: T rows of a graph's batch, S of them single queries, which come first, n pages of the longest text.

Graphs of pure decode steps also sample, see GraphSampling. A step runs the smallest captured batch that holds it: a
pure decode batch, or one with rows for parts of prompts. Padding rows have text length 0, store nothing and sample
nothing; padding tiles have no queries.

The host sends only what has changed since the step before: passes advance the positions by themselves, and look up in
the tables of the texts where keys and values go. The host keeps a mirror of what the device has, and compares the
numbers of each step with it.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lmtool.inference.engine.cuda.forward import PagedAttention
from lmtool.inference.engine.cuda.kernels.elementwise import place_rows
from lmtool.inference.engine.cuda.kernels.tiles import CaptureStream, Replay
from lmtool.inference.engine.cuda.sampling import GraphSampling, Part, sampling_bytes
from lmtool.inference.engine.cuda.step_rows import QUERY_TILE, TABLE_STEP, Parts, Singles, StepRows, part_tiles
from lmtool.inference.engine.device import to_device
from lmtool.inference.engine.kv_cache import BLOCK_TOKENS
from lmtool.inference.engine.model_runner import Batch

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    from numpy.typing import NDArray

    from lmtool.inference.engine.cuda.attention_backends import AttentionBackend
    from lmtool.inference.engine.cuda.step_rows import Layout
    from lmtool.inference.engine.kv_cache import PagedCache
    from lmtool.inference.engine.model_runner import Forward
    from lmtool.inference.engine.plan import Sequence
    from lmtool.inference.engine.sampling_row import Row


_logger = logging.getLogger(__name__)

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
    """Rows of parts of prompts, after those of single queries."""
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
    """Number of its blocks that the device has."""
    prefixes: int
    """Number of its chunks that were in the prefix cache by then: a new one may have other blocks."""
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
        """[tiles, 4] int32, see `prefill_attention`; those after the last one have no queries."""
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
        """Note those of the numbers at these places that the device does not have."""
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


_PART_TOKENS = (64, 128, 256, 512, 1024, 2048)
"""Rows of parts of prompts in captured batches, multiples of `QUERY_TILE`: up to those of a step on a GPU."""

_PART_SINGLES = (8, 32, 128, 512)
"""Rows of single queries beside them, below those of the largest batch."""

_MOST_PARTS = 16
"""Parts of prompts in one captured batch."""

_MIXED_SECONDS = 15.0
"""Time limit for capturing batches with parts of prompts; batches not captured by then run as plain passes."""

_SPARE_MEMORY = 0.05
"""Share of the device's memory below which no more of them are captured."""

_IDLE_TEXTS = 32
"""Texts whose pages stay on the device beyond those of the largest step."""


class StepGraphs:
    """The captured passes of one model, and the tensors that they read."""

    def __init__(
        self,
        forward: Forward,
        cache: PagedCache,
        backend: AttentionBackend,
        max_rows: int,
        context: int,
        *,
        samples: bool = False,
    ) -> None:
        """max_rows: rows of the largest decode step to capture. context: positions of the longest text.

        samples: whether decode steps are to sample, too.
        """
        self._forward = forward
        self._cache = cache
        self._backend = backend
        self._samples = samples
        self._sampling: GraphSampling | None = None
        self._ended: GraphSampling | None = None
        """One that samples no more: the captured kernels still read its records."""
        self._decode = decode_sizes(max_rows)
        self._mixed = mixed_sizes(max_rows) if backend.prefill_name == "Triton" else []  # others plan on the host
        sizes = [*self._decode, *self._mixed]
        texts = max(size.singles for size in sizes) + _MOST_PARTS + _IDLE_TEXTS
        self._rows = GraphRows(sizes, texts, context, cache.device)
        self._logits = torch.empty(0, 0, device=cache.device)
        """[rows, V] float32: a graph of N rows of logits writes the first N."""
        self._graphs: dict[GraphSize, Replay] = {}
        self._stream: CaptureStream | None = None
        self.max_rows = 0
        """Rows of the largest captured decode step; 0 before `capture`."""

    @property
    def sizes(self) -> list[GraphSize]:
        """The captured batches, smaller ones first, those of decode steps alone before the others."""
        return [size for size in (*self._decode, *self._mixed) if size in self._graphs]

    @property
    def sampling(self) -> GraphSampling | None:
        """Sampler of decode steps; None if they end with their logits."""
        return self._sampling

    def capture(self) -> None:
        """Capture all batches, the larger ones first, so that the others share their memory.

        Raises what the pass or CUDA raises at those of decode steps alone; what fails at others is left out, and so is
        the sampling where that fails, and the log says so.
        """
        vocabulary = self._forward.logits(*self._step(self._decode[0])).shape[1]
        rows = max(size.logits for size in (*self._decode, *self._mixed))
        self._logits = torch.zeros(rows, vocabulary, device=self._cache.device)
        if self._samples:
            try:
                self._sampling = GraphSampling(self._decode[-1].logits, vocabulary, self._cache.device)
                self._capture_all()
            except Exception as problem:  # noqa: BLE001  # whatever it is, a step can do without
                _logger.warning("CUDA graphs end with the logits, and steps take longer: %s", problem)
                self._sampling = None
                self._graphs.clear()
        if not self._graphs:
            self._capture_all()
        self.max_rows = self._decode[-1].singles
        _logger.info(
            "captured decode steps of %s rows, and %d sizes of steps with parts of prompts",
            ", ".join(str(size.singles) for size in self._decode),
            len(self._graphs) - len(self._decode),
        )

    @property
    def logits(self) -> Tensor:
        """[rows, V] float32, those of the step that was queued last come first."""
        return self._logits

    def end_with_logits(self) -> None:
        """Let the captured steps sample nothing any more."""
        if self._sampling is not None:
            self._sampling.rest()
            self._ended, self._sampling = self._sampling, None

    def discard(self, size: GraphSize) -> None:
        """Use this captured batch no more."""
        del self._graphs[size]
        self.max_rows = max((size.singles for size in self._decode if size in self._graphs), default=0)

    def run(self, layout: Layout, ids: Tensor | None = None, size: GraphSize | None = None) -> Tensor | None:
        """Logits [R, V] float32 of a step once the device is there; None where no captured batch holds it.

        They may be changed in place, and are good until the next step is queued, which writes to the same memory.

        ids: [T] int64 on the device, in place of the layout's own. size: of the batch to use; None for the smallest.
        """
        size = size or self._fitting(layout)
        if size is None:
            return None
        if self._sampling is not None:
            self._sampling.rest()
        self._queue(layout, ids, size)
        return self._logits[: len(layout.logit_rows)]

    def sampling_size(self, rows: Many[Row]) -> GraphSize | None:
        """The captured decode step that samples these rows, see `GraphSampling.covers`; None where none does."""
        size = self._decode_size(len(rows))
        if self._sampling is None or size is None or not self._sampling.covers(rows, size.singles):
            return None
        return size

    def run_and_sample(self, layout: Layout, rows: Many[Row], size: GraphSize, ids: Tensor | None = None) -> Part:
        """Samples of a decode step, see `GraphSampling.result`.

        rows: one for each of the layout's, in order. size: of a batch that samples these. ids: as for `run`.
        """
        assert self._sampling is not None
        self._sampling.send(rows)
        self._queue(layout, ids, size)
        return self._sampling.result(rows)

    def _queue(self, layout: Layout, ids: Tensor | None, size: GraphSize) -> None:
        try:
            self._rows.send(layout, size, ids)
            self._graphs[size]()
        except BaseException:
            self._rows.forget()
            raise
        self._rows.follow(size)

    def replay(self, rows: int) -> None:
        """Repeat the last step, which was a decode step of this many rows, at most `max_rows`; for measurements."""
        size = self._decode_size(rows)
        assert size is not None
        if self._sampling is not None:
            self._sampling.rest()  # else it would count its ids again
        self._rows.rewind(size)
        self._graphs[size]()
        self._rows.follow(size)

    def _decode_size(self, rows: int) -> GraphSize | None:
        return next((size for size in self._decode if size.singles >= rows and size in self._graphs), None)

    def _fitting(self, layout: Layout) -> GraphSize | None:
        singles = len(layout.singles)
        if layout.decodes:
            return self._decode_size(singles)
        part_tokens, logits = len(layout.positions) - singles, len(layout.logit_rows)
        holding = (
            size
            for size in self._mixed
            if size.singles >= singles
            and size.part_tokens >= part_tokens
            and size.logits >= logits
            and size in self._graphs
        )
        return next(holding, None) if len(layout.parts) <= _MOST_PARTS else None

    def _capture_all(self) -> None:
        stream = self._stream = CaptureStream(self._cache.device)
        for size in reversed(self._decode):
            self._graphs[size] = stream.capture(self._pass(size))
        stream.new_pool()
        deadline = time.monotonic() + _MIXED_SECONDS
        for size in reversed(self._mixed):
            if time.monotonic() > deadline or _scarce(self._cache.device):
                _logger.info("no time or memory to capture more steps with parts of prompts")
                break
            try:
                self._graphs[size] = stream.capture(self._pass(size))
            except torch.OutOfMemoryError:
                _logger.info("no memory to capture steps with %d rows of prompts", size.part_tokens)
            except Exception as problem:  # noqa: BLE001  # a plain pass does as well
                _logger.warning("steps with parts of prompts run without CUDA graphs, and slower: %s", problem)
                break

    def _pass(self, size: GraphSize) -> Replay:
        logits = self._logits[: size.logits]

        def run() -> None:
            logits.copy_(self._forward.logits(*self._step(size)))
            if self._sampling is not None and not size.part_tokens:
                self._sampling.enqueue(logits)

        return run

    def _step(self, size: GraphSize) -> tuple[Batch, PagedAttention]:
        """Queue what fills the rows of a batch; the arguments of a pass over them."""
        rows = self._rows
        rows.enqueue(size)
        slots = rows.slots[: size.tokens]
        batch = Batch(
            input_ids=rows.input_ids[: size.tokens].unsqueeze(0),
            positions=rows.positions[: size.tokens].unsqueeze(0),
            slots=slots,
            groups=[],
            logit_rows=rows.logit_rows(size),
            logits=size.logits,
            fresh_blocks=slots[:0],
        )
        singles = Singles(rows.pages[: size.singles], rows.text_lengths[: size.singles])
        parts = None
        if size.part_tokens:
            none = rows.text_lengths[:0]  # our own kernel has all it needs in the tiles
            parts = Parts(size.singles, rows.table, none, none, size.part_tokens, rows.tiles(size), padded=True)
        return batch, PagedAttention(self._cache, StepRows(slots, singles, parts), self._backend)


def _scarce(device: torch.device) -> bool:
    """True if little of a GPU's memory is left."""
    if device.type != "cuda":
        return False
    free, total = torch.cuda.mem_get_info(device)
    return free < _SPARE_MEMORY * total


def batch_sizes(largest: int) -> list[int]:
    """1, 2, 4, then multiples of 8, up to the first that is at least `largest`."""
    sizes = (1, 2, 4, *range(8, largest + 8, 8))
    return [size for size, smaller in zip(sizes, (0, *sizes), strict=False) if smaller < largest]


def decode_sizes(max_rows: int) -> list[GraphSize]:
    """The batches of decode steps alone, smaller ones first."""
    return [GraphSize(rows, logits=rows) for rows in batch_sizes(max_rows)]


def mixed_sizes(max_rows: int) -> list[GraphSize]:
    """The batches with parts of prompts, smaller ones first. max_rows: single queries of the largest."""
    largest = batch_sizes(max_rows)[-1]
    singles = [*(rows for rows in _PART_SINGLES if rows < largest), largest]
    return [
        GraphSize(rows, tokens, tokens // QUERY_TILE + _MOST_PARTS, rows + _MOST_PARTS)
        for tokens in _PART_TOKENS
        for rows in singles
    ]


_WORKSPACE = 32 << 20
"""Bytes that cuBLAS takes for the stream of the captures, on Hopper; elsewhere less."""

_NODE_BYTES = 32 << 10
"""Memory of the device for one kernel of a graph, about; the driver does not say."""

_LAYER_NODES = 10
"""Kernels of a layer, about."""


def graph_bytes(max_rows: int, context: int, vocabulary: int, layers: int, token_bytes: int) -> int:
    """Bytes on the device that `StepGraphs` will need, an estimate from above.

    max_rows, context: as for `StepGraphs`. token_bytes: most bytes of activations that a pass holds at once for a
    token, without logits.
    """
    decode, mixed = decode_sizes(max_rows), mixed_sizes(max_rows)
    logits = max(size.logits for size in mixed) * vocabulary * 4 * 3  # what stays, and in each pool those of a pass
    texts = 2 * decode[-1].singles + _MOST_PARTS + _IDLE_TEXTS
    tables = texts * -(-context // BLOCK_TOKENS) * 4
    tokens = decode[-1].tokens + max(size.tokens for size in mixed)
    graphs = (len(decode) + len(mixed)) * layers * _LAYER_NODES * _NODE_BYTES
    sampling = sampling_bytes(decode[-1].singles, vocabulary)
    return logits + tables + tokens * token_bytes + graphs + sampling + _WORKSPACE
