"""How many weights a step reads."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from lmtool.core.errors import FileError
from lmtool.measure.bench.checkpoint import Checkpoint, read_checkpoint

STORIES = Path(__file__).parents[2] / "data/stories260K"


def write(folder: Path, shapes: dict[str, list[int]]) -> Path:
    header = json.dumps({name: {"dtype": "F32", "shape": shape} for name, shape in shapes.items()}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    return folder


def test_a_real_one() -> None:
    """The embedding of a model with tied weights is read as the head."""
    assert read_checkpoint(STORIES) == Checkpoint(260_032, 260_032, 512)


def test_tables_that_are_looked_up_are_not_read(tmp_path: Path) -> None:
    """An embedding beside a head of its own, and GPT-2's positions."""
    untied = {"model.embed_tokens.weight": [10, 4], "lm_head.weight": [10, 4], "model.norm.weight": [4]}
    assert read_checkpoint(write(tmp_path, untied)) == Checkpoint(84, 44, 10)
    positions = {"transformer.wte.weight": [10, 4], "transformer.wpe.weight": [100, 4]}
    assert read_checkpoint(write(tmp_path, positions)) == Checkpoint(440, 40, 10)


def test_the_least_time_of_a_step() -> None:
    """Reading bounds a small batch, arithmetic a large one."""
    checkpoint = Checkpoint(1000, 1000, 10)
    assert checkpoint.step_seconds(1, "float32", 4000, 1e9) == pytest.approx(1.0)
    assert checkpoint.step_seconds(1, "bfloat16", 4000, 1e9) == pytest.approx(0.5)
    assert checkpoint.step_seconds(50, "float32", 1e9, 10_000) == pytest.approx(10.0)


@pytest.mark.parametrize("content", [b"", b"\xff" * 8, struct.pack("<Q", 4) + b"[1,2", struct.pack("<Q", 2) + b"[]"])
def test_a_damaged_file(tmp_path: Path, content: bytes) -> None:
    """A sentence with its name."""
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(FileError, match=r"model\.safetensors is no safetensors file"):
        read_checkpoint(tmp_path)


def test_no_file(tmp_path: Path) -> None:
    """Says what is missing."""
    with pytest.raises(FileError, match=r"has no \*\.safetensors file"):
        read_checkpoint(tmp_path)


def test_no_vocabulary(tmp_path: Path) -> None:
    """Another family's vocabulary is in its configuration, or nowhere."""
    write(tmp_path, {"other.weight": [3, 4]})
    with pytest.raises(FileError, match="has no vocab_size"):
        read_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text('{"vocab_size": 7}')
    assert read_checkpoint(tmp_path).vocab_size == 7
