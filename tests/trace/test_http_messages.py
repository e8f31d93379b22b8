"""An HTTP request and its response as events, however their bytes come."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest

from lmtool.access.credentials import key_protocol
from lmtool.trace.events import Done, Parsed, Piece, Remark, Request
from lmtool.trace.http_messages import RequestRecorder, ResponseRecorder, joined_headers
from lmtool.trace.http_stream import Head

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lmtool.trace.events import Event

POST = Head(b"", ("POST", "/v1/x", "HTTP/1.1"), (("accept", "a"), ("accept", "b")))


def response(content_type: str, *chunks: bytes, **headers: str) -> list[Event]:
    """The events of a response's body."""
    pairs = (("content-type", content_type), *((name.replace("_", "-"), value) for name, value in headers.items()))
    recorder = ResponseRecorder(Head(b"", ("HTTP/1.1", "200", "OK"), pairs), 1, "py")
    return [*(event for chunk in chunks for event in recorder.add(1.0, chunk)), *recorder.finish(2.0)]


def contents(events: Iterable[Event]) -> list[object]:
    """Contents of the pieces."""
    return [event.content for event in events if isinstance(event, Piece)]


def test_a_request_is_emitted_once() -> None:
    """Whole, with the headers of one name joined; a handshake only where it was refused."""
    recorder = RequestRecorder(POST)
    recorder.add(b'{"a": ')
    recorder.add(b"1}")
    (request,) = recorder.emit(0.5, 1, "py")
    assert request == Request(0.5, 1, "POST", "/v1/x", {"accept": "a, b"}, Parsed("", {"a": 1}, "py"))
    assert list(recorder.emit(0.6, 1, "py")) == []
    upgrade = Head(b"", ("GET", "/", "HTTP/1.1"), (("upgrade", "websocket"), ("connection", "Upgrade")))
    assert list(RequestRecorder(upgrade).emit(0.0, 1, "py")) == []
    assert len(list(RequestRecorder(upgrade).emit(0.0, 1, "py", even_upgrade=True))) == 1
    assert joined_headers(POST) == {"accept": "a, b"}


def test_credentials_are_not_emitted() -> None:
    """Of a request and of a response, wherever they stand."""
    secret = tuple((name, "secret") for name in ("authorization", "x-api-key", "cookie", "set-cookie"))
    head = Head(
        b"", POST.start, (*POST.headers, *secret, ("sec-websocket-protocol", f"lmtp, {key_protocol('secret')}"))
    )
    assert joined_headers(head) == {"accept": "a, b", "sec-websocket-protocol": "lmtp"}
    (request,) = RequestRecorder(head).emit(0.5, 1, "py")
    assert isinstance(request, Request)
    assert "secret" not in str(request.headers)


def test_bodies_by_their_kind() -> None:
    """Server-sent events and JSON lines come one by one, as their bytes do; everything else in one piece."""
    events = response("text/event-stream", b"data: 1\n\ndata: ", b"2\n\nda")
    assert contents(events) == [Parsed("data: ", 1, "py"), Parsed("data: ", 2, "py"), "da"]
    assert [event.kind for event in events if isinstance(event, Piece)] == ["sse"] * 3
    assert contents(response("application/x-ndjson", b'{"a":1}\n{"b"', b':2}\n{"c":3}')) == [
        '{"a":1}\n', '{"b":2}\n', Parsed("", {"c": 3}, "compact"),
    ]  # fmt: skip
    assert contents(response("application/json", b'{"a": ', b"1}")) == [Parsed("", {"a": 1}, "py")]
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
    monkeypatch.setattr("lmtool.trace.http_messages.LARGEST_PIECE", 10)
    monkeypatch.setattr("lmtool.trace.http_messages.LARGEST_REQUEST", 4)
    assert contents(response("text/event-stream", b"data: " + b"x" * 8, b"y")) == ["data: xxxxxxxx", "y"]
    recorder = RequestRecorder(POST)
    recorder.add(b"x" * 3)
    recorder.add(b"y" * 5)
    assert list(recorder.emit(0.0, 1, "py"))[1] == Remark(0.0, "note", 1, "> 5 bytes of this body were not recorded")
