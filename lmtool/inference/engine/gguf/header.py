"""Reads the header of a GGUF file: its metadata, and where each tensor lies.

Whatever a length says is compared with the file's size before it is followed, so a file that is cut off or lies costs
an error and no memory. The format: ggml's docs/gguf.md, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from lmtool.core.errors import ModelLoadError

if TYPE_CHECKING:
    from pathlib import Path

Value: TypeAlias = "bool | int | float | str | list[bool | int | float | str]"
"""A value of the metadata."""

AGAIN = "download the file again, or copy it whole"

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Type of a value to its `struct` format."""
_MOST_ENTRIES = 1 << 16
"""Keys of metadata, and tensors: of the largest models there are some thousands."""
_MOST_ITEMS = 1 << 23
"""In an array: the largest vocabularies have some 260,000 tokens, and twice as many merges."""
_MOST_DIMENSIONS = 4
_DEFAULT_ALIGNMENT, _LEAST_ALIGNMENT, _MOST_ALIGNMENT = 32, 8, 1 << 20


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Location and type of a tensor, from the header."""

    shape: tuple[int, ...]
    """Rows first: the other way round than in the file."""
    kind: int
    """Storage type: ggml's number."""
    start: int
    """Byte in the file."""


@dataclass(frozen=True, slots=True)
class GgufFile:
    """An open file. Its bytes are mapped, and read when they are needed."""

    path: Path
    data: mmap.mmap
    metadata: dict[str, Value]
    tensors: dict[str, TensorEntry] = field(repr=False)

    @property
    def architecture(self) -> str:
        """Model architecture, such as `llama`."""
        return self.text("general.architecture")

    def text(self, key: str) -> str:
        """A string of the metadata, empty where there is none. Raises `ModelLoadError` for another type."""
        value = self.metadata.get(key, "")
        if not isinstance(value, str):
            raise self.fault(f"its {key} is {value!r}; expected a text")
        return value

    def whole(self, key: str) -> int | None:
        """A whole number of the metadata; of an array in which all are the same, that one. None where there is none.

        Raises `ModelLoadError` for another type, or numbers that differ.
        """
        value = self.metadata.get(key)
        if isinstance(value, list) and value and all(one == value[0] for one in value):
            value = value[0]
        if value is not None and type(value) is not int:
            raise self.fault(f"its {key} is {str(value)[:60]}; expected a whole number, the same for all layers")
        return value

    def number(self, key: str) -> float | None:
        """A number of the metadata; None where there is none. Raises `ModelLoadError` for another type."""
        value = self.metadata.get(key)
        if value is not None and type(value) not in (int, float):
            raise self.fault(f"its {key} is {str(value)[:60]}; expected a number")
        return None if value is None else float(value)  # type: ignore[arg-type]  # checked above

    def flag(self, key: str, *, default: bool) -> bool:
        """A boolean of the metadata. Raises `ModelLoadError` for another type."""
        value = self.metadata.get(key, default)
        if not isinstance(value, bool):
            raise self.fault(f"its {key} is {str(value)[:60]}; expected true or false")
        return value

    def fault(self, what: str) -> ModelLoadError:
        """The error to raise for a file that is damaged."""
        return ModelLoadError(f"{self.path} is not a valid GGUF file: {what}", AGAIN)


def read_header(path: Path) -> GgufFile:
    """The file, with all of its header read. Raises `ModelLoadError` for a file that is not GGUF, or damaged."""
    try:
        with path.open("rb") as opened:
            start = opened.read(len(_MAGIC) + 4)
            _check_start(path, start)
            data = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)  # arrays over it count as writable
    except OSError as error:
        raise ModelLoadError(f"cannot read {path}: {error.strerror}", "check its path and rights") from error
    cursor = _Cursor(path, data)
    cursor.position = len(start)
    tensors, keys = cursor.count("tensors", _MOST_ENTRIES), cursor.count("keys", _MOST_ENTRIES)
    metadata = {}
    for _ in range(keys):
        key = cursor.text()
        metadata[key] = cursor.value(cursor.number("I"))
    entries = dict(cursor.entry() for _ in range(tensors))
    if len(metadata) != keys or len(entries) != tensors:
        raise cursor.fault("a name occurs twice")
    _place(cursor, metadata.get("general.alignment", _DEFAULT_ALIGNMENT), entries)
    return GgufFile(path, data, metadata, entries)


