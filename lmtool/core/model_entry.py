"""What a catalogue of models says of one of them, without loading it; the catalogues of several servers as one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ModelPhase: TypeAlias = Literal["unloaded", "queued", "loading", "ready", "unloading", "failed"]
"""Where a served model stands; `failed`: its last load did."""

_PHASES: Sequence[ModelPhase] = ("ready", "loading", "queued", "unloading", "unloaded", "failed")
"""Nearest to an answer first."""


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
    """True if it stays in memory once it is there."""
    error: str | None = None
    """Why its last load failed, where `phase` is `failed`."""
    architecture: str | None = None
    """The transformers class, such as `LlamaForCausalLM`; None until it was loaded once."""
    sampling_defaults: Mapping[str, float] | None = None
    """See `ModelInfo.sampling_defaults`; None until it was loaded once."""


def merged(catalogues: Iterable[Iterable[ModelEntry]]) -> list[ModelEntry]:
    """Each model of several servers once: as the server has it where it is nearest to an answer, with all its aliases.

    Models with one name are one model.
    """
    best: dict[str, ModelEntry] = {}
    for entry in chain.from_iterable(catalogues):
        known = best.get(entry.name, entry)
        aliases = tuple(dict.fromkeys((*known.aliases, *entry.aliases)))
        best[entry.name] = replace(min(known, entry, key=_distance), aliases=aliases)
    return list(best.values())


def find(entries: Sequence[ModelEntry], name: str | None) -> ModelEntry | None:
    """The entry of a name, or else of an alias; without a name the only one. None where there is no such one."""
    if name is None:
        return entries[0] if len(entries) == 1 else None
    named = next((entry for entry in entries if entry.name == name), None)
    return named or next((entry for entry in entries if name in entry.aliases), None)


def _distance(entry: ModelEntry) -> tuple[int, float]:
    """How far a model is from an answer; among equals the most recently used one is nearest."""
    return _PHASES.index(entry.phase), entry.idle_seconds or 0.0
