"""Keys are tenants: what a key without `admin` may do and read, on every route and with every message."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import lmtool
from lmtool.core.errors import LmtoolError
from lmtool.core.streams import stream
from lmtool.core.types import GenerateRequest, SamplingParams
from lmtool.gateway.pools import other_apis
from lmtool.inference.engine.plan import Plan
from lmtool.net.access.keys import KeyRing
from lmtool.protocol.lmtp.client import LmtpClient
from lmtool.serving.config import ModelsConfig, ServiceConfig
from lmtool.serving.health import routes
from tests.net.access.knocking import POLICY
from tests.protocol.lmtp.harness import PATIENCE, until
from tests.serving.keyed_wires import MODEL, OTHER, POOL, KeyedServer, http, keyed_server
from tests.serving.test_every_route import places, serving

KEYS = "".join(
    f'[[keys]]\nname = "{name}"\nkey = "key-{name}"\n{more}\n'
    for name, more in (("tenant", ""), ("other", ""), ("boss", "admin = true"))
)
ADMIN = frozenset({"/metrics"})
"""Routes for keys with `admin`."""
OPEN = frozenset({"/health", "/health/live", "/health/ready"})
"""Routes for everybody."""
SEEN = ("idle_seconds", "running", "waiting", "requests", "cost", "p50_seconds", "outcomes", "prompt_tokens")
"""Members of answers about the server that would tell a key what others do."""
OWN = {
    *("/", "/evergreen", "/v1/language", "/v1/language/", "/v1/health", "/v1/health/", "/v1/language/{rest:path}"),
    *(f"/v1/language/{POOL}/chat{end}" for end in ("", "/", "Stream")),
    *(f"/v1/{POOL}/chat{end}" for end in ("", "/")),
    *(path.replace("{pool}", POOL) + end for path in other_apis.ROUTES for end in ("", "/")),
    *(
        front + path
        for front in ("/v1", "")
        for path in (
            *("/openapi.json", "/models", "/models/gpt2", "/chat/completions", "/completions", "/embeddings"),
            *("/rerank", "/score", "/tokenize", "/detokenize", "/messages", "/messages/count_tokens", "/responses"),
            *("/responses/resp_0", "/responses/resp_0/input_items"),
        )
    ),
}
"""Routes for every key, which show it the server and what it has sent itself."""


def values(told: Any) -> set[str]:
    """The members of `SEEN` in JSON that have a value."""
    if isinstance(told, dict):
        own = {name for name in SEEN if told.get(name) is not None}
        return own.union(*map(values, told.values()))
    return set().union(*map(values, told)) if isinstance(told, list) else set()


async def status_and_text(server: KeyedServer, key: str, method: str, path: str) -> tuple[int, str]:
    """What a route answers."""
    async with (
        aiohttp.ClientSession(headers={"x-api-key": f"key-{key}"}) as session,
        session.request(method, server.http + path, data=None if method in {"GET", "HEAD"} else b"{}") as answer,
    ):
        return answer.status, await answer.text()


async def test_every_route_with_a_key_of_a_tenant(tmp_path: Path) -> None:
    """Each route of a server is for everybody, for every key or for `admin`, and tells no key what others do."""
    async with keyed_server(KEYS, tmp_path) as server:
        assert await http(server, "key-other", "/v1/completions", {"model": MODEL, "prompt": "a", "max_tokens": 1})
        own = routes(server.service.health, list)
        found = {*places([*own, *(route for face in server.service.faces for route in face.routes())])}
        found = {(method, path.replace("{pool}", POOL)) for method, path in found}
        assert {path for _, path in found} == ADMIN | OPEN | OWN, "say in this table for whom a new route is"
        for method, path in sorted(found):
            if method == "WS" or "{" in path:
                continue
            status, text = await status_and_text(server, "tenant", method, path)
            assert (status == 403) == (path in ADMIN), (method, path, status)
            if path in ADMIN:
                assert (await status_and_text(server, "boss", method, path))[0] == 200
                assert "lmtool_" not in text
            if method == "GET" and text.startswith("{") and "openapi" not in path:
                assert values(json.loads(text)) == set(), path
        cards = json.loads((await http(server, "key-boss", "/v1/models")).text)["data"]
        assert any(card["idle_seconds"] is not None for card in cards)
        pools = json.loads((await http(server, "key-boss", "/v1/language")).text)["pools"]
        assert {"requests", "cost", "p50_seconds"} <= pools[0].keys()


MESSAGES: dict[str, str | None] = {
    '{"load": "lmtool-tiny", "stream_id": 1}': "MODELS",
    '{"unload": "stories260K", "stream_id": 1}': "MODELS",
    '{"load": "no-such-model", "stream_id": 1}': "MODELS",
    '{"stream_id": 1, "lmtp": 1}': "WATCH",
}
"""Payloads and commands that a key without a mark is refused."""


async def test_every_message_with_a_key_of_a_tenant(tmp_path: Path) -> None:
    """LMTP: loading, unloading and watching are refused; lists and descriptions tell nothing of what others do."""
    async with keyed_server(KEYS, tmp_path, pools=None) as server:
        for place in (server.url, server.unix):
            if place == server.unix:
                continue  # WATCH is for the server's own user there
            async with (
                aiohttp.ClientSession() as session,
                session.ws_connect(server.http, headers={"x-api-key": "key-tenant"}) as socket,
            ):
                for payload, command in MESSAGES.items():
                    await socket.send_str(f"{command} {payload}")
                    told = json.loads((await socket.receive_str()).partition(" ")[2])[0]
                    assert told["error"].startswith("the key tenant may not"), told
                for command, payload in (
                    ("MODELS", {}),
                    ("MODEL_INFO", {"list": True}),
                    ("MODEL_INFO", {"model": OTHER}),
                ):
                    await socket.send_str(f"{command} {json.dumps({'stream_id': 1, 'lmtp': 1, **payload})}")
                    told = json.loads((await socket.receive_str()).partition(" ")[2])[0]
                    assert "error" not in told
                    assert values(told) == set()
        async with LmtpClient(server.unix, api_key="key-tenant") as client:
            with pytest.raises(LmtoolError, match="the key tenant may not unload models"):
                await client.unload(OTHER)
        async with LmtpClient(server.url, api_key="key-boss") as client:
            assert any(entry.idle_seconds is not None for entry in await client.models())
            assert (await client.info(OTHER)).running == 0
            await client.unload(OTHER)
            await client.load(OTHER)


async def test_the_queue_of_a_tenant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that waits says so; how many of others wait before it is told to keys with `admin` alone."""
    told: dict[str, dict[str, Any]] = {}
    async with keyed_server(KEYS, tmp_path) as server:
        with monkeypatch.context() as nothing_begins:
            nothing_begins.setattr(server.scheduler, "plan", Plan)
            async with aiohttp.ClientSession() as session:
                for name in ("tenant", "boss"):
                    async with session.ws_connect(server.http, headers={"x-api-key": f"key-{name}"}) as socket:
                        request = {"prompt": [1], "stream_id": 1, "model": MODEL, "progress": True, "lmtp": 1}
                        await socket.send_str(f"GENERATE {json.dumps(request)}")
                        while "system" not in (entry := json.loads((await socket.receive_str()).partition(" ")[2])[0]):
                            pass
                        told[name] = entry["system"]
    assert (told["tenant"]["kind"], told["tenant"]["message"]) == ("queued", "in the queue")
    assert "place" not in told["tenant"]
    assert told["boss"]["place"] == 1


