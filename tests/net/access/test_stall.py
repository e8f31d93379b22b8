"""A peer that takes nothing of what waits for it is cut after a time."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from typing import cast

import pytest
import trustme

from lmtool.net.access.stall import StallTimer
from tests.protocol.lmtp.harness import PATIENCE, until

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


async def test_nothing_is_taken_over_tls() -> None:
    """What is encrypted already waits for the peer as well, though its transport says that nothing waits."""
    authority, loop = trustme.CA(), asyncio.get_running_loop()
    own, trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.issue_cert("localhost").configure_cert(own)
    authority.configure_trust(trusting)
    ours, theirs = socket.socketpair()
    (transport, _), (_, peer) = await asyncio.gather(
        loop.connect_accepted_socket(lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), ours, ssl=own),
        asyncio.open_connection(sock=theirs, ssl=trusting, server_hostname="localhost", limit=1),
    )
    transport.write(bytes(LARGE))
    assert transport.get_write_buffer_size() == 0
    StallTimer(transport, LIMIT).start()
    await until(transport.is_closing)
    peer.transport.abort()


class Shrinking:
    """A transport whose peer takes a little between two looks, until it takes nothing more."""

    def __init__(self, *waiting: int) -> None:
        self.waiting = list(waiting)
        """Bytes at each look."""
        self.aborted = asyncio.Event()

    def get_write_buffer_size(self) -> int:
        """See `asyncio.WriteTransport`."""
        return self.waiting.pop(0)

    def get_extra_info(self, _name: str) -> None:
        """It has none."""

    def abort(self) -> None:
        """It is cut."""
        self.aborted.set()


async def test_slow_is_not_stalled() -> None:
    """Who takes a little within each period is not cut before the period without anything."""
    transport = Shrinking(100, 99, 40, 39, 39)
    StallTimer(cast("asyncio.WriteTransport", transport), 0.001).start()
    async with asyncio.timeout(PATIENCE):
        await transport.aborted.wait()
    assert transport.waiting == []


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
