"""Training data: the corpus as token ids, packed into rows, the same for a seed however many processes make it."""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import count, islice
from multiprocessing import get_context
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from tests.tiny.recipe.corpus import documents
from tests.tiny.recipe.document import Document

PART = 1_000
"""Documents of a part: a run goes on with the part after the last one that it has begun."""
SEEDS = 1_000_003
"""Parts of a seed before those of the next one begin."""
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

    @property
    def targets(self) -> Tensor:
        """[B, T - 1] bool, whether the token after each one is a target of the same document."""
        return self.is_target[:, 1:] & (self.document[:, 1:] == self.document[:, :-1])

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

    def close(self) -> None:
        """End the other processes, here: a collector of garbage may run in a thread that cannot wait for them."""
        self._documents.close()

    def _stream(self) -> Generator[Encoded, None, None]:
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


def batches(source: Source, tokens: int, narrow: int, wide: int) -> Iterator[list[Batch]]:
    """Yield the batches of one step after the other, `tokens` tokens in all.

    Documents that fit stand in rows of `narrow` tokens, the others in rows of `wide`: in each step as many of both as
    there are in the corpus. A document that is longer than a wide row is cut.
    """
    waiting: dict[int, list[Encoded]] = {narrow: [], wide: []}
    length = 0
    for one in source:
        waiting[narrow if len(one[0]) <= narrow else wide].append(one)
        length += min(len(one[0]), wide)
        if length >= 2 * tokens:
            wide_rows = round(tokens * _length(waiting[wide], wide) / length / wide)
            rows = {narrow: (tokens - wide_rows * wide) // narrow, wide: wide_rows}
            yield [_pack(waiting[width], waiting[narrow], rows[width], width) for width in waiting if rows[width]]
            length = sum(_length(documents, wide) for documents in waiting.values())


def _length(documents: Sequence[Encoded], most: int) -> int:
    return sum(min(len(ids), most) for ids, _ in documents)


def _pack(firsts: list[Encoded], others: list[Encoded], rows: int, width: int) -> Batch:
    """Take documents from the lists for a batch. firsts: those that rows begin with, in their order."""
    batch = Batch(
        torch.zeros(rows, width, dtype=torch.long),
        torch.zeros(rows, width, dtype=torch.bool),
        torch.arange(1, width + 1).neg().repeat(rows, 1),
    )
    for row in range(rows):
        at, number = 0, 0
        chosen: Encoded | None = firsts.pop(0) if firsts else None
        while chosen is not None:
            ids, is_target = chosen
            end = min(at + len(ids), width)
            batch.ids[row, at:end] = torch.tensor(ids[: end - at])
            batch.is_target[row, at:end] = torch.tensor(is_target[: end - at])
            batch.document[row, at:end] = number
            at, number = end, number + 1
            chosen = _longest(others, width - at)
    return batch


def _longest(documents: list[Encoded], room: int) -> Encoded | None:
    """Take the longest document that fits from the list."""
    places = [place for place, (ids, _) in enumerate(documents) if len(ids) <= room]
    return documents.pop(max(places, key=lambda place: len(documents[place][0]))) if places else None
