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

from lmtool.core.errors import AccessDeniedError, ConnectError
from lmtool.trace.driver import AnswerCounts, Driver, client_actions
from lmtool.trace.events import Close, Done, Drop, Event, Frame, JsonText, Open, Piece, Remark, Request, Response
from lmtool.trace.exchanges import exchanges
from lmtool.trace.matching import Matcher, Pace
from lmtool.trace.player import Player
from lmtool.trace.proxy import parse_target
from tests.net.access.knocking import KEY, POLICY
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


async def drive(events: list[Event], url: str, timeout: float = 10.0) -> tuple[list[Event], str]:
    """What goes over the wire, and what did not come."""
    came: list[Event] = []
    trouble = await Driver(parse_target(url), came.append, timeout=timeout).run(client_actions(events))
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
        Close(5, 2, "client", 1001, "bye" * 50),  # longer than a close frame: a recording may be written by hand
    ]
    async with listening(behave) as url:
        came, _ = await drive(recorded, url)
    assert [event.connection for event in came if isinstance(event, Open)] == [1, 2]
    assert isinstance(came[3], Drop)
    assert came[3].facts == {"by": "client"}
    assert isinstance(came[-1], Close)
    assert (came[-1].by, came[-1].code, came[-1].reason) == ("client", 1001, "bye" * 41)
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
    assert came[-1].text == "not sent: the connection is closed"


async def test_what_does_not_come_is_told() -> None:
    """A wait has a limit; the rest is sent all the same, and a sentence says what was missing."""
    received: list[str | bytes] = []

    async def behave(connection: ServerConnection) -> None:
        received.extend([message async for message in connection])

    recorded: list[Event] = [generate(0), tokens(1, token(7)), generate(2, 2), tokens(3, token(7, 2))]
    async with listening(behave) as url:
        _, trouble = await drive(recorded, url, timeout=0.1)
    assert trouble == "TOKEN 1 on connection 1: fewer answers than recorded"
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
    assert b"content-length" not in seen[0]


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
        Request(0, 1, "POST", "/v1/x", {"x-a": "b"}, JsonText("", {"stream": True}, "compact")),
        Response(1, 1, 200, "OK", {"content-type": "text/event-stream"}),
        Piece(1, "sse", 1, JsonText("data: ", {"a": 1}, "compact")),
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
        await driver.run(client_actions([generate(0), generate(1.0, 2), Close(1.0, 1, "client", 1000)]))
    times = [event.time for event in came if isinstance(event, Frame)]
    assert times[1] >= 0.1


TOKEN_1 = (1, "TOKEN 1")


def test_a_request_waits_for_what_had_come() -> None:
    """A request recorded after the second token of a stream waits for two; one sent at once waits for nothing."""
    made = list(
        client_actions([generate(0, 1), tokens(1, token(7)), tokens(2, token(8)), generate(3, 2), generate(4, 3)])
    )
    assert [dict(act.after) for act in made] == [{}, {TOKEN_1: (0, 2)}, {}, {}]
    assert made[-1].event is None


def test_ends_come_before_tokens() -> None:
    """A stream that has ended is further than any of its tokens, also where its id is used again."""
    first, second = (tokens(i, token(7), token(8) | END) for i in (1, 3))
    made = list(client_actions([generate(0), first, generate(2), second, generate(4)]))
    assert [dict(act.after) for act in made] == [{}, {TOKEN_1: (1, 0)}, {TOKEN_1: (2, 0)}, {}]


def test_a_wait_ends_with_what_it_waits_for() -> None:
    """What ended early, or whose connection has gone, is waited for no longer."""
    received = AnswerCounts()
    wanted = {TOKEN_1: (0, 5), (2, "TOKEN 1"): (1, 0)}
    assert received.missing(wanted) == [TOKEN_1, (2, "TOKEN 1")]
    received.add(tokens(1, token(7) | END))
    received.add(Drop(2, 2))
    assert received.missing(wanted) == []
    assert received.has_ended(2)


def test_news_about_a_request_is_not_its_answer() -> None:
    """How a load proceeds and which fields were ignored differs from server to server: nobody waits for it."""
    news: list[Event] = [
        Frame(1, "<", 1, JsonText("MSG", [{"stream_id": 1, "progress": {}}], "py")),
        Frame(1, "<", 1, JsonText("MSG", [{"stream_id": 1, "ignored": ["x"]}], "py")),
        Frame(1, "<", 1, JsonText("MSG", [{"stream_id": 1, "model_info": {}}], "py")),
    ]
    *_, last = client_actions([generate(0), *news])
    assert dict(last.after) == {(1, "MSG 1"): (1, 0)}


def test_leaving_is_an_act() -> None:
    """Connections that ended, in whatever way, are actions with a cause of their own."""
    events: list[Event] = [generate(0), tokens(1, token(7)), Drop(2, 1, {"by": "client"}), Close(3, 2, "server", 1001)]
    assert [type(act.event) for act in client_actions(events)] == [Frame, Drop, Close, type(None)]


def test_http_answers_count_too() -> None:
    """Server-sent events and the ends of responses are causes; how a plain body was divided is not."""
    request = Request(0, 1, "GET", "/", {})
    events: list[Event] = [request, Piece(1, "sse", 1, "data: 1\n\n"), request, Piece(2, "body", 1, "x"), Done(3, 1)]
    assert [dict(act.after) for act in client_actions(events)] == [{}, {(1, "http"): (0, 1)}, {(1, "http"): (1, 0)}]