def _check_start(path: Path, start: bytes) -> None:
    if not start.startswith(_MAGIC):
        kind = "a Git LFS pointer" if start.startswith(b"version ") else "not a GGUF file"
        raise ModelLoadError(f"{path} is {kind}: it begins with {start[:4]!r}, not {_MAGIC!r}", AGAIN)
    if len(start) < len(_MAGIC) + 4:
        raise ModelLoadError(f"{path} is truncated: it has {len(start)} bytes", AGAIN)
    version = int.from_bytes(start[4:], "little")
    if version not in _VERSIONS:
        swapped = int.from_bytes(start[4:], "big") in _VERSIONS
        kind = "for big-endian machines" if swapped else f"GGUF of version {version}"
        raise ModelLoadError(f"{path} is {kind}; versions 2 and 3, little-endian, are read", "convert the model again")


def _place(cursor: _Cursor, alignment: Value, entries: dict[str, TensorEntry]) -> None:
    """Turn the tensors' offsets into places in the file, which must be inside of it."""
    if (
        not isinstance(alignment, int)
        or not _LEAST_ALIGNMENT <= alignment <= _MOST_ALIGNMENT
        or alignment & (alignment - 1)
    ):
        raise cursor.fault(f"its general.alignment is {str(alignment)[:60]}; expected a power of two from 8 on")
    base = -(-cursor.position // alignment) * alignment
    for name, entry in entries.items():
        if entry.start % alignment or base + entry.start > len(cursor.data):
            raise cursor.fault(f"its tensor {name} begins at byte {base + entry.start}, and it has {len(cursor.data)}")
        entries[name] = TensorEntry(entry.shape, entry.kind, base + entry.start)


@dataclass
class _Cursor:
    """Reads a header from front to back. Raises `ModelLoadError` for whatever lies beyond the end of the file."""

    path: Path
    data: mmap.mmap
    position: int = 0

    def fault(self, what: str) -> ModelLoadError:
        return ModelLoadError(f"{self.path} is not a valid GGUF file: {what}", AGAIN)

    def take(self, size: int) -> int:
        """The place of the next `size` bytes, which are skipped."""
        start = self.position
        if size > len(self.data) - start:
            raise self.fault(
                f"it is truncated or damaged: {size} bytes are expected at byte {start}, and it has {len(self.data)}"
            )
        self.position += size
        return start

    def number(self, kind: str) -> int:
        layout = struct.Struct(f"<{kind}")
        number: int = layout.unpack_from(self.data, self.take(layout.size))[0]
        return number

    def count(self, what: str, most: int) -> int:
        number = self.number("Q")
        if number > most:
            raise self.fault(f"it declares {number} {what}; at most {most} are read")
        return number

    def text(self) -> str:
        size = self.number("Q")
        start = self.take(size)
        try:
            return self.data[start : start + size].decode()
        except UnicodeDecodeError as error:
            raise self.fault(f"the text at byte {start} is not UTF-8") from error

    def value(self, kind: int) -> Value:
        if kind == _ARRAY:
            return self._array()
        if kind == _STRING:
            return self.text()
        if kind not in _NUMBERS:
            raise self.fault(f"the value before byte {self.position} is of the unknown type {kind}")
        return self.number(_NUMBERS[kind])

    def _array(self) -> Value:
        kind, count = self.number("I"), self.count("items of an array", _MOST_ITEMS)
        if kind == _STRING:
            return [self.text() for _ in range(count)]
        if kind not in _NUMBERS:
            raise self.fault(f"the array before byte {self.position} is of the unknown type {kind}")
        layout = struct.Struct(f"<{count}{_NUMBERS[kind]}")
        return list(layout.unpack_from(self.data, self.take(layout.size)))

    def entry(self) -> tuple[str, TensorEntry]:
        name = self.text()
        dimensions = self.number("I")
        if not 1 <= dimensions <= _MOST_DIMENSIONS:
            raise self.fault(f"its tensor {name} has {dimensions} dimensions")
        shape = tuple(self.number("Q") for _ in range(dimensions))[::-1]
        return name, TensorEntry(shape, self.number("I"), self.number("Q"))
