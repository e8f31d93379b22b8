"""Bytes of one connection as events: HTTP, server-sent events, WebSocket, refusals."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Close as CloseFrame
from websockets.frames import Frame as WireFrame
from websockets.frames import Opcode

from lmtool.trace.events import Close, Done, Drop, Event, Frame, Open, Parsed, Piece, Remark, Request, Response
from lmtool.trace.tap import ConnectionTap

if TYPE_CHECKING:
    from collections.abc import Sequence

HANDSHAKE = (
    b"GET /path HTTP/1.1\r\nHost: h\r\nUser-Agent: lmql/0.7.3\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
)
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
POST = b'POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 8\r\n\r\n{"a": 1}'
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def text(message: str, mask: bool = False) -> bytes:
    """A text frame on the wire."""
    return WireFrame(Opcode.TEXT, message.encode()).serialize(mask=mask)


def chunk(data: bytes) -> bytes:
    """A chunk of a body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def talk(*steps: tuple[str, bytes], by: str = "client") -> list[Event]:
    """The events of a conversation: who, what; each step a second later. Then the connection ends."""
    tap, events = ConnectionTap(1, "py"), list[Event]()
    for time, (who, data) in enumerate(steps):
        if who == "<":
            events += tap.answered(time, data)
        elif tap.upgraded:
            events += tap.frames(time, ">", data)
        else:
            events += tap.asked(time, tap.requests.feed(data))
    return [*events, *tap.end(len(steps), by)]


OPENED = Open(0, 1, {"peer": "client", "path": "/path", "agent": "lmql/0.7.3"})


def test_frames_of_both_directions() -> None:
    """Frames taken apart, also those in the same bytes as the handshake; the first close frame tells who ended."""
    closing = WireFrame(Opcode.CLOSE, CloseFrame(1000, "bye").serialize())
    events = talk(
        (">", HANDSHAKE),
        ("<", SWITCH + text("HELLO {}")),
        (">", text('GENERATE {"stream_id": 1}', mask=True)),
        ("<", text("TOKEN [-Infinity]")),
        (">", closing.serialize(mask=True)),
        ("<", closing.serialize(mask=False)),
    )
    assert events == [
        OPENED,
        Frame(1, "<", 1, Parsed("HELLO", {}, "py")),
        Frame(2, ">", 1, Parsed("GENERATE", {"stream_id": 1}, "py")),
        Frame(3, "<", 1, "TOKEN [-Infinity]"),
        Close(6, 1, "client", 1000, "bye"),
    ]


def test_a_connection_without_a_close_frame_is_dropped() -> None:
    """`drop`, with who was first to end it."""
    assert talk((">", HANDSHAKE), ("<", SWITCH), by="server")[-1] == Drop(2, 1, {"by": "server"})


