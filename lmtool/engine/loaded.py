"""A model in memory, ready for the engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

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
    """Where prompts are cut."""
    return 64 if device.type == "cpu" else 512


def shown_name(name: str) -> str:
    """A folder's last part, a hub name as it is: clients read it, and paths are not for them."""
    return Path(name).resolve().name if is_folder(name) else name
