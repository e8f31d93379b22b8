"""What a server of ours records of itself: both kinds of conversations, and never at a client's cost."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request as StarletteRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from lmtool.trace.events import Close, Done, Drop, Frame, JsonText, Open, Piece, Remark, Request
from lmtool.trace.events import Response as ResponseEvent
from lmtool.trace.server_tap import ServerTap

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from lmtool.trace.events import Event


class Told(list["Event"]):
    """Takes events; `broken` as a full disk would be if its errors came through."""

    def take(self, number: int, events: Iterable[Event]) -> None:
        taken = list(events)
        assert all(event.connection == number for event in taken)
        self += taken


def application() -> Starlette:
    """Echoes, streams and fails."""

    async def echo(request: StarletteRequest) -> Response:
        return JSONResponse(await request.json())

    async def stream(_: StarletteRequest) -> Response:
        async def events() -> AsyncIterator[str]:
            for number in range(2):
                yield f"data: {json.dumps({'n': number})}\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    async def early(_: StarletteRequest) -> Response:
        return Response(status_code=413)

    async def fails(_: StarletteRequest) -> Response:
        raise RuntimeError("broken")

    routes = [Route(f"/{one.__name__}", one, methods=["GET", "POST"]) for one in (echo, stream, early, fails)]
    return Starlette(routes=[*routes, Route("/health", lambda _: Response("ok"))])


async def asked(told: Told, method: str, path: str, **more: Any) -> httpx2.Response:
    """One request to the application behind a tap."""
    ticks = iter(range(100))
    tap = ServerTap(told.take, lambda: float(next(ticks)))
    transport = httpx2.ASGITransport(app=tap.around(application(), leave_out=("/health",)), raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://x") as client:
        return await client.request(method, path, **more)


async def test_a_request_and_its_answer() -> None:
    """In the form that a proxy writes: opened, request with body, response, body, done, closed; in order of time."""
    told = Told()
    answer = await asked(told, "POST", "/echo?a=1", json={"a": 1}, headers={"user-agent": "x/1", "x-y": "z"})
    assert answer.json() == {"a": 1}
    opened, request, response, piece, done, closed = told
    assert opened == Open(0.0, 1, {"peer": "client", "path": "/echo?a=1", "agent": "x/1"})
    assert isinstance(request, Request)
    assert (request.method, request.path, request.headers["x-y"]) == ("POST", "/echo?a=1", "z")
    assert request.body == JsonText("", {"a": 1}, "msgspec")
    assert isinstance(response, ResponseEvent)
    assert (response.status, response.reason, response.headers["content-type"]) == (200, "OK", "application/json")
    assert isinstance(piece, Piece)
    assert (piece.kind, piece.content) == ("body", JsonText("", {"a": 1}, "msgspec"))
    assert isinstance(done, Done)
    assert isinstance(closed, Close)
    times = [event.time for event in told]
    assert times == sorted(times)


async def test_a_stream_is_told_event_by_event() -> None:
    """Each server-sent event, when it was sent."""
    told = Told()
    await asked(told, "POST", "/stream")
    pieces = [event for event in told if isinstance(event, Piece)]
    assert [(one.kind, one.content) for one in pieces] == [("sse", JsonText("data: ", {"n": n}, "py")) for n in (0, 1)]
    assert pieces[0].time < pieces[1].time


async def test_requests_without_a_body_and_probes() -> None:
    """A GET is complete at once; what asks for health is left out."""
    told = Told()
    await asked(told, "GET", "/early")
    assert not [event for event in told if isinstance(event, Remark)]
    assert sum(isinstance(event, Request) for event in told) == 1
    left_out = Told()
    assert (await asked(left_out, "GET", "/health")).text == "ok"
    assert left_out == []


async def test_early_and_failed_answers() -> None:
    """An answer before the body was read is told with a note; an application that fails ends in a drop or its 500."""
    told = Told()
    await asked(told, "POST", "/early", json={"a": 1})
    assert [type(event) for event in told] == [Open, Request, Remark, ResponseEvent, Done, Close]
    told = Told()
    assert (await asked(told, "POST", "/fails", json={})).status_code == 500
    assert sum(isinstance(event, Request) for event in told) == 1


async def test_a_client_that_leaves() -> None:
    """Its connection is a drop, by the client; what the application raises goes on."""
    told = Told()

    async def leaving(_scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "http.disconnect"
        await send({"type": "http.response.start", "status": 299, "headers": []})
        raise ConnectionError

    async def gone() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def nowhere(_message: Any) -> None:
        """Nobody reads it."""

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/é",
        "headers": [(b"Content-Length", b"5")],
        "query_string": b"",
    }
    tapped = ServerTap(told.take, lambda: 0.0).around(leaving)
    with pytest.raises(ConnectionError):
        await tapped(scope, gone, nowhere)
    assert told[0] == Open(0.0, 1, {"peer": "client", "path": "/%C3%A9"})
    assert [event.reason for event in told if isinstance(event, ResponseEvent)] == [""]
    assert told[-1] == Drop(0.0, 1, {"by": "client"})


async def test_keys_are_left_out() -> None:
    """Of headers, of a query, and where the application repeats them; over a pool's WebSocket as well."""
    key, told = "sesame-0123456789abcdef", Told()
    headers = {"x-api-key": key, "helicone-auth": key, "cookie": f"a={key}"}
    await asked(told, "POST", f"/echo?api_key={key}&a=1", json={"said": key}, headers=headers)
    assert [event.path for event in told if isinstance(event, Request)] == ["/echo?api_key=***&a=1"]
    assert [event.content for event in told if isinstance(event, Piece)] == [JsonText("", {"said": "***"}, "msgspec")]

    async def inner(*_: Any) -> None:
        """End at once."""

    scope = {
        "type": "websocket",
        "path": "/v1/language/p/chatStream",
        "query_string": f"key={key}".encode(),
        "headers": [],
    }
    await ServerTap(told.take, lambda: 0.0).around(inner)(scope, inner, inner)  # type: ignore[arg-type] # never called
    assert told[-2] == Open(0.0, 1, {"peer": "client", "path": "/v1/language/p/chatStream?key=***"})
    assert key not in repr(told)


async def test_other_scopes_are_left_alone() -> None:
    """A WebSocket goes through untouched."""
    calls = []

    async def inner(*parts: Any) -> None:
        calls.append(parts)

    told = Told()
    scope, receive, send = {"type": "websocket", "path": "/"}, object(), object()
    await ServerTap(told.take, lambda: 0.0).around(inner)(scope, receive, send)  # type: ignore[arg-type] # passed on
    assert (calls, told) == ([(scope, receive, send)], [])


async def test_both_kinds_are_numbered_in_one_row() -> None:
    """Connections of LMTP and requests of HTTP, in the order in which they began."""
    told = Told()
    tap = ServerTap(told.take, lambda: 0.0)
    tap.opened(1, "")
    transport = httpx2.ASGITransport(app=tap.around(application()))
    async with httpx2.AsyncClient(transport=transport, base_url="http://x") as client:
        await client.get("/health")
    tap.opened(2, "")
    tap.frame(1, ">", "X {}")
    tap.frame(2, ">", "X {}")
    tap.ended(1, "client", 1000)
    assert [event.connection for event in told if isinstance(event, Open | Frame)] == [1, 2, 3, 1, 3]
