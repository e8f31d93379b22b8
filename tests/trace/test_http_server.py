"""The door of servers that read HTTP/1.1 themselves, and who must not get past it."""

from __future__ import annotations

import json

import pytest

from lmtool.net.access.policy import AccessPolicy
from lmtool.trace.http_server import UNREADABLE, preflight_answer, refusal_answer, refusal_of
from lmtool.trace.http_stream import Head, HttpStream

POLICY = AccessPolicy("secret", ("https://good.example",))
KEY = "Authorization: Bearer secret"


def head(request_line: str, *fields: str, host: str = "Host: localhost") -> Head:
    raw = "\r\n".join([request_line, *([host] if host else []), *fields, "", ""]).encode("latin-1")
    found = HttpStream(responses=False).feed(raw)[0]
    assert isinstance(found, Head)
    return found


def reason(one: Head) -> str | None:
    why = refusal_of(POLICY, one)
    return None if why is None else why.reason


def test_the_same_decision() -> None:
    """Key, origin and host as everywhere; a query is no part of a path."""
    assert reason(head("POST /v1/x HTTP/1.1", KEY)) is None
    assert reason(head("POST /v1/x HTTP/1.1")) == "invalid_api_key"
    assert reason(head("POST /v1/x HTTP/1.1", KEY, "Origin: https://evil.example")) == "foreign_origin"
    assert reason(head("POST /v1/x HTTP/1.1", KEY, host="Host: evil.example")) == "foreign_host"
    assert reason(head("POST /v1/x HTTP/1.1", KEY, host="")) == "invalid_headers"
    assert reason(head("GET /health?deep HTTP/1.1", host="Host: pod")) is None


PREFLIGHT = ("Origin: https://good.example", "Access-Control-Request-Method: POST")


@pytest.mark.parametrize(
    "more", ["Content-Length: 40", "Transfer-Encoding: chunked", "Upgrade: websocket", "Upgrade: h2c"]
)
def test_what_needs_no_key_comes_alone(more: str) -> None:
    """A probe or a preflight that something follows would take that along into the server behind."""
    assert reason(head("GET /health HTTP/1.1")) is None
    assert reason(head("OPTIONS /v1/x HTTP/1.1", *PREFLIGHT)) is None
    assert reason(head("GET /health HTTP/1.1", more)) == "invalid_api_key"
    assert reason(head("OPTIONS /v1/x HTTP/1.1", *PREFLIGHT, more)) == "invalid_api_key"


@pytest.mark.parametrize(
    "one",
    [
        head("GET /health HTTP/1.1", "Transfer-Encoding : chunked"),
        head("GET /health HTTP/1.1", "x: y\nContent-Length: 40"),
        head("GET /health HTTP/1.1", "x: y", " Content-Length: 40"),
        head("GET /health HTTP/1.1", "x\x00: y"),
        head("GET /health HTTP/1.1", "x: y\r z"),
        head("GET /health HTTP/1.1", "no colon"),
        head("GET  /health HTTP/1.1"),
        head("GET /health HTTP/1.1 x"),
        head("GET /health\nx HTTP/1.1"),
    ],
    ids=repr,
)
def test_what_others_may_read_otherwise(one: Head) -> None:
    """A head that the server behind could take for another one is refused, even where nothing is asked for."""
    assert refusal_of(AccessPolicy(), one) is UNREADABLE


def test_answers() -> None:
    """In the form of the path's API, a sentence for a WebSocket, with what lets an allowed page read it."""
    chat, socket = (
        head("POST /v1/messages HTTP/1.1", PREFLIGHT[0]),
        head("GET / HTTP/1.1", "Upgrade: websocket", "Connection: upgrade"),
    )
    why = refusal_of(POLICY, chat)
    assert why is not None
    first, _, body = refusal_answer(POLICY, chat, why).partition(b"\r\n\r\n")
    assert first.startswith(b"HTTP/1.1 401 Unauthorized\r\naccess-control-allow-origin: https://good.example\r\n")
    assert b"connection: close" in first
    assert json.loads(body)["error"]["type"] == "authentication_error"
    assert refusal_answer(POLICY, socket, why).endswith(why.sentence.encode())
    assert refusal_answer(POLICY, None, UNREADABLE).startswith(b"HTTP/1.1 400 Bad Request\r\n")
    answer = preflight_answer(POLICY, head("OPTIONS /v1/x HTTP/1.1", *PREFLIGHT))
    assert answer.startswith(b"HTTP/1.1 204 No Content\r\naccess-control-allow-origin: https://good.example\r\n")
