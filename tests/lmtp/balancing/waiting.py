"""Waiting for what a balancer finds out by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.lmtp.harness import PATIENCE


async def until(holds: Callable[[], bool]) -> None:
    """Let the event loop turn until something holds; fails after a time that is long for anything here."""
    async with asyncio.timeout(PATIENCE):
        while not holds():
            await asyncio.sleep(0.001)
