"""What carries a client's frames."""

import pytest
from websockets.asyncio.server import serve

from lmtool.errors import ConnectError, TimeLimitError
from lmtool.lmtp import channel, endpoint
from tests.lmtp.harness import PATIENCE


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


async def test_a_program_that_is_not_there():
    """Is a connection error that names it."""
    with pytest.raises(ConnectError, match="cannot start 'no-such-program'"):
        await channel.open_channel(endpoint.CommandEndpoint(("no-such-program",)), open_timeout=5)
