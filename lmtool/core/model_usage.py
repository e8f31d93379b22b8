"""What a model in memory does, and the memory that it holds."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable


class ModelUsage(NamedTuple):
    """What a model in memory does now, and the memory that it holds, in bytes; None: not known."""

    running: int
    """Streams being computed."""
    waiting: int
    """Streams not yet started."""
    kv_cache_bytes: int | None = None
    """Room for keys and values, all of it."""
    kv_cache_used_bytes: int | None = None
    """That of streams, what they share counted once."""
    prefix_cache_bytes: int | None = None
    """That of prompts' beginnings which may be used again, whether a stream uses them or not."""
    weights_bytes: int | None = None


@runtime_checkable
class Measured(Protocol):
    """A model that tells what it does and holds."""

    @property
    def usage_now(self) -> ModelUsage:
        """As it is now; safe from any thread."""


def usage_of(model: object) -> ModelUsage:
    """What a model does and holds, as far as it tells."""
    return model.usage_now if isinstance(model, Measured) else ModelUsage(0, 0)
