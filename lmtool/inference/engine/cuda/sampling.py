"""Samples by the kernels of `kernels.sampling`: all data about the rows is copied to the GPU at once, once a step.

Data that stays the same from step to step is written once a stream, see `RowState`: its record, its bias and its counts
are tensors on the device, which records refer to by address. `GraphSampling` samples in captured decode steps, by the
same kernels and to the same bits, from records sent before the replay: a program whose record samples nothing returns
at once, and so do those of top-k, top-p and min-p for a row without them.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import is_
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lmtool.inference.engine.cuda.kernels import sampling as kernels
from lmtool.inference.engine.device import overwrite, to_device
from lmtool.inference.engine.sampling_row import Row, TokenCounts, uniforms

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from lmtool.core.types import SamplingParams


_MIN_TEMPERATURE = 1e-5
_MODES = {"raw": 0, "biased": 1, "processed": 2}
_SCRATCH = 2**28
"""Bytes for candidates of top-k, top-p and min-p; larger batches are sampled in parts."""

_CANDIDATE_BYTES = 12
"""Bytes of `_SCRATCH` for a row and a token of the vocabulary."""

RECORD = np.dtype(
    [(name, np.int64) for name in ("row", "target", "mode", "mask")]
    + [(name, np.float64) for name in ("uniform", "heat")]
    + [("top_k", np.int64)]
    + [(name, np.float64) for name in ("top_p", "min_p", "repetition", "presence", "frequency")]
    + [(name, np.int64) for name in ("bias", "barred", "counts", "random")]
)
"""Sampling parameters of a row, as the kernels read them.

row: of the logits; below 0, nothing is sampled. target: the id to score, or -1. mode: of log-probabilities, 0 raw, 1
biased, 2 processed. mask: which of the batch's, or -1. heat: one by the temperature; 1 without. bias, barred, counts:
addresses on the device, or 0: [V] float32; [ceil(V / 32)] int32, a bit for each id that may not be sampled; [V] int32,
twice how often an id was generated, and 1 more where the prompt has it. random: 0 takes the likeliest id.
"""


@dataclass(slots=True, eq=False)
class DeviceRow:
    """Data of a row that the kernels need from step to step; it lives at least until its row is sampled."""

    record: bytes
    """But for row, mask and uniform number."""
    params: SamplingParams
    barred: Collection[int]
    tensors: tuple[Tensor, ...]
    """Tensors that the record refers to by address."""
    counts: TokenCounts | None
    """With penalties alone."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a batch that were sampled together; nothing of it was read."""

    members: list[int]
    """[n], which rows."""
    tokens: Tensor
    """[n] int64, of the vocabulary also for a row that is no distribution."""
    results: Tensor
    """[n, 4] int32, see `kernels.sampling.Samples`."""
    listed: list[int]
    """Indices of the rows with other alternatives than the likeliest id."""
    logprobs: Tensor | None
    """[len(listed), V] float32, of every id; None where none are listed."""
    counts: list[tuple[TokenCounts, int] | None]
    """[n], those that the kernel adds the token to, and the token's index in its stream; empty for none anywhere."""


