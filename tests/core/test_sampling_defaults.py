"""What is taken from a generation_config.json, and what is refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from lmtool.core.errors import FileError
from lmtool.core.sampling_defaults import described, known, read


def written(folder: Path, **fields: Any) -> Path:
    path = folder / "generation_config.json"
    path.write_text(json.dumps(fields), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("fields", "adopted"),
    [
        ({"eos_token_id": [1, 2], "transformers_version": "5.0", "num_beams": 4}, {}),
        (
            {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05, "max_new_tokens": 9},
            {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05, "max_tokens": 9},
        ),
        ({"repetition_penalty": 1.05, "temperature": None}, {"repetition_penalty": 1.05}),
        ({"do_sample": False, "temperature": 0.7}, {"temperature": 0}),
        ({"do_sample": False}, {"temperature": 0}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"max_length": 20}, {}),
    ],
)
def test_what_is_adopted(tmp_path: Path, fields: dict[str, Any], adopted: dict[str, float]) -> None:
    """What vLLM adopts, by our names; `do_sample: false` is greedy, as transformers means it; null is absent."""
    written(tmp_path, **fields)
    assert read(str(tmp_path)) == adopted


def test_choices(tmp_path: Path) -> None:
    """`none` and vLLM's `vllm` take nothing; a file or a folder stands in place of the model's own."""
    model, other = tmp_path / "model", tmp_path / "other"
    for folder, temperature in ((model, 0.5), (other, 0.25)):
        folder.mkdir()
        written(folder, temperature=temperature)
    assert read(str(model)) == {"temperature": 0.5}
    assert read(str(model / "weights.gguf")) == {}
    (model / "weights.gguf").touch()
    assert read(str(model / "weights.gguf")) == {"temperature": 0.5}
    assert read(str(model), "none") == read(str(model), "vllm") == {}
    assert (
        read(str(model), str(other)) == read(str(model), str(other / "generation_config.json")) == {"temperature": 0.25}
    )


def test_gguf_metadata(tmp_path: Path) -> None:
    """llama.cpp's `general.sampling.*`, float32 as written, where no file is beside; wrong values are refused."""
    source = tmp_path / "model.gguf"
    source.touch()
    stored = {"temp": struct.unpack("f", struct.pack("f", 0.6))[0], "top_k": 20, "min_p": 0.0, "penalty_repeat": 1.0}
    metadata = {f"general.sampling.{name}": value for name, value in stored.items()} | {"general.sampling.mirostat": 2}
    adopted = {"temperature": 0.6, "top_k": 20, "min_p": 0.0, "repetition_penalty": 1.0}
    assert read(str(source), metadata=lambda _: metadata) == adopted
    assert read(str(source), "none", metadata=lambda _: metadata) == read(str(source)) == {}
    for wrong in ("hot", float("nan"), True, [0.5], -1.0):
        with pytest.raises(FileError, match=r"model\.gguf cannot be used: temperature is"):
            read(str(source), metadata=lambda _, wrong=wrong: {"general.sampling.temp": wrong})
    written(tmp_path, temperature=0.25)
    assert read(str(source), metadata=lambda _: metadata) == {"temperature": 0.25}


def test_names_without_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without the file, a hub name that is not in the cache and a model made in memory have no defaults."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert read(str(tmp_path)) == read("nobody/nothing") == read("random:llama-tiny") == {}


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"temperature": "hot"}, "temperature is 'hot'; expected a number from 0 to"),
        ({"temperature": -1}, "temperature is -1"),
        ({"top_p": 1.5}, "top_p is 1.5; expected a number from 0 to 1"),
        ({"top_k": 2.5}, "top_k is 2.5; expected a whole number"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0"),
    ],
)
def test_wrong_values(tmp_path: Path, fields: dict[str, Any], sentence: str) -> None:
    """A value that no engine can compute with is refused by file, name and value, with the way around it."""
    path = written(tmp_path, **fields)
    with pytest.raises(FileError) as refused:
        read(str(tmp_path))
    assert refused.value.message.startswith(f"{path} cannot be used: {sentence}")
    assert "--generation-config none" in refused.value.sentence


def test_broken_files(tmp_path: Path) -> None:
    """A named file that is missing, is no JSON or no object is refused."""
    with pytest.raises(FileError, match="cannot read"):
        read(str(tmp_path), str(tmp_path / "absent.json"))
    for text, fault in (("nonsense", "it is not JSON"), ("[1]", "it is no JSON object")):
        (tmp_path / "generation_config.json").write_text(text, encoding="utf-8")
        with pytest.raises(FileError, match=fault):
            read(str(tmp_path))


def test_of_a_server() -> None:
    """Of a server's description only known names with possible numbers are kept; people read them as a list."""
    assert known({"temperature": 0.5, "top_p": 7, "top_k": "3", "seed": 1, "min_p": True}) == {"temperature": 0.5}
    assert known(None) == known([1]) == {}
    assert described({"temperature": 0.5, "max_tokens": 9}) == "temperature 0.5, max_tokens 9"
    assert described({}) == ""