def test_a_refused_handshake_is_http() -> None:
    """The request, the status and the body of the refusal; the client may then send another request."""
    events = talk(
        (">", HANDSHAKE),
        ("<", b"HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno"),
        (">", b"GET /x HTTP/1.1\r\n\r\n"),
        ("<", b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"),
    )
    assert [type(event) for event in events] == [Open, Request, Response, Piece, Done, Request, Response, Done, Close]
    assert events[3] == Piece(1, "body", 1, "no")


def test_events_of_a_stream_one_by_one() -> None:
    """A server-sent event is an event of the trace, however chunks cut it; its bytes are exact."""
    first, last = b'data: {"choices": []}\n\n', b"data: [DONE]\n\n"
    events = talk(
        (">", POST),
        ("<", STREAM + chunk(first[:9])),
        ("<", chunk(first[9:] + last[:3])),
        ("<", chunk(last[3:]) + b"0\r\n\r\n"),
    )
    assert events == [
        Open(0, 1, {"peer": "client", "path": "/v1/completions"}),
        Request(
            0,
            1,
            "POST",
            "/v1/completions",
            {"content-type": "application/json", "content-length": "8"},
            Parsed("", {"a": 1}, "py"),
        ),
        Response(1, 1, 200, "OK", {"content-type": "text/event-stream", "transfer-encoding": "chunked"}),
        Piece(2, "sse", 1, Parsed("data: ", {"choices": []}, "py")),
        Piece(3, "sse", 1, "data: [DONE]\n\n"),
        Done(3, 1),
        Close(4, 1, "client"),
    ]


@given(st.lists(st.sampled_from([b"\n", b"\r", b"\r\n", b"data: 1", b": x"]), max_size=20), st.integers(1, 5))
def test_no_byte_of_a_stream_is_lost(parts: Sequence[bytes], step: int) -> None:
    """All line ends that server-sent events may have, cut anywhere: the pieces together are the body."""
    body = b"".join(parts)
    steps = [("<", chunk(body[i : i + step])) for i in range(0, len(body), step)]
    events = talk((">", POST), ("<", STREAM), *steps, ("<", b"0\r\n\r\n"))
    assert b"".join(event.wire() for event in events if isinstance(event, Piece)) == body


def test_packed_bodies_are_unpacked() -> None:
    """Gzip is undone, the header still shows it; what is not packed after all is kept as it is."""
    head = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n"
    for body, seen in ((gzip.compress(b'{"a": 1}'), b'{"a": 1}'), (b"not packed", b"not packed")):
        events = talk((">", POST), ("<", head % len(body) + body))
        assert [event.wire() for event in events if isinstance(event, Piece)] == [seen]


def test_large_bodies_are_told_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded: a long body is several events, a request's is cut and the trace says so."""
    monkeypatch.setattr("lmtool.trace.http_messages.LARGEST_PIECE", 10)
    monkeypatch.setattr("lmtool.trace.http_messages.LARGEST_REQUEST", 4)
    events = talk(
        (">", POST), ("<", b"HTTP/1.1 200 OK\r\n\r\n"), ("<", b"x" * 8), ("<", b"y" * 8), ("<", b"z"), by="server"
    )
    assert [e.content for e in events if isinstance(e, Piece)] == ["x" * 8 + "y" * 8, "z"]
    assert any(isinstance(e, Remark) and "8 bytes of this body" in e.text for e in events)
    assert events[-1] == Close(5, 1, "server")


def test_requests_that_are_cut_off() -> None:
    """A response that ends too early, and a request that is never answered, are drops."""
    assert isinstance(talk((">", POST))[-1], Drop)
    assert isinstance(talk((">", POST), ("<", STREAM + chunk(b"data")), by="server")[-1], Drop)
    early = talk((">", POST[:-3]), ("<", b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n"))
    assert Remark(1, "note", 1, "answered before the request was complete") in early


def test_a_connection_that_says_nothing_is_no_event() -> None:
    """A port scan leaves no trace; bytes that are no HTTP leave a note."""
    assert talk() == []
    events = talk((">", b"\x16\x03\x01\r\n\r\n"), (">", b"more"))
    assert events == [Remark(0, "note", 1, "no longer recorded: the client sent no HTTP/1.1 message")]


def test_what_cannot_be_recorded_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages above the limit, and frames that break the protocol."""
    monkeypatch.setattr("lmtool.trace.websocket_stream.LARGEST_MESSAGE", 5)
    events = talk((">", HANDSHAKE), ("<", SWITCH + text("too long") + b"\x83\x00"))
    assert [event.text for event in events if isinstance(event, Remark)] == [
        "< 8 bytes were not recorded",
        "< is no longer recorded: a frame of an unknown kind (0x83)",
    ]


@given(st.lists(st.tuples(st.sampled_from("<>"), st.sampled_from([HANDSHAKE, SWITCH, POST, STREAM]) | st.binary())))
def test_any_bytes_do_no_harm(steps: list[tuple[str, bytes]]) -> None:
    """Whatever both ends send, in whatever order, there are events in order of time and nothing is raised."""
    times = [event.time for event in talk(*steps)]
    assert times == sorted(times)
