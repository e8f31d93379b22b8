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

from lmtool.net.access.credentials import key_protocol
from lmtool.trace import connection_tap
from lmtool.trace.connection_tap import ConnectionTap, FrameTap, ResponseRecorder, _headers_by_name, _RequestRecorder
from lmtool.trace.events import Close, Done, Drop, Event, Frame, JsonText, Open, Piece, Remark, Request, Response
from lmtool.trace.http_stream import Head

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lmtool.trace.events import Event


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
            events += tap.response_bytes(time, data)
        elif tap.upgraded:
            events += tap.frames(time, ">", data)
        else:
            events += tap.request_parts(time, tap.requests.feed(data))
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
        Frame(1, "<", 1, JsonText("HELLO", {}, "py")),
        Frame(2, ">", 1, JsonText("GENERATE", {"stream_id": 1}, "py")),
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
            JsonText("", {"a": 1}, "py"),
        ),
        Response(1, 1, 200, "OK", {"content-type": "text/event-stream", "transfer-encoding": "chunked"}),
        Piece(2, "sse", 1, JsonText("data: ", {"choices": []}, "py")),
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
    monkeypatch.setattr("lmtool.trace.connection_tap.LARGEST_PIECE", 10)
    monkeypatch.setattr("lmtool.trace.connection_tap.LARGEST_REQUEST", 4)
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
        "< is no longer recorded: a frame that breaks the protocol (invalid opcode)",
    ]


@given(st.lists(st.tuples(st.sampled_from("<>"), st.sampled_from([HANDSHAKE, SWITCH, POST, STREAM]) | st.binary())))
def test_any_bytes_do_no_harm(steps: list[tuple[str, bytes]]) -> None:
    """Whatever both ends send, in whatever order, there are events in order of time and nothing is raised."""
    times = [event.time for event in talk(*steps)]
    assert times == sorted(times)


def test_a_connection() -> None:
    """Its beginning, its frames in both directions and its end are told with the time of each."""
    told: list[Event] = []
    ticks = iter((0.0, 0.5, 1.0, 1.5, 2.0))
    tap = FrameTap(lambda _number, events: told.extend(events), lambda: next(ticks))
    tap.opened(3, "x/1")
    tap.frame(3, ">", 'SCORE {"a":1e-6}')
    tap.frame(3, "<", b"\x00")
    tap.ended(3, "client", 1000)
    assert told == [
        Open(0.0, 3, {"peer": "client", "agent": "x/1"}),
        Frame(0.5, ">", 3, JsonText("SCORE", {"a": 1e-6}, "msgspec")),
        Frame(1.0, "<", 3, b"\x00"),
        Close(1.5, 3, "client", 1000),
    ]


def test_ends_without_a_code() -> None:
    """A client that vanished is a drop; a close frame without a code has none."""
    told: list[Event] = []
    tap = FrameTap(lambda _number, events: told.extend(events), lambda: 0.0)
    tap.ended(1, "client", 1006)
    tap.ended(2, "client", 1005)
    tap.ended(3, "client", None)
    assert told == [Drop(0.0, 1, {"by": "client"}), Close(0.0, 2, "client"), Close(0.0, 3, "client")]


POST_HEAD = Head(b"", ("POST", "/v1/x", "HTTP/1.1"), (("accept", "a"), ("accept", "b")))


def response(content_type: str, *chunks: bytes, **headers: str) -> list[Event]:
    """The events of a response's body."""
    pairs = (("content-type", content_type), *((name.replace("_", "-"), value) for name, value in headers.items()))
    recorder = ResponseRecorder(Head(b"", ("HTTP/1.1", "200", "OK"), pairs), 1, "py")
    return [*(event for chunk in chunks for event in recorder.add(1.0, chunk)), *recorder.finish(2.0)]


def contents(events: Iterable[Event]) -> list[object]:
    """Contents of the pieces."""
    return [event.content for event in events if isinstance(event, Piece)]


