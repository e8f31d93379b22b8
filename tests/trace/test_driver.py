"""Recordings sent to real servers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from lmtool.errors import AccessDeniedError, ConnectError
from lmtool.trace.driver import Driver
from lmtool.trace.events import Close, Done, Drop, Event, Frame, Open, Parsed, Piece, Remark, Request, Response
from lmtool.trace.exchanges import exchanges
from lmtool.trace.matching import Matcher
from lmtool.trace.player import Pace, Player
from lmtool.trace.proxy import parse_target
from lmtool.trace.script import acts
from tests.access.knocking import KEY, POLICY
from tests.trace.conftest import generate, token, tokens

END = {"finish_reason": "length"}


@contextlib.asynccontextmanager
async def listening(behave: Callable[[ServerConnection], Awaitable[None]]) -> AsyncIterator[str]:
    """The URL of a server that does this on each connection."""

    async def calmly(connection: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            await behave(connection)

    async with serve(calmly, "127.0.0.1", 0, compression=None) as server:
        yield f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}/"


async def drive(events: list[Event], url: str, patience: float = 10.0) -> tuple[list[Event], str]:
    """What goes over the wire, and what did not come."""
    came: list[Event] = []
    trouble = await Driver(parse_target(url), came.append, patience=patience).run(acts(events))
    return came, trouble


async def test_sent_by_cause() -> None:
    """A request recorded after a stream's second token is sent after it, however long that takes."""
    log: list[str] = []

    async def behave(connection: ServerConnection) -> None:
        await connection.recv()
        for number in (1, 2):
            await asyncio.sleep(0.02)
            log.append(f"token {number}")
            await connection.send(f"TOKEN {json.dumps([token(7)])}")
        await connection.recv()
        log.append("second request")
        await connection.send(f"TOKEN {json.dumps([token(8) | END, token(9, 2) | END])}")
        await connection.wait_closed()

    recorded: list[Event] = [generate(0), tokens(1, token(7), token(7)), generate(1, 2)]
    recorded.append(tokens(2, token(8) | END, token(9, 2) | END))
    async with listening(behave) as url:
        came, trouble = await drive(recorded, url)
    assert log == ["token 1", "token 2", "second request"]
    assert trouble == ""
    assert [type(event) for event in came] == [Open, Frame, Frame, Frame, Frame, Frame, Close]
    assert isinstance(came[-1], Close)
    assert (came[-1].by, came[-1].code) == ("client", 1000)


async def test_clients_leave_as_recorded() -> None:
    """A drop is a drop, a close has its code; what comes after is another connection."""
    ends: list[tuple[int | None, object]] = []

    async def behave(connection: ServerConnection) -> None:
        await connection.recv()
        await connection.send(f"TOKEN {json.dumps([token(7)])}")
        await connection.wait_closed()
        ends.append((connection.close_code, connection.protocol.close_rcvd))

    recorded: list[Event] = [
        generate(0),
        tokens(1, token(7)),
        Drop(2, 1, {"by": "client"}),
        generate(3, connection=2),
        tokens(4, token(7), connection=2),
        Close(5, 2, "client", 1001, "bye"),
    ]
    async with listening(behave) as url:
        came, _ = await drive(recorded, url)
    assert [event.connection for event in came if isinstance(event, Open)] == [1, 2]
    assert isinstance(came[3], Drop)
    assert came[3].facts == {"by": "client"}
    assert isinstance(came[-1], Close)
    assert (came[-1].by, came[-1].code, came[-1].reason) == ("client", 1001, "bye")
    assert ends[0] == (1006, None)


async def test_a_server_that_leaves() -> None:
    """Where the server closed in the recording it is waited for; what it closes without that is told as its own."""

    async def behave(connection: ServerConnection) -> None:
        await connection.recv()
        await connection.close(1009, "too long")

    recorded: list[Event] = [generate(0), Close(1, 1, "server", 1009), generate(2, 2)]
    async with listening(behave) as url:
        came, _ = await drive(recorded, url)
    closed = next(event for event in came if isinstance(event, Close))
    assert (closed.by, closed.code, closed.reason) == ("server", 1009, "too long")
    assert isinstance(came[-1], Remark)
    assert came[-1].text == "not sent: the connection is gone"


