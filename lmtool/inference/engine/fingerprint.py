"""The engine's part of a model's fingerprint: its weights, and what computes them."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from lmtool import __version__
from lmtool.core.fingerprint import fingerprint
from lmtool.inference.engine.cpu.library import kernels

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import Tensor

    from lmtool.core.types import ModelInfo
    from lmtool.inference.engine.config import EngineConfig

_PIECE_BYTES = 1 << 26
"""Bytes that one thread hashes at a time."""
_COPIED_BYTES = 1 << 23
"""Bytes of them that are copied from a GPU at a time."""
_LIBRARIES = ("llguidance", "tokenizers")
"""Packages, beside those of `ModelInfo.versions`, whose versions may change a stream: its masks, its text."""


def contents_digest(config: Mapping[str, object], tensors: Iterable[tuple[str, Tensor]]) -> str:
    """A hash of a model's configuration, and of every byte of its weights and buffers as they are in memory.

    Every byte: samples of the files, or the logits of a fixed prompt, would miss a changed row of an embedding. In
    memory: the files are not read a second time, and it does not matter how they were cut or in which dtype they were.
    Costs 0.6 s of one core a gigabyte (SHA-256, AMD Zen 5), shared out among torch's threads.
    """
    pieces = [(name, piece) for name, tensor in tensors for piece in _pieces(tensor)]
    with ThreadPoolExecutor(torch.get_num_threads(), thread_name_prefix="lmtool-fingerprint") as pool:
        digests = pool.map(_digest, [piece for _, piece in pieces])
        hashed = [(name, str(piece.dtype), digest) for (name, piece), digest in zip(pieces, digests, strict=True)]
    settings = {name: value for name, value in config.items() if name not in {"_name_or_path", "transformers_version"}}
    return fingerprint({"config": settings, "weights": sorted(hashed, key=lambda one: one[0])})


def _pieces(tensor: Tensor) -> list[Tensor]:
    flat = tensor.detach().reshape(-1)
    return list(torch.split(flat, max(1, _PIECE_BYTES // tensor.element_size())))


def _digest(piece: Tensor) -> str:
    with torch.inference_mode():  # of this thread
        data = piece.contiguous().view(torch.uint8)
        if data.device.type == "cpu":
            return hashlib.sha256(data.numpy().data).hexdigest()
        # Through pinned memory: with copies to memory that is new each time an 8B model took 11.8 s (NVIDIA H200).
        buffer = torch.empty(min(len(data), _COPIED_BYTES), dtype=torch.uint8, pin_memory=True)
        digest = hashlib.sha256()
        for part in torch.split(data, _COPIED_BYTES):
            copied = buffer[: len(part)].copy_(part)
            digest.update(copied.numpy().data)
        return digest.hexdigest()


def engine_fingerprint(contents: str, info: ModelInfo, config: EngineConfig, device: torch.device) -> str:
    """The fingerprint of a model that takes and gives ids. contents: `contents_digest` of it.

    The C kernels give the same bits on any number of threads; torch's operators need not, so for these it counts.
    """
    library = kernels() if device.type == "cpu" and (info.kernels or "").startswith("C kernels") else None
    return fingerprint(
        {
            "contents": contents,
            "shape": (info.vocab_size, info.context_length, info.eos_token_ids, info.bos_token_id),
            "dtype": info.dtype,
            "device": _device(device),
            "kernels": info.kernels,
            "library": None if library is None else library.digest,
            "threads": torch.get_num_threads() if library is None and device.type == "cpu" else None,
            "settings": (
                config.quantize,
                config.kv_cache_dtype,
                config.deterministic,
                config.jump_forward,
                config.max_logprobs,
            ),
            "versions": {"lmtool": __version__, **info.versions, **_versions()},
        }
    )


def _device(device: torch.device) -> str:
    """The kind of device, such as a GPU's name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text(encoding="utf-8", errors="replace").splitlines() if listing.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else ''} {torch.backends.cpu.get_cpu_capability()}"


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {}
    for name in _LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    return versions
