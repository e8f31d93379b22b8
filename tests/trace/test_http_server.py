"""The door of servers that read HTTP/1.1 themselves, and who must not get past it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from socket import create_server

import httpx2
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

import lmtool
from lmtool.net.access.caller import Callers
from lmtool.net.access.forwarding import parse_proxies
from lmtool.net.access.key_file import parse_keys
from lmtool.net.access.policy import AccessPolicy
from lmtool.protocol.evergreen.status import Abort, Status
from lmtool.trace.events import Done, Event, JsonText, Piece, Request, Response
from lmtool.trace.exchanges import recorded_requests
from lmtool.trace.http_server import UNREADABLE, preflight_answer, refusal_answer, refusal_of
from lmtool.trace.http_stream import Head, HttpStream, redirect_head
from lmtool.trace.matching import Matcher, Pace
from lmtool.trace.player import Player
from tests.protocol.evergreen.harness import action, leaf
from tests.trace.conftest import generate, token, tokens
from tests.trace.test_player import Playing, playing, request
from tests.trace.test_proxy import proxy_to, raw_server
from tests.trace.test_session_player import said

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


USAGE = {"prompt_tokens": 3, "completion_tokens": 2}
ANSWERED: list[Event] = [
    Request(0, 1, "POST", "/v1/chat/completions", {}, JsonText("", {"model": "m"}, "py")),
    Response(0, 1, 200, "OK", {"content-type": "application/json"}),
    Piece(0, "body", 1, JsonText("", {"choices": [], "usage": USAGE}, "py")),
    Done(0, 1),
] * 3
STREAMED: list[Event] = [generate(0, 1), tokens(5, token(11, 1)), tokens(9, token(12, 1) | {"finish_reason": "length"})]
SESSION = [
    said(0, ">", leaf("a", "jam"), action("UPPER", {"text": "a"}, {"text": "up"})),
    said(9, "<", leaf("up", "JAM")),
]


def policy(limits: str) -> AccessPolicy:
    """That of a file with one key and these limits of it, for which no time passes."""
    ring = parse_keys(f'[[keys]]\nname = "a"\nkey = "secret"\n{limits}\n', "keys.toml")
    return AccessPolicy(callers=Callers(ring, lambda: 0.0))


@contextlib.asynccontextmanager
async def client(port: int) -> AsyncIterator[httpx2.AsyncClient]:
    """With the key."""
    headers = {"x-api-key": "secret"}
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, trust_env=False) as http:
        yield http


def socket(mock: Playing) -> connect:
    """A WebSocket with the key."""
    return connect(mock.url, additional_headers={"x-api-key": "secret"})


async def failure(connection: object) -> dict[str, object]:
    """The entry of the next frame."""
    _, _, text = str(await connection.recv()).partition(" ")  # type: ignore[attr-defined]
    (entry,) = json.loads(text)
    return dict(entry)


async def ask(http: httpx2.AsyncClient) -> httpx2.Response:
    """The request that is recorded."""
    return await http.post("/v1/chat/completions", json={"model": "m"})


class TestRecordingsThatArePlayed:
    """`trace serve --api-keys`."""

    async def test_requests_a_minute(self) -> None:
        """Over HTTP and LMTP together; the next one is told when to come again."""
        keys = policy("requests_per_minute = 2")
        async with playing([*ANSWERED, *STREAMED], policy=keys) as mock:
            http_and_lmtp = client(mock.port), socket(mock)
            async with http_and_lmtp[0] as http, http_and_lmtp[1] as lmtp:
                assert (await ask(http)).status_code == 200
                await lmtp.send(request(1))
                await lmtp.send(request(2, lmtp=1))
                refused = await failure(lmtp)
                assert (refused["error_code"], refused["retryable"], refused["retry_after"]) == ("overloaded", True, 30)
                answer = await ask(http)
                assert (answer.status_code, answer.headers["retry-after"]) == (429, "30")
                assert answer.json()["error"]["message"].startswith("above the limit requests_per_minute of the key a")
                assert (await http.get("/health")).status_code == 404  # which is nobody's request

    async def test_an_old_client_meets_nothing_new(self) -> None:
        """Without the extensions a refusal is an error and nothing else (EXT-2)."""
        keys = policy("streams = 1")
        async with playing(STREAMED, pace=Pace(1.0), policy=keys) as mock, socket(mock) as lmtp:
            await lmtp.send(request(1))
            await lmtp.send(request(2))
            assert set(await failure(lmtp)) == {"stream_id", "error"}

    async def test_streams_and_connections(self) -> None:
        """A stream counts until it ends, is cancelled or its client goes; a connection until it is closed."""
        keys = policy("streams = 1\nconnections = 1")
        async with playing([*STREAMED, *STREAMED], pace=Pace(1.0), policy=keys) as mock:
            async with socket(mock) as lmtp:
                await lmtp.send(request(1))
                await lmtp.send(request(2))
                assert "above the limit streams of the key a: 1 at once" in str((await failure(lmtp))["error"])
                await lmtp.send('CANCEL {"stream_id": 1}')
                assert (await failure(lmtp))["finish_reason"] == "cancelled"
                await lmtp.send(request(3))
                with pytest.raises(InvalidStatus) as refused:
                    await socket(mock)
                assert refused.value.response.status_code == 429
                async with client(mock.port) as http:
                    assert (await http.get("/v1/models")).status_code == 429
            async with asyncio.timeout(30):
                while not all(one.idle for one in keys.callers._by_key.values()):  # type: ignore[union-attr]
                    await asyncio.sleep(0.002)

    async def test_tokens_a_minute(self) -> None:
        """As they were recorded: three of the prompt and two of the answer, which leave nothing of five."""
        async with playing(ANSWERED, policy=policy("tokens_per_minute = 5")) as mock, client(mock.port) as http:
            assert (await ask(http)).status_code == 200
            answer = await ask(http)
            assert answer.status_code == 429
            assert "tokens_per_minute" in answer.text

    async def test_models(self) -> None:
        """A model that the key may not use is not there, whatever was recorded."""
        keys = policy('models = ["other"]')
        async with (
            playing([*ANSWERED, *STREAMED], policy=keys) as mock,
            client(mock.port) as http,
            socket(mock) as lmtp,
        ):
            assert (await ask(http)).status_code == 404
            await lmtp.send(request(1))
            assert (await failure(lmtp))["error"] == "model 'm' is not served here"

    @pytest.mark.parametrize("wire", ["http", "grpc"])
    async def test_sessions(self, wire: str) -> None:
        """An action is a stream, over either of Evergreen's wires."""
        matcher, keys = Matcher(recorded_requests(SESSION)), policy("requests_per_minute = 1")
        player = Player(matcher, Pace(None), "error", lambda _: None, policy=keys)
        listening = create_server(("127.0.0.1", 0))
        await player.listen([listening])
        assert player.sessions is not None
        grpc = await player.sessions.listen("127.0.0.1", 0)
        url = f"grpc://{grpc}" if wire == "grpc" else f"http://127.0.0.1:{listening.getsockname()[1]}"
        try:
            assert await upper(url) == b"JAM"
            with pytest.raises(Abort) as caught:
                await upper(url)
        finally:
            await player.close()
        assert caught.value.status is Status.RESOURCE_EXHAUSTED
        assert "requests_per_minute of the key a" in str(caught.value)