async def test_what_does_not_come_is_told() -> None:
    """A wait has a limit; the rest is sent all the same, and a sentence says what was missing."""
    received: list[str | bytes] = []

    async def behave(connection: ServerConnection) -> None:
        received.extend([message async for message in connection])

    recorded: list[Event] = [generate(0), tokens(1, token(7)), generate(2, 2), tokens(3, token(7, 2))]
    async with listening(behave) as url:
        _, trouble = await drive(recorded, url, patience=0.1)
    assert trouble == "TOKEN 1 on connection 1 did not come as far as recorded"
    assert len(received) == 2


async def test_a_key_is_shown_and_never_told() -> None:
    """Over both wires, in place of recorded credentials; what is told of the requests has none."""
    recorded: list[Event] = [Request(0, 1, "GET", "/v1/models", {"authorization": "Bearer old"})]
    player = Player(
        Matcher(exchanges([*recorded, Response(0, 1, 200, "OK", {}), Done(0, 1)])), Pace(None), "error", pytest.fail
    )
    player.policy = POLICY
    with socket.create_server(("127.0.0.1", 0)) as place:
        await player.listen([place])
        for scheme in ("http", "ws"):
            url = f"{scheme}://user:{KEY}@127.0.0.1:{place.getsockname()[1]}/"
            came, trouble = await drive(recorded if scheme == "http" else [], url)
            assert (trouble, KEY in repr(came), "old" in repr(came)) == ("", False, False)
        assert player.answered == 1
        with pytest.raises(AccessDeniedError, match="asks for an API key"):
            await drive([generate(0)], f"ws://127.0.0.1:{place.getsockname()[1]}/")
        await player.close()


async def test_recorded_credentials_are_not_sent_beside_others() -> None:
    """A server that takes any of them would answer under another name."""
    seen: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    recorded: list[Event] = [Request(0, 1, "GET", "/", {"authorization": "Bearer old", "x-api-key": "old", "x": "y"})]
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        place = f"127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        await drive(recorded, f"http://{place}")
        await drive(recorded, f"http://:{KEY}@{place}")
    assert b"old" in seen[0]
    assert b"old" not in seen[1]
    assert b"x: y" in seen[1]


async def test_nobody_there() -> None:
    """Without a server there is a clear error."""
    async with listening(lambda connection: connection.wait_closed()) as url:
        pass
    with pytest.raises(ConnectError, match="no LMTP server at"):
        await drive([generate(0)], url)
    with pytest.raises(ConnectError, match="no server at"):
        await drive([Request(0, 1, "GET", "/", {})], url)


async def test_http_byte_for_byte() -> None:
    """HTTP requests are sent with their headers and bodies, streams of events are received as such."""
    recorded: list[Event] = [
        Request(0, 1, "POST", "/v1/x", {"x-a": "b"}, Parsed("", {"stream": True}, "compact")),
        Response(1, 1, 200, "OK", {"content-type": "text/event-stream"}),
        Piece(1, "sse", 1, Parsed("data: ", {"a": 1}, "compact")),
        Piece(2, "sse", 1, "data: [DONE]\n\n"),
        Done(2, 1),
        Request(3, 1, "GET", "/v1/models", {}),
        Response(3, 1, 404, "No", {}),
        Piece(3, "body", 1, "nothing"),
        Done(3, 1),
        Close(4, 1, "client"),
    ]
    import socket

    player = Player(Matcher(exchanges(recorded)), Pace(None), "error", pytest.fail)
    with socket.create_server(("127.0.0.1", 0)) as bound:
        await player.listen([bound])
        came, trouble = await drive(recorded, f"http://127.0.0.1:{bound.getsockname()[1]}")
        await player.close()
    assert trouble == ""
    sent, again = (event for event in came if isinstance(event, Request))
    assert (sent.method, sent.headers["x-a"], sent.wire_body()) == ("POST", "b", b'{"stream":true}')
    assert (again.path, [e.wire() for e in came if isinstance(e, Piece)][-1]) == ("/v1/models", b"nothing")
    assert isinstance(came[-1], Close)


async def test_by_the_clock() -> None:
    """With a speed the recorded times are waited for as well."""

    async def behave(connection: ServerConnection) -> None:
        await connection.wait_closed()

    came: list[Event] = []
    async with listening(behave) as url:
        driver = Driver(parse_target(url), came.append, speed=10.0)
        await driver.run(acts([generate(0), generate(1.0, 2), Close(1.0, 1, "client", 1000)]))
    times = [event.time for event in came if isinstance(event, Frame)]
    assert times[1] >= 0.1
