"""A model in memory, ready for the engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lmtool.engine.kv_cache import BLOCK_TOKENS
from lmtool.engine.weights import is_folder

if TYPE_CHECKING:
    import torch

    from lmtool.engine.model_runner import ModelRunner
    from lmtool.types import ModelInfo


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the engine runs, and what it says about it."""

    runner: ModelRunner
    blocks: int
    """How many the runner's key-value cache has."""
    info: ModelInfo


def chunk_tokens(device: torch.device) -> int:
    """Where prompts are cut, and how much of one the prefix cache keeps at a time: as little as it can.

    A step computes any number of chunks; one is small enough for streams beside a long prompt to keep their pace.
    """
    del device  # the same everywhere, so far
    return BLOCK_TOKENS


def shown_name(name: str) -> str:
    """A folder's last part, a hub name as it is: clients read it, and paths are not for them."""
    return Path(name).resolve().name if is_folder(name) else name
