"""A broken model folder is told in our words, before anything of it is loaded."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from lmtool.engine.model_folder import check_folder
from lmtool.errors import ModelLoadError

STORIES = Path(__file__).parents[1] / "data/stories260K"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARD = "model-00001-of-00002.safetensors"


@pytest.fixture
def folder(tmp_path):
    """A whole model."""
    return shutil.copytree(STORIES, tmp_path / "model")


def refusal(folder):
    """The error as a person reads it."""
    with pytest.raises(ModelLoadError) as caught:
        check_folder(folder)
    return "; ".join([caught.value.message, *caught.value.hints])


def test_whole(folder):
    """Nothing is said of a whole one, in one file or in several, with heads by layer or code of its own."""
    check_folder(folder)
    (folder / WEIGHTS).rename(folder / SHARD)
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": SHARD, "b": SHARD}}))
    (folder / "config.json").write_text(json.dumps({"auto_map": {"AutoConfig": "c.C"}, "num_attention_heads": [4, 8]}))
    check_folder(folder)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "there is no config.json in"),
        ('{"a": ', "config.json is not JSON"),
        ("[" * 100_000, "config.json is not JSON"),
        ("[1, 2]", "config.json is no JSON object"),
        ("{}", "config.json names no model_type"),
        ('{"model_type": "llama", "hidden_size": "big"}', "says hidden_size 'big'; expected a number from 1 on"),
        ('{"model_type": "llama", "num_hidden_layers": -1}', "says num_hidden_layers -1"),
    ],
)
def test_config(folder, text, words):
    """What is wrong with config.json, by its path."""
    (folder / "config.json").unlink()
    if text is not None:
        (folder / "config.json").write_text(text)
    assert words in refusal(folder)


def test_config_is_no_file(folder):
    """A folder of that name cannot be read."""
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()
    assert "cannot read" in refusal(folder)


def test_generation_config(folder):
    """Defaults that are no JSON are an error: without them the model would answer in another way."""
    (folder / "generation_config.json").write_text("nonsense")
    assert "generation_config.json is not JSON" in refusal(folder)


def test_empty(tmp_path):
    """A folder without anything."""
    assert refusal(tmp_path).endswith("it is empty; give the folder that holds it")


WHOLE = (STORIES / WEIGHTS).read_bytes()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, f"there are no weights in .*: expected {WEIGHTS}; it holds: .*config.json"),
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 1044992\n", "git lfs pull"),
        (WHOLE[:-1], f"is cut off: it has {len(WHOLE) - 1} bytes, and its header speaks of {len(WHOLE)}"),
        (WHOLE[:100], "is cut off, or no safetensors file: it has 100 bytes"),
        (WHOLE + b"x", "is damaged"),
        (b"\xff" * 1000, "is cut off, or no safetensors file"),
        (b"\x04" + bytes(7) + b"null", "its header cannot be read"),
    ],
)
def test_weights(folder, content, words):
    """What is wrong with the weights, by their path."""
    (folder / WEIGHTS).unlink()
    if content is not None:
        (folder / WEIGHTS).write_bytes(content)
    assert re.search(words, refusal(folder))


def test_shards(folder):
    """Files that an index names and that are not there, or an index that names none."""
    (folder / WEIGHTS).rename(folder / SHARD)
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": SHARD, "b": "model-00002-of-00002.safetensors"}}))
    assert "1 of the 2 files with weights are missing" in refusal(folder)
    assert "model-00002-of-00002.safetensors" in refusal(folder)
    (folder / INDEX).write_text('{"weight_map": [1]}')
    assert "has no weight_map" in refusal(folder)
