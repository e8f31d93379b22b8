"""The door in front of an application: what reaches it, and what is answered instead."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from lmtool.net.access.asgi import Door
from lmtool.net.access.credentials import key_protocol
from lmtool.net.access.policy import AccessPolicy, Refusal

HOST = (b"host", b"127.0.0.1:1")
KEY = (b"authorization", b"Bearer secret")
PAGE = (b"origin", b"https://good.example")
POLICY = AccessPolicy("secret", ("https://good.example",))


class Inner:
    """An application that keeps the scopes it gets, and answers."""

    def __init__(self) -> None:
        self.scopes: list[Mapping[str, Any]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 500, "headers": [(b"x-own", b"1")]})
            await send({"type": "http.response.body", "body": b"a", "more_body": True})
            await send({"type": "http.response.body", "body": b"b"})


async def unread() -> Any:
    """The body of a request that must not be read."""
    pytest.fail("something was received")


def knock(
    kind: str, *headers: tuple[bytes, bytes], policy: AccessPolicy = POLICY, **more: Any
) -> tuple[Inner, list[Any]]:
    """Send a request; the application behind the door, and what was sent back."""
    inner, sent = Inner(), list[Any]()

    async def send(event: Any) -> None:
        sent.append(event)

    def write(path: str, refusal: Refusal) -> tuple[int, bytes]:
        return refusal.status, json.dumps({"path": path, "code": refusal.reason}).encode()

    scope = {"type": kind, "method": "POST", "path": "/v1/x", "headers": [HOST, *headers], "client": ("1.2.3.4", 5)}
    if kind == "websocket":
        scope |= {"subprotocols": [], "extensions": {"websocket.http.response": {}}}
    asyncio.run(Door(inner, policy, write)({**scope, **more}, unread, send))
    return inner, sent


def test_what_is_let_in() -> None:
    """The application gets the request without its credentials; its answer is passed on."""
    inner, sent = knock("http", KEY, (b"x-api-key", b"secret"), (b"accept", b"*/*"))
    (scope,) = inner.scopes
    assert scope["headers"] == [HOST, (b"accept", b"*/*")]
    assert sent[0]["headers"] == [(b"x-own", b"1"), (b"vary", b"Origin")]
    assert b"".join(event["body"] for event in sent[1:]) == b"ab"


def test_what_is_not() -> None:
    """Nothing is received, nothing reaches the application; the answer is in the form that the path has."""
    inner, sent = knock("http", (b"authorization", b"Bearer wrong"), PAGE)
    assert inner.scopes == []
    start, body = sent
    headers = dict(start["headers"])
    assert start["status"] == 401
    assert json.loads(body["body"]) == {"path": "/v1/x", "code": "invalid_api_key"}
    assert headers[b"access-control-allow-origin"] == b"https://good.example"  # the page may read why
    assert headers[b"www-authenticate"].startswith(b"Bearer")
    assert headers[b"content-length"] == str(len(body["body"])).encode()


def test_foreign_pages_read_nothing() -> None:
    """Their refusal has no header that lets them."""
    inner, sent = knock("http", KEY, (b"origin", b"https://evil.example"))
    assert (inner.scopes, sent[0]["status"]) == ([], 403)
    assert b"access-control-allow-origin" not in dict(sent[0]["headers"])


def test_pages_read_errors_and_streams() -> None:
    """Every answer has the headers, whatever its status, once."""
    _, sent = knock("http", KEY, PAGE)
    assert sent[0]["status"] == 500
    assert dict(sent[0]["headers"])[b"access-control-allow-origin"] == b"https://good.example"
    assert len(sent) == 3


def test_preflights_start_nothing() -> None:
    """They are answered here, without a key and without a body."""
    asked = ((b"access-control-request-method", b"POST"), (b"access-control-request-headers", b"authorization"))
    inner, (start, body) = knock("http", PAGE, *asked, method="OPTIONS")
    assert (inner.scopes, start["status"], body["body"]) == ([], 204, b"")
    assert dict(start["headers"])[b"access-control-allow-headers"] == b"authorization"
    inner, (start, _) = knock("http", (b"origin", b"https://evil.example"), *asked, method="OPTIONS")
    assert (inner.scopes, start["status"]) == ([], 403)


def test_sockets() -> None:
    """A handshake is let in or answered by a status; a key among the subprotocols goes no further."""
    offered = ["lmtp", key_protocol("secret")]
    header = (b"sec-websocket-protocol", ", ".join(offered).encode())
    inner, sent = knock("websocket", header, subprotocols=offered)
    (scope,) = inner.scopes
    assert (scope["subprotocols"], sent) == (["lmtp"], [])
    assert dict(scope["headers"])[b"sec-websocket-protocol"] == b"lmtp"
    inner, (start, body) = knock("websocket")
    assert (inner.scopes, start["type"], start["status"]) == ([], "websocket.http.response.start", 401)
    assert b"asks for a key" in body["body"]
    inner, sent = knock("websocket", extensions={})
    assert (inner.scopes, sent) == ([], [{"type": "websocket.close"}])


def test_health_is_open_over_http_alone() -> None:
    """Also where a proxy in front puts the server; not as a socket, and not elsewhere."""
    for path, root in (("/health", ""), ("/health", "/llm"), ("/llm/health", "/llm"), ("/llm/health", "/llm/")):
        inner, _ = knock("http", method="GET", path=path, root_path=root)
        assert len(inner.scopes) == 1
    for path, root in (("/llm/health", ""), ("/llmhealth", "/llm"), ("/health/x/../v1", ""), ("/v1/health", "")):
        inner, _ = knock("http", method="GET", path=path, root_path=root)
        assert inner.scopes == []
    assert knock("websocket", path="/health")[0].scopes == []


def test_what_is_no_request() -> None:
    """Start and end of the application are its own."""
    inner, _ = knock("lifespan")
    assert len(inner.scopes) == 1
