"""Gives memory back to the system while an engine has nothing to do."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from lmtool.inference.engine.engine_thread import Rest
from lmtool.net.subprocesses.resources import release_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lmtool.inference.engine.kv_cache import KVCache
    from lmtool.inference.engine.scheduler import Scheduler

REST_SECONDS = 5.0
"""Without a step, after which memory that no stream needs goes, all but that of the last prompts."""
LONG_REST_SECONDS = 600.0
"""Further seconds, after which that goes too."""
KEPT_CONTEXTS = 8
"""How many full contexts of keys and values are kept in between, for prompts that begin like the last ones."""


@dataclass(frozen=True, slots=True)
class IdleMemory:
    """Keys and values of streams that have ended, and what the C library keeps."""

    scheduler: Scheduler
    cache: KVCache
    context_blocks: int
    """Blocks of a full context."""

    def rests(self) -> Sequence[Rest]:
        """What an engine's thread does while it rests."""
        some = partial(self._give_back, KEPT_CONTEXTS * self.context_blocks)
        return Rest(REST_SECONDS, some), Rest(LONG_REST_SECONDS, partial(self._give_back, 0))

    def _give_back(self, keep_blocks: int, interrupted: Callable[[], bool]) -> None:
        """Keep at most so many blocks for prompts that begin alike."""
        for first, count in self.scheduler.forget(keep_blocks):
            self.cache.give_back(first, count)
            if interrupted():
                return
        release_memory()
