"""Training data: the corpus as token ids, packed into rows, the same for a seed however many processes make it."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import count, islice
from multiprocessing import get_context
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from lmtool.tiny.recipe.corpus import documents
from lmtool.tiny.recipe.document import Document

PART = 1_000
"""Documents of a part: a run goes on with the part after the last one that it has begun."""
SEEDS = 1_000_003
"""Parts of a seed before those of the next one begin."""
LOOKAHEAD = 48
"""Documents among which the next one of a row is chosen, to leave little padding."""

Encoded = tuple[list[int], list[bool]]
"""A document's token ids, and which of them are targets."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of packed documents."""

    ids: Tensor
    """[B, T] int64."""
    is_target: Tensor
    """[B, T] bool, true where the model is trained to write this token."""
    document: Tensor
    """[B, T] int64, number of the document within the row; padding has numbers of its own."""

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on a device."""
        return Batch(self.ids.to(device), self.is_target.to(device), self.document.to(device))


def encode(tokenizer: Tokenizer, document: Document) -> Encoded:
    """Return a document's token ids, and which of them are targets."""
    ids: list[int] = []
    is_target: list[bool] = []
    for segment in document.segments():
        tokens = tokenizer.encode(segment.text).ids
        ids += tokens
        is_target += [segment.is_target] * len(tokens)
    return ids, is_target


@cache
def _tokenizer(file: Path) -> Tokenizer:
    return Tokenizer.from_file(str(file))


def part(file: Path, seed: int, number: int) -> list[Encoded]:
    """Return part `number` of the corpus of a seed. file: the tokenizer's."""
    return [encode(_tokenizer(file), one) for one in islice(documents(seed * SEEDS + number), PART)]


class Source:
    """Encoded documents without an end, part by part; other processes work ahead if there are any."""

    def __init__(self, file: Path, seed: int, *, first: int = 0, processes: int = 0) -> None:
        self.number = first
        """The part after the last one that was begun."""
        self._file = file
        self._seed = seed
        self._processes = processes
        self._documents = self._stream()

    def __iter__(self) -> Iterator[Encoded]:
        """Return the documents that were not yet taken."""
        return self._documents

    def _stream(self) -> Iterator[Encoded]:
        parts = self._ahead() if self._processes else (part(self._file, self._seed, n) for n in count(self.number))
        for one in parts:
            self.number += 1
            yield from one

    def _ahead(self) -> Iterator[list[Encoded]]:
        with ProcessPoolExecutor(self._processes, get_context("spawn")) as pool:
            numbers = count(self.number)
            waiting: deque[Future[list[Encoded]]] = deque()
            while True:
                while len(waiting) < 2 * self._processes:
                    waiting.append(pool.submit(part, self._file, self._seed, next(numbers)))
                yield waiting.popleft().result()


def batches(source: Source, tokens: int, narrow: int, wide: int) -> Iterator[Batch]:
    """Yield batches of `tokens` tokens: rows of `narrow` tokens for the documents that fit, of `wide` for the others.

    A document that is longer than a wide row is cut.
    """
    waiting: dict[int, list[Encoded]] = {narrow: [], wide: []}
    lengths = {narrow: 0, wide: 0}
    for one in source:
        width = narrow if len(one[0]) <= narrow else wide
        waiting[width].append(one)
        lengths[width] += min(len(one[0]), wide)
        if lengths[width] >= tokens and len(waiting[width]) >= LOOKAHEAD + tokens // width:
            yield _pack(waiting[width], tokens // width, width)
            lengths[width] = sum(min(len(ids), wide) for ids, _ in waiting[width])


def _pack(waiting: list[Encoded], rows: int, width: int) -> Batch:
    batch = Batch(
        torch.zeros(rows, width, dtype=torch.long),
        torch.zeros(rows, width, dtype=torch.bool),
        torch.arange(1, width + 1).neg().repeat(rows, 1),
    )
    for row in range(rows):
        _fill_row(batch, row, waiting)
    return batch


def _fill_row(batch: Batch, row: int, waiting: list[Encoded]) -> None:
    width = batch.ids.size(1)
    at, number = 0, 0
    while at < width:
        room = width - at
        fitting = [place for place, (ids, _) in enumerate(waiting[:LOOKAHEAD]) if at == 0 or len(ids) <= room]
        if not fitting:
            return
        place = fitting[0] if room > width // 4 else max(fitting, key=lambda place: len(waiting[place][0]))
        ids, is_target = waiting.pop(place)
        end = min(at + len(ids), width)
        batch.ids[row, at:end] = torch.tensor(ids[: end - at])
        batch.is_target[row, at:end] = torch.tensor(is_target[: end - at])
        batch.document[row, at:end] = number
        at, number = end, number + 1