def most_cut_rows(vocabulary: int) -> int:
    """Rows with top-k, top-p or min-p that are sampled together at most."""
    return max(1, _SCRATCH // (_CANDIDATE_BYTES * vocabulary))


def sampling_bytes(rows: int, vocabulary: int) -> int:
    """Bytes on the device that this many rows need at most, without what streams keep."""
    return _CANDIDATE_BYTES * vocabulary * min(rows, most_cut_rows(vocabulary))


def sample_rows(logits: Tensor, rows: Sequence[Row], members: list[int]) -> list[Part]:
    """Sample those of the rows, at least one, that are members; nothing is read, and the logits stay as they are.

    logits: [R, V], float32 or bfloat16, one row for each of `rows`. One part, but for large batches.
    """
    cuts = any(has_cut(rows[i]) for i in members)
    most = most_cut_rows(logits.shape[1]) if cuts else len(members)
    return [_sample_part(logits, rows, members[at : at + most], cuts=cuts) for at in range(0, len(members), most)]


def _sample_part(logits: Tensor, rows: Sequence[Row], members: list[int], *, cuts: bool) -> Part:
    own = [rows[i] for i in members]
    states = device_rows(own, logits.shape[1], logits.device)
    table, masks = _upload(logits, own, members, states)
    samples = kernels.sample_rows(logits, table, masks, cuts=cuts)
    listed = [at for at, row in enumerate(own) if row.lists]
    logprobs = None
    if listed:
        places = to_device(listed, torch.int64, logits.device)
        logprobs = kernels.all_logprobs(logits, table, masks, samples.shapes, places)
    counts = counted(own, states)
    if any(counts):  # after all that reads the counts of this step
        kernels.count_tokens(table, samples.results)
    return Part(members, samples.tokens, samples.results, listed, logprobs, counts)


def has_cut(row: Row) -> bool:
    """True if top-k, top-p or min-p may leave out tokens that would be drawn."""
    return row.target is None and row.params.temperature > 0 and row.truncates


def device_rows(rows: Sequence[Row], vocabulary: int, device: torch.device) -> list[DeviceRow | None]:
    """Data of each row for the kernels, its stream's tokens counted up to now; None for a row that is scored."""
    return [None if row.target is not None else _device_row(row, vocabulary, device) for row in rows]


def counted(rows: Sequence[Row], states: Sequence[DeviceRow | None]) -> list[tuple[TokenCounts, int] | None]:
    """See `Part.counts`."""
    return [
        None if state is None or state.counts is None else (state.counts, row.position)
        for row, state in zip(rows, states, strict=True)
    ]


def write_records(
    records: NDArray[Any], rows: Sequence[Row], places: list[int], states: Sequence[DeviceRow | None]
) -> None:
    """Fill the records of n rows, but for their masks. records: [n] of `RECORD`. places: their rows of the logits."""
    joined = b"".join([_SCORED if state is None else state.record for state in states])
    records[:] = np.frombuffer(joined, RECORD)
    records["row"] = places
    records["uniform"] = random_numbers(rows)
    if None in states:
        records["target"] = [-1 if row.target is None else row.target for row in rows]


def random_numbers(rows: Sequence[Row]) -> NDArray[np.float64]:
    """The uniform number of each row."""
    return uniforms([row.seed for row in rows], [row.position for row in rows])


def _upload(
    logits: Tensor, rows: Sequence[Row], places: list[int], states: Sequence[DeviceRow | None]
) -> tuple[Tensor, Tensor]:
    """The records of n rows, [n, 16] int64, and their masks, [m, ceil(V / 32)] int32, in one copy."""
    size, words = len(rows) * len(RECORD.names or ()), -(-logits.shape[1] // 32)
    masked = [
        (at, row.allowed.numpy()) for at, row in enumerate(rows) if row.allowed is not None and row.target is None
    ]
    packed = np.zeros(size + -(-max(len(masked), 1) * words // 2), np.int64)
    records, masks = packed[:size].view(RECORD), packed[size:].view(np.int32)
    write_records(records, rows, places, states)
    for index, (at, mask) in enumerate(masked):
        records["mask"][at] = index
        masks[index * words : (index + 1) * words] = mask
    moved = to_device(packed, torch.int64, logits.device)
    count = max(len(masked), 1)
    return moved[:size].view(len(rows), -1), moved[size:].view(torch.int32)[: count * words].view(count, words)


def _device_row(row: Row, vocabulary: int, device: torch.device) -> DeviceRow:
    """Device data of the row's stream, its tokens counted up to now; new for a row without a stream."""
    state = row.state
    own = None if state is None else state.on_device
    if not isinstance(own, DeviceRow) or own.params is not row.params or own.barred != row.barred:
        own = _new_device_row(row, vocabulary, device, own.counts if isinstance(own, DeviceRow) else None)
        if state is not None:
            state.on_device = own
    if own.counts is not None and state is not None:
        own.counts.update(state.tokens, state.prompt_length, row.position)
    return own


def _new_device_row(row: Row, vocabulary: int, device: torch.device, counts: TokenCounts | None) -> DeviceRow:
    params, bias = row.params, None
    if row.bias is not None:
        bias = torch.zeros(vocabulary, dtype=torch.float32, device=device)
        bias.index_put_((row.bias.ids,), row.bias.values, accumulate=True)
    barred = None
    if row.barred:
        bits = np.zeros(-(-vocabulary // 32) * 32, np.uint8)
        bits[list(row.barred)] = 1
        barred = to_device(np.packbits(bits, bitorder="little").view(np.int32), torch.int32, device)
    if counts is None and row.penalises:
        known = (row.known_ids, row.counts) if row.state is None else ((), {})
        counts = TokenCounts.of(*known, vocabulary, device)
    random = params.temperature > 0
    record = np.zeros((), RECORD)
    record["target"], record["mask"], record["mode"], record["random"] = -1, -1, _MODES[params.logprobs_mode], random
    record["heat"] = np.float32(1) / np.float32(max(params.temperature, _MIN_TEMPERATURE)) if random else 1
    record["top_k"] = params.top_k if 0 < params.top_k < vocabulary else 0
    record["top_p"], record["min_p"], record["repetition"] = params.top_p, params.min_p, params.repetition_penalty
    record["presence"], record["frequency"] = params.presence_penalty, params.frequency_penalty
    named = {"bias": bias, "barred": barred, "counts": None if counts is None else counts.counts}
    for name, tensor in named.items():
        record[name] = 0 if tensor is None else tensor.data_ptr()
    tensors = tuple(tensor for tensor in named.values() if tensor is not None)
    return DeviceRow(record.tobytes(), params, row.barred, tensors, counts)


def _scored() -> bytes:
    record = np.zeros((), RECORD)
    record["mask"], record["heat"], record["top_p"], record["repetition"] = -1, 1, 1, 1
    return record.tobytes()


_SCORED = _scored()
"""The record of a row that scores an id: its raw log-probability."""


class GraphSampling:
    """The records of a captured step's rows, and what was sampled by them; the tensors stay in place."""

    def __init__(self, rows: int, vocabulary: int, device: torch.device) -> None:
        """rows: of the largest captured step."""
        self._vocabulary, self._device = vocabulary, device
        self._table = torch.zeros(rows, len(RECORD.names or ()), dtype=torch.int64, device=device)
        self._table[:, 0] = -1
        self._masks = torch.zeros(1, -(-vocabulary // 32), dtype=torch.int32, device=device)
        """None is named by a record."""
        tokens = torch.zeros(rows, dtype=torch.int64, device=device)
        self._samples = kernels.Samples(tokens, *torch.zeros(2, rows, 4, dtype=torch.int32, device=device))
        self._live = 0
        """Records, from the first on, that may not be idle."""
        self._states: list[DeviceRow | None] = []
        """Device rows whose tensors the records refer to."""
        self._records = np.zeros(0, RECORD)
        """Records of the step that was sent last."""
        self._rows: Sequence[Row] = ()
        """Rows of that step, if the next step may have the same; empty if anything but random numbers changes."""
        self._draws = False
        """True if any of them needs a random number."""

    def enqueue(self, logits: Tensor) -> None:
        """Queue what samples the N rows of a captured step. Captured.

        logits: [N, V] float32, which stay as they are.
        """
        rows, table = len(logits), self._table[: len(logits)]
        samples = self._first(rows)
        kernels.sample_rows(logits, table, self._masks, cuts=self._cuts(rows), samples=samples)
        kernels.count_tokens(table, samples.results)

    def covers(self, rows: Sequence[Row], size: int) -> bool:
        """True if a captured step of `size` rows can sample all of these.

        Not those with a constraint, with processors or with other alternatives than the likeliest id, nor those that
        are scored; nor those of which ids must be taken back that were counted.
        """
        if self._repeats(rows):
            return True
        cuts = self._cuts(size)
        return all(_is_simple(row) and (cuts or not has_cut(row)) and _is_counted(row) for row in rows)

    def send(self, rows: Sequence[Row]) -> None:
        """Queue the copy of the records of a step's rows, which are covered; its graph must run next.

        A step of the same rows as the one before sends random numbers alone; where none are drawn, nothing.
        """
        count, records = len(rows), self._records
        if not self._repeats(rows):
            self._states = device_rows(rows, self._vocabulary, self._device)
            records = np.zeros(max(count, self._live), RECORD)
            records["row"] = -1
            write_records(records[:count], rows, list(range(count)), self._states)
            self._records, self._draws = records[:count], bool(records["random"].any())
            self._rows = () if any(row.penalises for row in rows) else rows
        elif self._draws:
            records["uniform"] = random_numbers(rows)
        else:
            return
        overwrite(self._table[: len(records)], records.view(np.int64).reshape(len(records), -1))
        self._live = count

    def rest(self) -> None:
        """Let the next graph sample nothing."""
        if self._live:
            self._table[: self._live, 0].fill_(-1)
            self._live, self._states, self._rows = 0, [], ()

    def result(self, rows: Sequence[Row]) -> Part:
        """Samples of these rows from the graph that was queued last, for which they were sent.

        To be read, or copied, before the next step is queued, which writes to the same memory.
        """
        samples = self._first(len(rows))
        tokens, results = samples.tokens, samples.results
        if not results.is_cuda:  # no copy is made on the way to the host
            tokens, results = tokens.clone(), results.clone()
        counts = [] if self._repeats(rows) else counted(rows, self._states)
        return Part(list(range(len(rows))), tokens, results, [], None, counts)

    def _repeats(self, rows: Sequence[Row]) -> bool:
        """True if these are the rows that were sent last, and only their positions are others."""
        return len(rows) == len(self._rows) and all(map(is_, rows, self._rows))

    def _first(self, rows: int) -> kernels.Samples:
        samples = self._samples
        return kernels.Samples(samples.tokens[:rows], samples.results[:rows], samples.shapes[:rows])

    def _cuts(self, size: int) -> bool:
        """True if a captured step of so many rows can leave out tokens: that takes memory for each row."""
        return size <= most_cut_rows(self._vocabulary)


def _is_simple(row: Row) -> bool:
    return row.target is None and row.allowed is None and row.processors is None and not row.lists


def _is_counted(row: Row) -> bool:
    """True if the device has counted all ids before the row's, where its logits depend on them."""
    if not row.penalises:
        return True
    state = row.state
    if state is None:
        return False
    own = state.on_device
    if not isinstance(own, DeviceRow) or own.counts is None:  # nothing is counted yet: all that the host knows will be
        return len(state.tokens) >= row.position
    return own.counts.follows(state.tokens, row.position)
