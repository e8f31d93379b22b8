"""Sampling parameters that a model's author recommends: generation_config.json, as vLLM and transformers read it.

A GGUF file has them in its metadata, as llama.cpp reads them (`general.sampling.*`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmtool.core.errors import FileError
from lmtool.core.sampling_parameters import NUMERIC_PARAMETERS, Range, wrong_value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FILE = "generation_config.json"
AUTO = "auto"
"""Choice of the model's own file."""
NONE = ("none", "vllm")
"""Choices of no file; the second one is vLLM's word for it."""

_NAMES = {name: name for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")}
_NAMES["max_new_tokens"] = "max_tokens"
"""Fields of the file that vLLM adopts, and what `SamplingParams` calls them."""
_GGUF_NAMES = {name: name for name in ("top_k", "top_p", "min_p")}
_GGUF_NAMES |= {"temperature": "temp", "repetition_penalty": "penalty_repeat"}
"""Fields of the file, and what GGUF's `general.sampling.*` calls them."""
_RANGES: Mapping[str, Range] = {
    "temperature": Range(0, 1e6),
    "top_k": Range(-1, 2**31 - 1, integer=True),
    "max_new_tokens": Range(1, 2**31 - 1, integer=True),
}
"""Where they differ from what an engine computes with."""


def read(
    source: str,
    choice: str = AUTO,
    revision: str | None = None,
    metadata: Callable[[Path], Mapping[str, object]] | None = None,
) -> dict[str, float]:
    """Fields of `SamplingParams` with the author's values; empty without a file.

    source: a folder, a GGUF file, whose own metadata counts where no file is beside it, or a hub name, whose file is
    looked up in the hub's cache. choice: `auto`, one of `NONE`, or a file or folder in place of the model's.
    `do_sample: false` is greedy: temperature 0. metadata: reads that of a GGUF file; None: it is not looked at.

    Raises `FileError` for a file that cannot be read, or for a value that no engine can compute with.
    """
    if choice in NONE:
        return {}
    path = _own_file(source, revision) if choice == AUTO else _named_file(choice)
    gguf = Path(source)
    if path is None and metadata is not None and gguf.suffix == ".gguf" and gguf.exists():
        return _adopted(gguf, _gguf_fields(metadata(gguf)))
    return {} if path is None else _adopted(path, _fields(path))


def known(members: object) -> dict[str, float]:
    """The defaults in a server's description, without what makes no sense here."""
    given = members if isinstance(members, dict) else {}
    return {name: given[name] for name in _NAMES.values() if given.get(name) in NUMERIC_PARAMETERS[name].engine}


def described(defaults: Mapping[str, float]) -> str:
    """The parameters as `temperature 0.6, top_k 20`; empty for none."""
    return ", ".join(f"{name} {value:g}" for name, value in defaults.items())


def _named_file(choice: str) -> Path:
    path = Path(choice).expanduser()
    return path / FILE if path.is_dir() else path


def _own_file(source: str, revision: str | None) -> Path | None:
    """The model's file; None where it has none."""
    path = Path(source).expanduser()
    if path.exists():
        beside = (path if path.is_dir() else path.parent) / FILE
        return beside if beside.exists() else None
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(source, FILE, revision=revision)
    except HFValidationError:
        return None  # no name of the hub: a model that is made in memory
    return Path(cached) if isinstance(cached, str) else None


def _fields(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}", "check --generation-config") from error
    except (ValueError, RecursionError) as error:
        raise _refused(path, f"it is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise _refused(path, "it is no JSON object")
    return content


def _gguf_fields(stored: Mapping[str, object]) -> dict[str, Any]:
    """The fields by the names of generation_config.json."""
    fields = {name: stored.get(f"general.sampling.{key}") for name, key in _GGUF_NAMES.items()}
    return {name: float(f"{one:.7g}") if isinstance(one, float) else one for name, one in fields.items()}  # float32


def _adopted(path: Path, fields: Mapping[str, Any]) -> dict[str, float]:
    adopted: dict[str, float] = {}
    for name, ours in _NAMES.items():
        value = fields.get(name)
        expected = _RANGES.get(name) or NUMERIC_PARAMETERS[ours].engine
        if value is not None and value not in expected:
            raise _refused(path, wrong_value(name, repr(value), expected))
        if value is not None:
            adopted[ours] = max(value, 0)  # a top_k of -1 is 0 here
    return {**adopted, "temperature": 0} if fields.get("do_sample") is False else adopted


def _refused(path: Path, fault: str) -> FileError:
    return FileError(f"{path} cannot be used: {fault}", "correct it, or serve without it:  --generation-config none")
