"""The number of weights in a checkpoint, and how many of them one decode step reads."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmtool.core.errors import FileError

if TYPE_CHECKING:
    from pathlib import Path

EMBEDDINGS = ("model.embed_tokens.weight", "transformer.wte.weight", "wte.weight")
POSITIONS = ("transformer.wpe.weight", "wpe.weight")
WEIGHT_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "int8": 1.0, "int4": 0.5625}
MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Numbers of weights."""

    parameters: int
    """Total."""
    read: int
    """Read whole by each step: without tables of which it looks up a few rows; a tied embedding counts as the head."""
    vocab_size: int

    def step_seconds(self, rows: int, dtype: str, bytes_per_s: float, flop_per_s: float) -> float:
        """Lower bound of a decode step of `rows` streams: the time to read the weights or to multiply, the longer."""
        return max(self.read * WEIGHT_BYTES[dtype] / bytes_per_s, 2 * self.read * rows / flop_per_s)


def read_checkpoint(folder: Path) -> Checkpoint:
    """Count the weights in a folder's safetensors files, by their headers. Raises `FileError`."""
    shapes: dict[str, list[int]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        shapes |= _shapes(file)
    if not shapes:
        raise FileError(f"{folder} has no *.safetensors file", "give the folder of a model in transformers' layout")
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    embedding = next((name for name in EMBEDDINGS if name in shapes), None)
    looked_up = sum(sizes.get(name, 0) for name in POSITIONS)
    if embedding is not None and "lm_head.weight" in shapes:
        looked_up += sizes[embedding]
    total = sum(sizes.values())
    vocabulary = shapes[embedding][0] if embedding is not None else _vocabulary(folder)
    return Checkpoint(total, total - looked_up, vocabulary)


def _vocabulary(folder: Path) -> int:
    try:
        return int(json.loads((folder / "config.json").read_text(encoding="utf-8"))["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise FileError(f"{folder}/config.json has no vocab_size ({problem})", "check that it is complete") from None


def _shapes(file: Path) -> dict[str, list[int]]:
    """Names and shapes from a file's header (safetensors format: its length in 8 bytes, then JSON)."""
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            header = json.loads(stream.read(min(length, MAX_HEADER_BYTES)))
        return {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, struct.error) as problem:
        raise FileError(f"{file} is no safetensors file ({problem})", "fetch the model again") from None
