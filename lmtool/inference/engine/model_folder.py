"""Checks a model's family and files in milliseconds, before any file is loaded.

transformers finds the same faults later and reports them in other words: a file that Git LFS has not fetched has a
"header too large".
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lmtool.core.errors import ModelLoadError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


DENSE = (
    *("apertus", "arcee", "biogpt", "cohere", "cohere2", "ctrl", "cwm", "ernie4_5", "exaone4", "gemma", "gemma2"),
    *("gemma3_text", "glm", "glm4", "gpt2", "gpt_bigcode", "gpt_neox", "granite", "helium", "hunyuan_v1_dense"),
    *("llama", "ministral", "mistral", "nemotron", "olmo", "olmo2", "olmo3", "opt", "persimmon", "phi", "phi3"),
    *("qwen2", "qwen3", "seed_oss", "smollm3", "stablelm", "starcoder2", "vaultgemma"),
)
EXPERTS = (
    *("afmoe", "cohere2_moe", "ernie4_5_moe", "exaone_moe", "flex_olmo", "glm4_moe", "granitemoe", "minimax_m2"),
    *("mixtral", "olmoe", "phimoe", "qwen2_moe", "qwen3_moe"),
)
"""Mixtures of experts, whose rows depend on the batch."""
UNSUPPORTED = {
    "its attention has sinks, which are not computed here": (
        *("deepseek_v4", "flint", "gpt_oss", "granite_swa", "granitemoe_swa", "mimo_v2_flash"),
    ),
    "its attention chooses the keys that a query sees, which is not computed here": (
        *("axk2", "deepseek_v32", "doge", "glm_moe_dsa", "hy_v4"),
    ),
    "some of its attention layers run twice for a token": ("diffllama", "hrm_text"),
    "its positions are not counted from 0, or not given to it": (
        *("bart", "blenderbot", "blenderbot-small", "bigbird_pegasus", "camembert", "data2vec-text", "marian", "mbart"),
        *("pegasus", "plbart", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"),
    ),
    "its code in transformers computes attention by itself": (
        *("big_bird", "bloom", "codegen", "cpmant", "gpt_neox_japanese", "gptj", "megatron-bert", "mpt", "mvp"),
        *("openai-gpt", "rembert", "roformer", "trocr", "xglm", "xlm"),
    ),
}
"""Reasons why families cannot be served; these are refused before their weights are read."""
ADVICE = (
    f"{len(DENSE + EXPERTS)} families are known to work, such as llama, qwen3 and gemma3_text:  lmtool docs serving"
)


CONFIG, ADAPTER = "config.json", "adapter_config.json"
_SINGLE = ("model.safetensors", "pytorch_model.bin")
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_COUNTS = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "n_embd", "n_layer", "n_head")
_LAYERS = re.compile(r"(?!.*window)(?:.*_)?(?:n_layers?|layers|blocks|depth|groups|stages)")
_SIZES = re.compile(
    r"(?!.*(?:window|chunk|image|patch|batch|block|group|buffer|step))"
    r"(?:.*_(?:size|dim|rank|heads|experts|channels|positions|r)|r|d_model|d_ff|d_kv|n_embd|n_inner|n_head|n_head_kv)"
)
"""Members of a configuration that say how many parts a model has, and how large a dimension of its weights is."""
_PACKED = 8
"""Most numbers of a quantised weight that are stored as one."""
_MOST_POSITIONS = 1 << 24  # the longest published context has 10 M; rotary embeddings have no weight to compare
_MOST_JSON_BYTES = 64 << 20
_MOST_HEADER_BYTES = 100_000_000
"""The safetensors library reads no longer one either."""
_LFS = b"version https://git-lfs"
_LENGTH_BYTES = 8
"""Size of the number at the start of a safetensors file, the length of its header."""
_AGAIN = "download the model again, or copy it whole"


@dataclass(frozen=True, slots=True)
class WeightSizes:
    """Sizes from the headers of weights; the defaults, for weights without a header, exceed those of any model."""

    tensors: int = 4096
    largest: int = 1 << 20
    """The largest dimension of a tensor."""


def check_sizes(where: str, config: Mapping[str, Any], sizes: WeightSizes | None = None) -> None:
    """Raise `ModelLoadError` for a configuration with more layers or larger dimensions than its weights have.

    where: the file, for the error. A library would make all of it, for ever or until memory ends, before it compares.
    """
    sizes = sizes or WeightSizes()
    for name, value in config.items():
        if isinstance(value, dict):
            check_sizes(where, value, sizes)
        most, numbers = None, value if isinstance(value, list) else [value]
        if _LAYERS.fullmatch(name) and not isinstance(value, list):
            most = sizes.tensors
        elif "position" in name or "max_seq" in name:
            most = _MOST_POSITIONS
        elif _SIZES.fullmatch(name):
            most = sizes.largest * _PACKED
        if most is not None and any(type(one) is int and one > most for one in numbers):
            raise ModelLoadError(f"{where} says {name} {str(value)[:60]}; its weights have {most} at most", _AGAIN)


def refuse_adapter(name: str, config: Path) -> None:
    """Raise `ModelLoadError` for a LoRA adapter, beside a model's weights or without any. config: its configuration.

    transformers applies it where `peft` is installed and ignores it where not; vLLM ignores it.
    """
    if (adapter := _read(config)) is None:
        return
    base, kind = adapter.get("base_model_name_or_path") or "another model", adapter.get("peft_type") or "LoRA"
    raise ModelLoadError(
        f"{name} holds an adapter ({kind}, of {base}) in {ADAPTER}, and adapters are not applied here",
        "merge it, with peft:  PeftModel.from_pretrained(BASE, ADAPTER).merge_and_unload().save_pretrained(FOLDER)",
        f"to serve the weights in the same folder without it, move {ADAPTER} away",
    )


def check_folder(folder: Path) -> None:
    """Raise `ModelLoadError` for files that are missing, cut off, or not what their names or their weights say."""
    refuse_adapter(str(folder), folder / ADAPTER)
    config = _read(folder / CONFIG)
    if config is None:
        raise ModelLoadError(f"there is no {CONFIG} in {folder}", _listing(folder), "give the folder that holds it")
    _check_config(folder, config)
    for file in (CONFIG, "generation_config.json"):
        _check_ids(folder / file)
    check_sizes(str(folder / CONFIG), config, _sizes_of([_check_weights(file) for file in _weights(folder)]))


def _sizes_of(files: Sequence[WeightSizes | None]) -> WeightSizes | None:
    """The sizes of all files together; None where one of them has no header, or no tensor."""
    known = [sizes for sizes in files if sizes is not None and sizes.tensors]
    if not known or len(known) < len(files):
        return None
    return WeightSizes(sum(sizes.tensors for sizes in known), max(sizes.largest for sizes in known))


def _check_config(folder: Path, config: Mapping[str, Any]) -> None:
    if not isinstance(config.get("model_type"), str) and "auto_map" not in config:  # which names code of its own
        raise ModelLoadError(
            f"{folder / CONFIG} has no model_type", "check that it is the configuration of a transformers model"
        )
    for name in _COUNTS:
        value = config.get(name, 1)
        if not (value is None or isinstance(value, list) or (type(value) is int and value >= 1)):  # a list: by layer
            raise ModelLoadError(f"{folder / CONFIG} says {name} {value!r}; expected a number from 1 on", _AGAIN)


def _check_ids(file: Path) -> None:
    content = _read(file) or {}
    for name in ("bos_token_id", "eos_token_id"):
        value = content.get(name, [])
        if value is not None and any(type(one) is not int for one in (value if isinstance(value, list) else [value])):
            raise ModelLoadError(
                f"{file} says {name} {str(value)[:60]}; expected a token id, or a list of them", _AGAIN
            )


def _read(file: Path) -> Mapping[str, Any] | None:
    """The JSON object in a file; None where there is no such file."""
    try:
        if file.stat().st_size > _MOST_JSON_BYTES:
            raise ModelLoadError(f"{file} has more than {_MOST_JSON_BYTES} bytes", _AGAIN)
        content = json.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ModelLoadError(f"cannot read {file}: {error.strerror}", "check its rights") from error
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{file} is not JSON: {error}", _AGAIN) from error
    if not isinstance(content, dict):
        raise ModelLoadError(f"{file} is not a JSON object", _AGAIN)
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
        raise ModelLoadError(f"{index} has no weight_map with file names", _AGAIN)
    files = [index.parent / name for name in sorted(set(names.values()))]
    absent = [file.name for file in files if not file.exists()]
    if absent:
        raise ModelLoadError(
            f"{len(absent)} of the {len(files)} files with weights are missing in {index.parent}: {few(absent)}",
            _AGAIN,
        )
    return files


def _check_weights(file: Path) -> WeightSizes | None:
    """Sizes from the header of a file; None for a file without one."""
    try:
        with file.open("rb") as opened:
            size = opened.seek(0, 2)
            opened.seek(0)
            start = opened.read(max(len(_LFS), _LENGTH_BYTES))
            if start.startswith(_LFS):
                raise ModelLoadError(f"{file} is a Git LFS pointer, not the weights", "fetch them:  git lfs pull")
            length = int.from_bytes(start[:_LENGTH_BYTES], "little")
            if size == 0:
                raise ModelLoadError(f"{file} is empty", _AGAIN)
            if file.suffix != ".safetensors":
                return None
            if length > min(size - _LENGTH_BYTES, _MOST_HEADER_BYTES):
                raise ModelLoadError(f"{file} is truncated, or not a safetensors file: it has {size} bytes", _AGAIN)
            opened.seek(_LENGTH_BYTES)
            header = opened.read(length)
    except OSError as error:
        raise ModelLoadError(f"cannot read {file}: {error.strerror}", "check its rights") from error
    data_bytes, sizes = _described(file, header)
    expected = _LENGTH_BYTES + length + data_bytes
    if size != expected:
        fault = "is truncated" if size < expected else "is damaged"
        raise ModelLoadError(f"{file} {fault}: it has {size} bytes, and its header declares {expected}", _AGAIN)
    return sizes


def _described(file: Path, header: bytes) -> tuple[int, WeightSizes]:
    """Total bytes of the tensors in a safetensors file, and their sizes."""
    try:
        tensors = [entry for name, entry in json.loads(header).items() if name != "__metadata__"]
        data_bytes = max((entry["data_offsets"][1] for entry in tensors), default=0)
        largest = max((size for entry in tensors for size in entry["shape"]), default=0)
        return data_bytes, WeightSizes(len(tensors), largest)
    except (ValueError, RecursionError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise ModelLoadError(f"{file} is not a safetensors file: its header cannot be read", _AGAIN) from error


def _listing(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir())
    return f"it holds: {few(names, 8)}" if names else "it is empty"


def few(names: list[str], most: int = 3) -> str:
    """The first names, and the number of the others."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
