"""When recorded answers are sent again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


@dataclass(frozen=True, slots=True)
class Pace:
    """How recorded times become waiting."""

    speed: float | None = 1.0
    """Times as fast as recorded; None waits for nothing."""
    max_gap: float | None = None
    """Longest wait between two pieces of an answer, in seconds; None for any."""

    def due(self, offsets: Iterable[float]) -> Iterator[float]:
        """When each piece is sent, in seconds after its request."""
        due = before = 0.0
        for offset in offsets:
            gap = 0.0 if self.speed is None else max(0.0, offset - before) / self.speed
            due += gap if self.max_gap is None else min(gap, self.max_gap)
            before = offset
            yield due


async def until(time: float) -> None:
    """Wait until a time of the event loop's clock; let others run even if it is past."""
    await asyncio.sleep(max(0.0, time - asyncio.get_running_loop().time()))