async def upper(url: str) -> bytes:
    """The answer to the recorded action."""
    async with lmtool.session(url, api_key="secret") as session:
        return await (await session.call("UPPER", {"text": "jam"}, ["text"]))["text"].value()


async def answer_each(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each request of a connection."""
    while b"\r\n" in (head := await reader.readuntil(b"\r\n\r\n")):
        seen.append(head)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")


seen: list[bytes] = []
"""What `answer_each` was sent."""


class TestTheRecorder:
    """`trace record --api-keys`."""

    async def test_requests_and_connections(self) -> None:
        """Counted until they are answered; the next ones go no further, and are not recorded."""
        keys = policy("requests_per_minute = 3\nconnections = 1")
        async with raw_server(_forgiving) as port, proxy_to(f"http://127.0.0.1:{port}", keys) as proxy:
            async with client(proxy.port) as http:
                for _ in range(3):
                    assert (await http.get("/v1/models")).status_code == 200
                assert (await http.get("/v1/models")).status_code == 429
            assert len([one for one in proxy.events if isinstance(one, Request)]) == 3
            assert all(one.idle for one in keys.callers._by_key.values())  # type: ignore[union-attr]

    async def test_a_server_behind_the_same_door_counts_itself(self) -> None:
        """The recorder of `serve --inspect` only says where a request comes from, whatever the client says."""
        seen.clear()
        keys = policy("requests_per_minute = 1")
        async with (
            raw_server(_forgiving) as port,
            proxy_to(f"http://127.0.0.1:{port}", keys, same_door=True) as proxy,
            client(proxy.port) as http,
        ):
            for _ in range(2):
                headers = {"x-forwarded-for": "192.0.2.1", "forwarded": "for=192.0.2.1"}
                assert (await http.get("/", headers=headers)).status_code == 200
        assert b"X-Forwarded-For: 127.0.0.1\r\n" in seen[0]
        assert b"192.0.2.1" not in seen[0]

    async def test_two_headers_that_differ(self) -> None:
        """A trusted proxy's request that names two clients is refused, as by every door."""
        keys = policy("")
        trusting = AccessPolicy(callers=keys.callers, proxies=parse_proxies(["127.0.0.1"]))
        for same_door in (False, True):
            async with (
                raw_server(_forgiving) as port,
                proxy_to(f"http://127.0.0.1:{port}", trusting, same_door=same_door) as proxy,
                client(proxy.port) as http,
            ):
                headers = {"x-forwarded-for": "192.0.2.1", "forwarded": "for=192.0.2.2"}
                assert (await http.get("/", headers=headers)).status_code == 400


async def _forgiving(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(asyncio.IncompleteReadError):
        await answer_each(reader, writer)


def test_where_a_request_comes_from() -> None:
    """One header, in place of all that the client has sent."""
    parts = HttpStream(responses=False).feed(
        b"GET / HTTP/1.1\r\nHost: h\r\nforwarded: for=a\r\nX-Forwarded-For: b\r\n\r\n"
    )
    head = next(part for part in parts if isinstance(part, Head))
    told = redirect_head(head, None, "/", "192.0.2.9")
    assert told == b"GET / HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 192.0.2.9\r\n\r\n"
