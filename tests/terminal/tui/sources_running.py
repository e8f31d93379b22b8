"""Sources run against real servers, and what they fed."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lmtool.core.errors import LmtoolError
from lmtool.trace.events import Event, Frame, token_entries

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from lmtool.core.types import ModelInfo
    from lmtool.terminal.tui.sources.source import Source

PATIENCE = 30.0
"""Seconds after which something that does not come counts as missing."""


def no_tokenizer(_info: ModelInfo) -> None:
    """Find no tokenizer."""


@dataclass
class Watch:
    """A source that runs."""

    source: Source
    events: list[Event] = field(default_factory=list)
    error: LmtoolError | None = None
    """What ended `run`."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def feed(self, events: Sequence[Event]) -> None:
        self.events += events
        self._news.set()

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait for something to hold, looking whenever events come."""
        async with asyncio.timeout(PATIENCE):
            while not holds():
                self._news.clear()
                await self._news.wait()

    async def run(self) -> None:
        try:
            await self.source.run(self.feed)
        except LmtoolError as error:
            self.error = error
        finally:
            self.over.set()
            self._news.set()

    def tokens(self) -> dict[str, list[int]]:
        """Ids by label of the stream."""
        found: dict[str, list[int]] = {}
        for event in self.events:
            for entry in token_entries(event):
                if isinstance(token := entry.get("token"), int):
                    found.setdefault(f"{event.connection}/{entry['stream_id']}", []).append(token)
        return found

    def ends(self) -> int:
        """Streams that ended."""
        entries = [entry for event in self.events for entry in token_entries(event)]
        return sum(entry.get("finish_reason") is not None or "error" in entry for entry in entries)

    def frames(self, direction: str) -> list[str]:
        """Texts of frames."""
        return [str(event.wire()) for event in self.events if isinstance(event, Frame) and event.direction == direction]


@contextlib.asynccontextmanager
async def watching(source: Source) -> AsyncIterator[Watch]:
    """Run a source; close it at the end."""
    watch = Watch(source)
    task = asyncio.create_task(watch.run())
    try:
        yield watch
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await source.close()
