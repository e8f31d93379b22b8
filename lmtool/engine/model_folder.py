"""Checks the files of a model's folder in milliseconds, before any of them is loaded.

transformers finds the same faults later and in other words: a file that Git LFS has not fetched has a "header too
large".
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from lmtool.errors import ModelLoadError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CONFIG, ADAPTER = "config.json", "adapter_config.json"
_SINGLE = ("model.safetensors", "pytorch_model.bin")
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_COUNTS = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "n_embd", "n_layer", "n_head")
_LFS = b"version https://git-lfs"
_LENGTH_BYTES = 8
"""Of the number that begins a safetensors file: how long its header is."""
_AGAIN = "download the model again, or copy it whole"


def refuse_adapter(name: str, config: Path | None) -> None:
    """Raise `ModelLoadError` for a LoRA adapter, beside a model's weights or without any. config: its configuration.

    transformers applies it where `peft` is installed and ignores it where not; vLLM ignores it.
    """
    if config is None or (found := _read(config)) is None:
        return
    base, kind = found.get("base_model_name_or_path") or "another model", found.get("peft_type") or "LoRA"
    raise ModelLoadError(
        f"{name} holds an adapter ({kind}, of {base}) in {ADAPTER}, and adapters are not applied here",
        "merge it, with peft:  PeftModel.from_pretrained(BASE, ADAPTER).merge_and_unload().save_pretrained(FOLDER)",
        f"to serve the weights in the same folder without it, move {ADAPTER} away",
    )


def check_folder(folder: Path) -> None:
    """Raise `ModelLoadError` for files that are missing, cut off, or not what their names say."""
    refuse_adapter(str(folder), folder / ADAPTER)
    config = _read(folder / CONFIG)
    if config is None:
        raise ModelLoadError(f"there is no {CONFIG} in {folder}", _listing(folder), "give the folder that holds it")
    _check_config(folder, config)
    _read(folder / "generation_config.json")
    for file in _weights(folder):
        _check_weights(file)


def _check_config(folder: Path, config: Mapping[str, Any]) -> None:
    if not isinstance(config.get("model_type"), str) and "auto_map" not in config:  # which names code of its own
        raise ModelLoadError(
            f"{folder / CONFIG} names no model_type", "check that it is the configuration of a transformers model"
        )
    for name in _COUNTS:
        value = config.get(name, 1)
        if not (value is None or isinstance(value, list) or (type(value) is int and value >= 1)):  # a list: by layer
            raise ModelLoadError(f"{folder / CONFIG} says {name} {value!r}; expected a number from 1 on", _AGAIN)


def _read(file: Path) -> Mapping[str, Any] | None:
    """The JSON object in a file; None where there is no such file."""
    try:
        content = json.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ModelLoadError(f"cannot read {file}: {error.strerror}", "check its rights") from error
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{file} is not JSON: {error}", _AGAIN) from error
    if not isinstance(content, dict):
        raise ModelLoadError(f"{file} is no JSON object", _AGAIN)
    return content


def _weights(folder: Path) -> list[Path]:
    """The files with weights, in the order in which transformers looks for them."""
    for single, index in zip(_SINGLE, _INDEXES, strict=True):
        if (folder / single).exists():
            return [folder / single]
        if (listed := _read(folder / index)) is not None:
            return _shards(folder / index, listed)
    raise ModelLoadError(f"there are no weights in {folder}: expected {_SINGLE[0]}", _listing(folder), _AGAIN)


def _shards(index: Path, listed: Mapping[str, Any]) -> list[Path]:
    names = listed.get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise ModelLoadError(f"{index} has no weight_map of names of files", _AGAIN)
    files = [index.parent / name for name in sorted(set(names.values()))]
    absent = [file.name for file in files if not file.exists()]
    if absent:
        raise ModelLoadError(
            f"{len(absent)} of the {len(files)} files with weights are missing in {index.parent}: {_few(absent)}",
            _AGAIN,
        )
    return files


def _check_weights(file: Path) -> None:
    try:
        with file.open("rb") as opened:
            size = opened.seek(0, 2)
            opened.seek(0)
            start = opened.read(max(len(_LFS), _LENGTH_BYTES))
            if start.startswith(_LFS):
                raise ModelLoadError(
                    f"{file} is what Git LFS leaves in place of the weights", "fetch them:  git lfs pull"
                )
            length = int.from_bytes(start[:_LENGTH_BYTES], "little")
            if size == 0:
                raise ModelLoadError(f"{file} is empty", _AGAIN)
            if file.suffix != ".safetensors":
                return
            if length > size - _LENGTH_BYTES:
                raise ModelLoadError(f"{file} is cut off, or no safetensors file: it has {size} bytes", _AGAIN)
            opened.seek(_LENGTH_BYTES)
            header = opened.read(length)
    except OSError as error:
        raise ModelLoadError(f"cannot read {file}: {error.strerror}", "check its rights") from error
    expected = _LENGTH_BYTES + length + _data_bytes(file, header)
    if size != expected:
        fault = "is cut off" if size < expected else "is damaged"
        raise ModelLoadError(f"{file} {fault}: it has {size} bytes, and its header speaks of {expected}", _AGAIN)


def _data_bytes(file: Path, header: bytes) -> int:
    """How many bytes the tensors of a safetensors file take."""
    try:
        tensors = json.loads(header)
        return max((entry["data_offsets"][1] for name, entry in tensors.items() if name != "__metadata__"), default=0)
    except (ValueError, RecursionError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise ModelLoadError(f"{file} is no safetensors file: its header cannot be read", _AGAIN) from error


def _listing(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir())
    return f"it holds: {_few(names, 8)}" if names else "it is empty"


def _few(names: list[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
