"""Long lists of small records in little memory."""

from __future__ import annotations

import marshal
import zlib
from io import BytesIO
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

_BLOCK = 2**13
"""Bytes that are compressed together. Fields repeat from record to record, so little is left of them."""


class PackedList(Generic[T]):
    """Records in order, each unpacked anew when it is read; one after the other, not at random."""

    __slots__ = ("_blocks", "_count", "_latest", "_make")

    def __init__(self, make: Callable[..., T]) -> None:
        """make: the record of its fields."""
        self._make = make
        self._blocks: list[bytes] = []
        self._latest = bytearray()
        self._count = 0

    def append(self, *fields: Any) -> None:  # noqa: ANN401 - what `marshal` takes
        """Add a record of these fields: JSON values, bytes, and tuples of them."""
        self._latest += marshal.dumps(fields)
        self._count += 1
        if len(self._latest) >= _BLOCK:
            self._blocks.append(zlib.compress(self._latest, 1))
            self._latest = bytearray()

    def __len__(self) -> int:
        """Number of records."""
        return self._count

    def __iter__(self) -> Iterator[T]:
        """Unpack each record."""
        for block in (*self._blocks, None):
            data = self._latest if block is None else zlib.decompress(block)
            file = BytesIO(data)
            while file.tell() < len(data):
                yield self._make(*marshal.load(file))  # noqa: S302 - of `append`, never from outside

    def __getitem__(self, place: int) -> T:
        """Unpack one record, from 0; as slow as reading all before it. Raises `IndexError`."""
        for record in islice(self, place, None):
            return record
        raise IndexError(place)
