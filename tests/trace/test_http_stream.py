"""HTTP/1.1 split into heads and bodies, wherever its bytes are cut (RFC 9112)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lmtool.trace.http_stream import (
    LONGEST_HEAD,
    Data,
    Head,
    HttpStream,
    Last,
    Opaque,
    Trailer,
    is_websocket_handshake,
    redirect_head,
)

GET = b"GET /v1/models HTTP/1.1\r\nHost: here:1\r\n\r\n"
POST = b"POST /v1/x HTTP/1.1\r\nHost: here:1\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n2\r\nde\r\n0\r\nx: y\r\n\r\n"
UPGRADE = b"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: WebSocket\r\nConnection: keep-alive, Upgrade\r\n\r\n"
ANSWERS = (
    b"HTTP/1.1 100 Continue\r\n\r\n"
    b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"
    b"HTTP/1.1 204 No Content\r\n\r\n"
    b"HTTP/1.1 200\r\n\r\nuntil the end"
)


def bodies(parts: list[object]) -> list[bytes]:
    """The bodies of whole messages."""
    found, body = [], b""
    for part in parts:
        body += part.body if isinstance(part, Data) else b""
        if isinstance(part, Last):
            found.append(body)
            body = b""
    return found


@example([len(GET + POST) + 1])
@given(st.lists(st.integers(0, len(GET + POST + CHUNKED + UPGRADE + b"frames"))))
def test_requests_wherever_they_are_cut(cuts: list[int]) -> None:
    """Heads, bodies and the bytes after an upgrade are the same however the bytes arrive, and none is lost."""
    data = GET + POST + b"\r\n" + CHUNKED + UPGRADE + b"frames"
    stream, parts = HttpStream(responses=False), list[object]()
    places = [0, *sorted(cuts), len(data)]
    for start, end in pairwise(places):
        parts += stream.feed(data[start:end])
    assert b"".join(part.raw for part in parts) == data  # type: ignore[attr-defined]
    heads = [part.start[:2] for part in parts if isinstance(part, Head)]
    assert heads == [("GET", "/v1/models"), ("POST", "/v1/x"), ("POST", "/"), ("GET", "/")]
    assert bodies(parts) == [b"", b"hello", b"abcde", b""]
    assert b"".join(part.raw for part in parts if isinstance(part, Opaque)) == b"frames"


@given(st.lists(st.integers(0, len(ANSWERS))))
def test_responses_wherever_they_are_cut(cuts: list[int]) -> None:
    """No body for 1xx, 204 and HEAD; a body without a length lasts until the end."""
    stream, parts = HttpStream(responses=True), list[object]()
    stream.methods.extend(["GET", "HEAD", "GET", "GET"])
    places = [0, *sorted(cuts), len(ANSWERS)]
    for start, end in pairwise(places):
        parts += stream.feed(ANSWERS[start:end])
    parts += stream.end()
    assert bodies(parts) == [b"", b"ok", b"", b"", b"until the end"]
    assert b"".join(part.raw for part in parts) == ANSWERS  # type: ignore[attr-defined]


def test_a_body_is_never_held_back() -> None:
    """Each byte of a body comes out with the call that brought it; a head and a trailer wait to be complete."""
    stream = HttpStream(responses=False)
    for byte in CHUNKED[: CHUNKED.index(b"3;")]:
        parts = stream.feed(bytes([byte]))
    assert len(parts) == 1
    body, zero, trailers = CHUNKED[CHUNKED.index(b"3;") :].partition(b"0\r\n")
    for byte in body + zero:
        assert b"".join(part.raw for part in stream.feed(bytes([byte]))) == bytes([byte])
    parts = [part for byte in trailers for part in stream.feed(bytes([byte]))]
    assert b"".join(part.raw for part in parts) == trailers
    assert [part.raw for part in parts if isinstance(part, Trailer)] == trailers.splitlines(keepends=True)[:-1]
    assert stream.between


def test_framing_is_bounded() -> None:
    """Chunk extensions and trailers are followed up to a number of bytes; the framing of small chunks is not one."""
    head = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"
    for framing in (b"0\r\n" + b"a: b\r\n" * 3000, b"0\r\na: " + b"b" * 9000, (b"1;" + b"a" * 900 + b"\r\nx\r\n") * 30):
        stream = HttpStream(responses=False)
        assert b"".join(part.raw for part in stream.feed(head + framing)) == head + framing
        assert stream.broken == "a line that is too long"
    stream = HttpStream(responses=False)
    stream.feed(head + b"1;a\r\nx\r\n" * 30_000 + b"0\r\na: b\r\n\r\n")
    assert stream.between


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x16\x03\x01 not HTTP\r\n\r\nrest", "no HTTP/1.1 message"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "no HTTP/1.1 message"),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * LONGEST_HEAD, "no HTTP/1.1 message"),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\nrest", "a chunk without a size"),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n-5\r\nrest", "a chunk without a size"),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n" + b"1" * 9000, "a line that is too long"),
    ],
)
def test_what_cannot_be_followed_is_passed_on(data: bytes, reason: str) -> None:
    """Bytes that are no HTTP/1.1 come out as they are, from there to the end."""
    stream = HttpStream(responses=False)
    parts = [*stream.feed(data), *stream.feed(b"more")]
    assert stream.broken == reason
    assert b"".join(part.raw for part in parts) == data + b"more"
    assert isinstance(parts[-1], Opaque)


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_passed_on(data: bytes, responses: bool) -> None:
    """Whatever is sent, all of it comes out again."""
    stream = HttpStream(responses=responses)
    parts = [*stream.feed(data), *stream.end()]
    assert b"".join(part.raw for part in parts) == data


def test_a_refused_upgrade_is_http_again() -> None:
    """After `resume` the next bytes are a head."""
    stream = HttpStream(responses=False)
    stream.feed(UPGRADE)
    assert not stream.between
    stream.resume()
    assert isinstance(stream.feed(GET)[0], Head)


def head(data: bytes) -> Head:
    """The head of a request."""
    part = HttpStream(responses=False).feed(data)[0]
    assert isinstance(part, Head)
    return part


def test_handshakes_are_known() -> None:
    """Upgrade: websocket together with Connection: upgrade."""
    assert is_websocket_handshake(head(UPGRADE))
    assert not is_websocket_handshake(head(GET))


@pytest.mark.parametrize(
    ("path", "base", "there"),
    [
        ("/v1/models", "/v1", "/v1/models"),
        ("/models", "/v1", "/v1/models"),
        ("/models", "/v1/", "/v1/models"),
        ("/v1", "/v1", "/v1"),
        ("/v1?a=b", "/v1", "/v1?a=b"),
        ("/v10/x", "/v1", "/v1/v10/x"),
        ("/", "/lmtp", "/lmtp"),
        ("/", "/", "/"),
        ("http://other/x", "/v1", "http://other/x"),
        ("/v1/chat/completions", "/api/v1", "/api/v1/chat/completions"),
        ("/chat/completions", "/api/v1", "/api/v1/chat/completions"),
        ("/api/v1/models?a=b", "/api/v1", "/api/v1/models?a=b"),
        ("/v1?a=b", "/openai/v1/", "/openai/v1?a=b"),
        ("/v1/models", "/v1beta/openai", "/v1beta/openai/v1/models"),
    ],
)
def test_requests_are_redirected(path: str, base: str, there: str) -> None:
    """The server's own name, its base path where the client's lacks it, and every other byte as it was."""
    request = b"GET %s HTTP/1.1\r\nA: \xe9\r\nHOST: here:1\r\nB:  c \r\n\r\n"
    assert redirect_head(head(request % path.encode()), "there:2", base) == (
        b"GET %s HTTP/1.1\r\nA: \xe9\r\nHost: there:2\r\nB:  c \r\n\r\n" % there.encode()
    )