@pytest.mark.parametrize(
    "config",
    [
        ServiceConfig(ModelsConfig("auto"), access=POLICY),
        ServiceConfig(access=POLICY, workers=("ws://127.0.0.1:1/",)),
    ],
    ids=["serve", "balance"],
)
async def test_health_names_nothing(config: ServiceConfig) -> None:
    """`/health` has one member, the state, whatever the server serves."""
    async with serving(config) as (port, service, _), aiohttp.ClientSession() as session:
        service.health.model = "secret-model"
        async with session.get(f"http://127.0.0.1:{port}/health") as answer:
            assert await answer.json() == {"status": "loading"}


async def _sse(server: KeyedServer) -> str:
    body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 400, "stream": True, "ignore_eos": True}
    return (await http(server, "key-tenant", "/v1/completions", body)).text


async def _evergreen(server: KeyedServer, place: str) -> str:
    try:
        async with lmtool.session(place, api_key="key-tenant") as session:
            return "".join([piece async for piece in session.generate("Hello", model=MODEL, max_tokens=400)])
    except LmtoolError as error:
        return error.sentence


async def _lmtp(server: KeyedServer, place: str) -> str:
    async with LmtpClient(place, api_key="key-tenant") as client:
        await client.models()
        request = GenerateRequest("a", (1, 40), SamplingParams(max_tokens=400), MODEL)
        return str([output async for output in stream(client, request)][-1].error)