def test_a_limit_of_what_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an endless body, or of a small one that unpacks to one, the beginning is recorded, and how much was not."""
    monkeypatch.setattr(connection_tap, "LARGEST_RESPONSE", 10)
    events = response("text/plain", b"12345678", b"abc", b"def")
    assert contents(events) == ["12345678ab"]
    assert [event.text for event in events if isinstance(event, Remark)] == ["< 4 bytes of this body were not recorded"]
    packed = gzip.compress(b"x" * 100)
    assert contents(response("text/plain", packed, content_encoding="gzip")) == ["x" * 10]


def test_a_request_is_emitted_once() -> None:
    """Whole, with the headers of one name joined; a handshake only where it was refused."""
    recorder = _RequestRecorder(POST_HEAD)
    recorder.add(b'{"a": ')
    recorder.add(b"1}")
    (request,) = recorder.emit(0.5, 1, "py")
    assert request == Request(0.5, 1, "POST", "/v1/x", {"accept": "a, b"}, JsonText("", {"a": 1}, "py"))
    assert list(recorder.emit(0.6, 1, "py")) == []
    upgrade = Head(b"", ("GET", "/", "HTTP/1.1"), (("upgrade", "websocket"), ("connection", "Upgrade")))
    assert list(_RequestRecorder(upgrade).emit(0.0, 1, "py")) == []
    assert len(list(_RequestRecorder(upgrade).emit(0.0, 1, "py", even_upgrade=True))) == 1
    assert _headers_by_name(POST_HEAD) == {"accept": "a, b"}


def test_credentials_are_not_emitted() -> None:
    """Of a request and of a response, wherever they stand."""
    secret = tuple((name, "secret") for name in ("authorization", "x-api-key", "cookie", "set-cookie"))
    head = Head(
        b"",
        POST_HEAD.start,
        (*POST_HEAD.headers, *secret, ("sec-websocket-protocol", f"lmtp, {key_protocol('secret')}")),
    )
    assert _headers_by_name(head) == {"accept": "a, b", "sec-websocket-protocol": "lmtp"}
    (request,) = _RequestRecorder(head).emit(0.5, 1, "py")
    assert isinstance(request, Request)
    assert "secret" not in str(request.headers)


def test_bodies_by_their_kind() -> None:
    """Server-sent events and JSON lines come one by one, as their bytes do; everything else in one piece."""
    events = response("text/event-stream", b"data: 1\n\ndata: ", b"2\n\nda")
    assert contents(events) == [JsonText("data: ", 1, "py"), JsonText("data: ", 2, "py"), "da"]
    assert [event.kind for event in events if isinstance(event, Piece)] == ["sse"] * 3
    assert contents(response("application/x-ndjson", b'{"a":1}\n{"b"', b':2}\n{"c":3}')) == [
        '{"a":1}\n', '{"b":2}\n', JsonText("", {"c": 3}, "compact"),
    ]  # fmt: skip
    assert contents(response("application/json", b'{"a": ', b"1}")) == [JsonText("", {"a": 1}, "py")]
    assert response("application/json") == [Done(2.0, 1)]


@pytest.mark.parametrize(
    ("body", "seen"),
    [(gzip.compress(b'{"a": 1}'), '{"a": 1}'), (b"not packed", "not packed")],
    ids=["packed", "not packed"],
)
def test_packed_bodies(body: bytes, seen: str) -> None:
    """Gzip is undone; what is not packed after all is kept as it is."""
    events = response("application/json", body, content_encoding="gzip")
    assert b"".join(event.wire() for event in events if isinstance(event, Piece)) == seen.encode()


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long body is several pieces, also within one event; a request's is cut and the trace says so."""
    monkeypatch.setattr("lmtool.trace.connection_tap.LARGEST_PIECE", 10)
    monkeypatch.setattr("lmtool.trace.connection_tap.LARGEST_REQUEST", 4)
    assert contents(response("text/event-stream", b"data: " + b"x" * 8, b"y")) == ["data: xxxxxxxx", "y"]
    recorder = _RequestRecorder(POST_HEAD)
    recorder.add(b"x" * 3)
    recorder.add(b"y" * 5)
    assert list(recorder.emit(0.0, 1, "py"))[1] == Remark(0.0, "note", 1, "> 5 bytes of this body were not recorded")
