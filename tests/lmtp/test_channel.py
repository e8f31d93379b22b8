"""What carries a client's frames."""

import asyncio
import os
import sys

import pytest
from websockets.asyncio.server import serve

from lmtool.errors import ConnectError, TimeLimitError
from lmtool.lmtp import channel, endpoint
from tests.lmtp.harness import PATIENCE

ECHO = "import sys\nfor line in sys.stdin: sys.stdout.write(line.upper()); sys.stdout.flush()"


def python(code: str) -> endpoint.CommandEndpoint:
    return endpoint.CommandEndpoint((sys.executable, "-c", code))


async def test_pipes():
    """Frames go to a command's stdin and come from its stdout; closing ends it."""
    opened = await channel.open_channel(python(ECHO), open_timeout=PATIENCE)
    await opened.send("héllo")
    assert await opened.receive() == "HÉLLO"
    await opened.close()
    with pytest.raises(ConnectError, match="exit status 0"):
        await opened.receive()


async def test_pipes_that_are_not_text():
    """A line that is not UTF-8 is handed on as it is, for the session to refuse."""
    code = "import sys; sys.stdout.buffer.write(bytes([255, 10])); sys.stdout.flush(); sys.stdin.read()"
    opened = await channel.open_channel(python(code), open_timeout=PATIENCE)
    assert await opened.receive() == b"\xff\n"
    await opened.close()


async def test_ctrl_c_is_not_for_the_command():
    """The command is in a process group of its own: a terminal's Ctrl-C does not reach it."""
    code = "import os; print(os.getpgrp(), flush=True); input()"
    opened = await channel.open_channel(python(code), open_timeout=PATIENCE)
    assert int(await opened.receive()) != os.getpgrp()
    await opened.close()


async def test_a_command_that_does_not_listen(monkeypatch):
    """A command that ignores the end of its input is ended."""
    monkeypatch.setattr(channel, "_EXIT_SECONDS", 0.05)
    code = "import signal, sys; signal.signal(15, signal.SIG_IGN); print('up', flush=True)\nwhile 1: signal.pause()"
    opened = await channel.open_channel(python(code), open_timeout=PATIENCE)
    assert await opened.receive() == "up"
    async with asyncio.timeout(PATIENCE):
        await opened.close()


async def test_sockets():
    """Frames go and come as text messages, however large, without compression."""

    async def echo(connection):
        assert "Sec-WebSocket-Extensions" not in connection.request.headers
        async for frame in connection:
            await connection.send(frame)

    async with serve(echo, "127.0.0.1", 0, max_size=None) as server:
        where = endpoint.parse(f":{server.sockets[0].getsockname()[1]}")
        opened = await channel.open_channel(where, open_timeout=PATIENCE)
        await opened.send("x" * 5_000_000)
        assert await opened.receive() == "x" * 5_000_000
        await opened.close()
        with pytest.raises(ConnectError, match="lost"):
            await opened.send("x")


async def test_names_that_do_not_resolve():
    """A host that is not there is a connection error."""
    with pytest.raises((ConnectError, TimeLimitError)):
        await channel.open_channel(endpoint.SocketEndpoint("ws://no-such-host.invalid/", True), open_timeout=5)
