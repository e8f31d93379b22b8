"""What a catalogue of models says of one of them, without loading it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

ModelPhase: TypeAlias = Literal["unloaded", "queued", "loading", "ready", "unloading", "failed"]
"""Where a served model stands; `failed`: its last load did."""


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One served model: its names, its phase, and what else is known of it."""

    name: str
    aliases: tuple[str, ...] = ()
    """Further names that clients are shown. The path of a folder is not among them."""
    phase: ModelPhase = "ready"
    size_bytes: int | None = None
    """Size of the weights on disk; None where they are not on this machine and were not read yet."""
    context_length: int | None = None
    """Most tokens of prompt and output together; None until it was loaded once."""
    idle_seconds: float | None = None
    """Since its last stream ended; None while it is used or is not in memory."""
    pinned: bool = False
    """Whether it stays in memory once it is there."""
    error: str | None = None
    """Why its last load failed, where `phase` is `failed`."""
    architecture: str | None = None
    """The transformers class, such as `LlamaForCausalLM`; None until it was loaded once."""