async def _unified(server: KeyedServer) -> str:
    body = {"message": {"role": "user", "content": "Hello"}, "stream": True}
    try:
        return (await http(server, "key-tenant", f"/v1/language/{POOL}/chat", body)).text
    except aiohttp.ClientError as error:
        return f"no longer valid: {error!r}"  # the answer is cut off


async def test_a_key_withdrawn_while_streams_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams of a key that is gone end with `access_denied` on every wire; connections close; others go on."""
    async with keyed_server(KEYS, tmp_path) as server, aiohttp.ClientSession() as session:
        socket = await session.ws_connect(server.http, headers={"x-api-key": "key-tenant"})
        other = await session.ws_connect(server.http, headers={"x-api-key": "key-other"})
        await other.send_str(f'MODEL_INFO {{"stream_id": 0, "model": "{MODEL}"}}')
        await other.receive_str()
        plan, used = server.scheduler.plan, server.callers._by_key

        def until_each_has_begun(*args: Any) -> Plan:
            all_there = used["tenant"].streams == len(wires) and used["other"].streams == 1
            return plan(*args) if all_there and any(one.waiting for one in used.values()) else Plan()

        wires: list[Any] = []
        with monkeypatch.context() as one_token_each:
            one_token_each.setattr(server.scheduler, "plan", until_each_has_begun)
            wires += [_lmtp(server, server.url), _lmtp(server, server.unix), _sse(server), _unified(server)]
            wires += [_evergreen(server, server.url), _evergreen(server, server.grpc)]
            runs = [asyncio.create_task(one) for one in wires]
            await other.send_str(f'GENERATE {{"prompt": [1], "stream_id": 1, "model": "{MODEL}", "max_tokens": 99}}')
            await until(lambda: used["tenant"].streams == len(runs) and used["other"].streams == 1)
            await until(lambda: not used["tenant"].waiting and not used["other"].waiting)
            kept = tuple(key for key in server.callers.ring.keys if key.name != "tenant")
            server.callers.replace(KeyRing(kept))
            async with asyncio.timeout(PATIENCE):
                for told in await asyncio.gather(*runs):
                    assert "no longer valid" in told
                closed = await socket.receive()
            assert (closed.type, closed.data) == (aiohttp.WSMsgType.CLOSE, 1008)
            await until(lambda: {caller.name for caller in server.callers.connected} == {"other"})
        await other.send_str(f'GENERATE {{"prompt": [1], "stream_id": 2, "model": "{MODEL}", "max_tokens": 1}}')
        ends: dict[int, str] = {}
        async with asyncio.timeout(PATIENCE):
            while 1 not in ends:
                entries = json.loads((await other.receive_str()).partition(" ")[2])
                ends |= {entry["stream_id"]: entry["finish_reason"] for entry in entries if entry.get("finish_reason")}
        assert ends[1] in {"stop", "length"}
        assert (await http(server, "key-tenant", "/v1/models")).status == 401


async def test_an_unload_and_a_later_request(tmp_path: Path) -> None:
    """MODELS with unload, and GENERATE right after it on the same connection: both are carried out, in order."""
    async with (
        keyed_server(KEYS, tmp_path, pools=None) as server,
        aiohttp.ClientSession(headers={"x-api-key": "key-boss"}) as session,
        session.ws_connect(server.http) as socket,
    ):
        await socket.send_str('MODELS {"stream_id": 1, "unload": "stories260K"}')
        await socket.send_str('GENERATE {"prompt": [1], "stream_id": 2, "model": "stories260K", "max_tokens": 1}')
        unloaded = json.loads((await socket.receive_str()).partition(" ")[2])[0]
        assert {entry["name"]: entry["phase"] for entry in unloaded["models"]}[OTHER] == "unloaded"
        (token,) = json.loads((await socket.receive_str()).partition(" ")[2])
        assert (token["stream_id"], token["finish_reason"]) == (2, "length")
