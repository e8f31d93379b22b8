"""Folders of models that are not whole are told as such before anything of them is loaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmtool.engine.model_folder import check_folder
from lmtool.errors import ModelLoadError
from lmtool.tiny.path import MODEL_DIR
from tests.conftest import STORIES

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 1044992\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole one."""
    for name in ("config.json", "generation_config.json", WEIGHTS):
        shutil.copy(STORIES / name, tmp_path / name)
    return tmp_path


def configured(**changes: Any) -> Callable[[Path], None]:
    """Changes members of the configuration."""

    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **changes}))

    return change


def written(name: str, content: bytes) -> Callable[[Path], None]:
    """Puts something else into a file."""

    def change(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return change


def cut(size: int) -> Callable[[Path], None]:
    """Leaves the weights' first bytes."""

    def change(folder: Path) -> None:
        (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:size])

    return change


def sharded(*names: str) -> Callable[[Path], None]:
    """Makes the weights one of several files."""

    def change(folder: Path) -> None:
        (folder / WEIGHTS).rename(folder / "model-1.safetensors")
        index = {"weight_map": {f"w{at}": name for at, name in enumerate(names)}}
        (folder / INDEX).write_text(json.dumps(index))

    return change


def indexed(index: bytes) -> Callable[[Path], None]:
    """Puts an index in the weights' place."""

    def change(folder: Path) -> None:
        (folder / WEIGHTS).unlink()
        (folder / INDEX).write_bytes(index)

    return change


def without(name: str) -> Callable[[Path], None]:
    """Takes a file away."""

    def change(folder: Path) -> None:
        (folder / name).unlink()

    return change


def damaged_header(folder: Path) -> None:
    """As long as it should be, and no JSON."""
    content = bytearray((folder / WEIGHTS).read_bytes())
    content[8] = 0
    (folder / WEIGHTS).write_bytes(content)


def folder_in_place_of_a_file(folder: Path) -> None:
    """Where weights are expected."""
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).mkdir()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (without("config.json"), "there is no config.json"),
        (written("config.json", b"{"), "config.json is not JSON"),
        (written("config.json", b"[1]"), "config.json is no JSON object"),
        (written("config.json", b"{}"), "names no model_type"),
        (configured(hidden_size="big"), "says hidden_size 'big'; expected a number from 1 on"),
        (configured(num_hidden_layers=-1), "says num_hidden_layers -1"),
        (configured(vocab_size=True), "says vocab_size True"),
        (written("generation_config.json", b"nonsense"), "generation_config.json is not JSON"),
        (without(WEIGHTS), "there are no weights"),
        (written(WEIGHTS, b""), "is empty"),
        (written(WEIGHTS, POINTER), "Git LFS"),
        (written(WEIGHTS, bytes(range(256)) * 100), "is cut off, or no safetensors file"),
        (cut(100), "is cut off, or no safetensors file"),
        (cut(200_000), "is cut off: it has 200000 bytes"),
        (damaged_header, "its header cannot be read"),
        (folder_in_place_of_a_file, "cannot read .*: Is a directory"),
        (sharded("model-1.safetensors", "model-2.safetensors"), "1 of the 2 files .* are missing .*: model-2"),
        (indexed(b"{"), "index.json is not JSON"),
        (indexed(b"{}"), "has no weight_map"),
    ],
)
def test_what_is_not_whole(folder: Path, change: Callable[[Path], None], problem: str) -> None:
    """What is wrong is said with the file's name, and what to do next."""
    change(folder)
    with pytest.raises(ModelLoadError, match=problem) as refused:
        check_folder(folder)
    assert str(folder) in refused.value.message
    assert refused.value.hints


def test_what_is_whole(folder: Path) -> None:
    """Whole folders pass: one file or several, older weights, and configurations that the model's own code reads."""
    check_folder(MODEL_DIR)
    check_folder(folder)
    configured(auto_map={"AutoConfig": "own.Config"}, num_attention_heads=[4, 2])(folder)
    check_folder(folder)
    sharded("model-1.safetensors")(folder)
    check_folder(folder)
    (folder / INDEX).unlink()
    (folder / "pytorch_model.bin").write_bytes(b"PK")
    check_folder(folder)
