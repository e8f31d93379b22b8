"""Devices, names and files of checkpoints, and the words for one that cannot be read."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lmtool.core.errors import ModelLoadError, OutOfMemoryError, ResourceError
from lmtool.inference.engine import weights
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.engine.model_folder import check_folder
from lmtool.inference.engine.weights import display_name, without_prefix

CPU = torch.device("cpu")


class TestDevice:
    """`--device`."""

    def test_cpu(self):
        """The processor is always there."""
        assert weights.find_device("cpu") == CPU

    def test_auto(self):
        """A GPU if there is one."""
        assert weights.find_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")

    def test_missing(self):
        """A GPU that is not there."""
        with pytest.raises(ResourceError, match=r"'cuda:97' is not there: torch .* sees"):
            weights.find_device("cuda:97")


class TestWords:
    """Whatever loading raises becomes one of our errors."""

    @pytest.mark.parametrize("problem", [MemoryError("no"), torch.OutOfMemoryError("no")])
    def test_memory(self, problem):
        """Out of memory, with what to try."""
        with (
            pytest.raises(OutOfMemoryError, match="does not fit into memory") as caught,
            weights.load_errors("big", EngineConfig()),
        ):
            raise problem
        assert "bfloat16" in caught.value.hints[0]

    def test_foreign_code(self):
        """A checkpoint with its own code is not run unless allowed."""
        error = weights._load_error("m", EngineConfig(), ValueError("requires ... `trust_remote_code=True`"))
        assert "not run unless you allow it" in error.message
        assert "--trust-remote-code" in error.hints[0]

    def test_not_found(self, monkeypatch):
        """Where it looked, which revision, and that nothing is downloaded offline."""
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        error = weights._load_error("who/what", EngineConfig(revision="v2"), OSError("not in cache\nmore"))
        assert isinstance(error, ModelLoadError)
        assert "who/what (revision v2) was not found" in error.message
        assert "more" not in error.message
        assert "HF_HUB_OFFLINE is set" in error.hints[1]


CODE = """
import os, sys
from lmtool.inference.engine.weights import import_transformers
listed = []
sys.addaudithook(lambda event, args: listed.append(args[0]) if event == "os.scandir" else None)
import_transformers()
llama = [path for path in listed if str(path).endswith("models/llama")]
from transformers.utils import import_utils
build = import_utils.define_import_structure
assert hasattr(build, "cache_info"), "put back"
table = sys.modules["transformers.models"]
real = build(table.__file__)
names = {name for modules in real.values() for found in modules.values() for name in found}
assert names <= set(dir(table)), "every name of every model file can be had"
import_transformers()
print(len(llama))
"""


def test_the_model_files_are_looked_through_once_and_nothing_is_lost() -> None:
    """Each model's folder is listed once, and every name that transformers finds itself is there."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1"]


def test_the_table_of_models_is_the_whole_table_below_models() -> None:
    """Modules outside `models` are left out, and so are requirements that nothing is left of."""
    plain, torch = frozenset[str](), frozenset({"torch"})
    table = {
        plain: {"models.gpt2.configuration_gpt2": {"GPT2Config"}, "generation": {"GenerationConfig"}},
        torch: {"modeling_utils": {"PreTrainedModel"}},
    }
    assert without_prefix(table) == {plain: {"gpt2.configuration_gpt2": {"GPT2Config"}}}


STORIES = Path(__file__).parents[2] / "data/stories260K"
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
        ("[1, 2]", "config.json is not a JSON object"),
        ("{}", "config.json has no model_type"),
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
        (WHOLE[:-1], f"is truncated: it has {len(WHOLE) - 1} bytes, and its header declares {len(WHOLE)}"),
        (WHOLE[:100], "is truncated, or not a safetensors file: it has 100 bytes"),
        (WHOLE + b"x", "is damaged"),
        (b"\xff" * 1000, "is truncated, or not a safetensors file"),
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


def test_shown_name(tmp_path, monkeypatch):
    """A folder shows its last part, whichever way it was written; a hub name shows as it is."""
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path / "model")
    assert display_name(".") == display_name(str(tmp_path / "model")) == "model"
    assert display_name("org/name") == "org/name"
