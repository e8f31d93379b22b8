"""A peer that takes nothing of what waits for it is cut after a time."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from lmtool.access.stall import StallTimer
from tests.lmtp.harness import PATIENCE, until

LIMIT = 0.05
LARGE = 4 << 20
"""Bytes: more than a system takes on its own."""


@pytest.fixture
async def pair() -> AsyncIterator[tuple[asyncio.StreamWriter, socket.socket]]:
    """A connection's end that writes, and its peer's, which has a small buffer and reads nothing by itself."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    _, writer = await asyncio.open_connection(sock=ours)
    yield writer, theirs
    writer.transport.abort()
    theirs.close()


async def test_nothing_is_taken(pair) -> None:
    """The connection is cut once the time is over, and not before; what waited is dropped."""
    writer, _ = pair
    writer.write(bytes(LARGE))
    told: list[float] = []
    loop = asyncio.get_running_loop()
    began = loop.time()
    StallTimer(writer.transport, LIMIT, lambda: told.append(loop.time())).start()
    async with asyncio.timeout(PATIENCE):
        await writer.drain()
    assert told[0] - began >= LIMIT
    assert writer.transport.get_write_buffer_size() == 0


async def test_slow_is_not_stalled(pair) -> None:
    """Who takes a little within each period is never cut."""
    writer, theirs = pair
    writer.write(bytes(LARGE))
    timer = StallTimer(writer.transport, LIMIT)
    timer.start()
    loop, until_then = asyncio.get_running_loop(), asyncio.get_running_loop().time() + 5 * LIMIT
    while loop.time() < until_then:
        await loop.sock_recv(theirs, 50_000)
        await asyncio.sleep(LIMIT / 5)
    assert not writer.transport.is_closing()
    timer.stop()


@pytest.mark.parametrize(("seconds", "size"), [(0.0, LARGE), (0.001, 1)], ids=["no limit", "nothing waits"])
async def test_no_reason_to_cut(pair, seconds, size) -> None:
    """Without a limit nobody is cut, nor is who has taken everything."""
    writer, _ = pair
    writer.write(bytes(size))
    StallTimer(writer.transport, seconds).start()
    await asyncio.sleep(0.01)
    assert not writer.transport.is_closing()


async def test_stopped(pair) -> None:
    """Of two starts the first counts; a stopped timer cuts nobody."""
    writer, _ = pair
    writer.write(bytes(LARGE))
    timer = StallTimer(writer.transport, 0.001)
    timer.start()
    timer.start()
    timer.stop()
    await asyncio.sleep(0.01)
    assert not writer.transport.is_closing()
    timer.start()
    await until(writer.transport.is_closing)
