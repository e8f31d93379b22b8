"""A server's life: open, load, ready, drain, close."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import openai
import pytest

from lmtool.core.errors import ConnectError, ModelLoadError, UsageError
from lmtool.core.streams import stream
from lmtool.core.types import GenerateRequest, SamplingParams
from lmtool.protocol.lmtp.client import LmtpClient
from lmtool.protocol.lmtp.config import ServerConfig
from lmtool.serving.config import HttpConfig, ModelsConfig, ServiceConfig
from lmtool.serving.service import Service
from tests.serving.running import opened, running

if TYPE_CHECKING:
    from lmtool.core.types import LoadProgress
    from lmtool.net.telemetry.request_log import RequestLog

STORIES = str(Path(__file__).parents[1] / "data/stories260K")


def ignore(_progress: LoadProgress) -> None:
    """Nobody wants to know."""


def http_client(where: str) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=where.replace("ws", "http", 1), timeout=60)


async def probed(http: httpx2.AsyncClient) -> tuple[int, int]:
    """The statuses of `/health/live` and `/health/ready`."""
    live, ready = [await http.get(f"/health/{name}") for name in ("live", "ready")]
    return live.status_code, ready.status_code


async def test_from_the_open_port_to_the_last_word() -> None:
    """Requests wait while the model loads; draining lets streams end and refuses new ones; closing frees the port."""
    log: list[RequestLog] = []
    told: list[str] = []
    service = Service(ServiceConfig(ModelsConfig(STORIES)), log.append)
    where = opened(service)
    loading = asyncio.create_task(service.ready(lambda progress: told.append(progress.phase)))
    async with LmtpClient(where) as client, http_client(where) as http:
        early = stream(
            client, GenerateRequest("a", "Once upon a time", SamplingParams(max_tokens=300, ignore_eos=True))
        )
        assert (await http.get("/health")).status_code == 503
        assert await probed(http) == (200, 503)
        first = await anext(early)
        assert first.token == 432
        info = await loading
        assert info is not None
        assert (info.model, service.health.state, told[-1]) == ("stories260K", "ready", "ready")
        assert service.streams == 1
        lines = (await http.get("/metrics")).text.splitlines()
        assert {"lmtool_connections 1", "lmtool_http_requests_running 0", "lmtool_streams_waiting 0"} <= set(lines)
        assert await probed(http) == (200, 200)
        draining = asyncio.create_task(service.drain(60.0))
        await asyncio.sleep(0)
        assert json.loads((await http.get("/health")).text)["status"] == "draining"
        assert await probed(http) == (200, 503)
        rest = [output async for output in early]
        assert (len(rest), rest[-1].finish_reason) == (299, "length")
        assert await draining
    await service.close()
    ended = [(entry.command, entry.output_tokens, entry.end) for entry in log if entry.command == "GENERATE"]
    assert ended == [("GENERATE", 300, "length")]
    with pytest.raises(ConnectError):
        async with LmtpClient(where):
            pass
    with socket.create_server(("127.0.0.1", int(where.rstrip("/").rpartition(":")[2]))):
        pass


async def test_http_streams_are_waited_for() -> None:
    """Draining lets an answer over HTTP end as well; whoever comes meanwhile is told to come again."""
    async with running(ServiceConfig(ModelsConfig(STORIES))) as (service, where):
        body = {"model": "stories260K", "prompt": "Once", "max_tokens": 300, "ignore_eos": True, "stream": True}
        async with http_client(where) as http:
            async with http.stream("POST", "/v1/completions", json=body) as answer:
                lines = answer.aiter_lines()
                await anext(lines)
                assert service.streams == 1
                draining = asyncio.create_task(service.drain(60.0))
                await asyncio.sleep(0)
                assert (await http.get("/health")).status_code == 503
                refused = await http.post("/v1/completions", json={**body, "stream": False})
                assert (refused.status_code, refused.json()["error"]["type"]) == (503, "overloaded_error")
                assert "shutting down" in refused.json()["error"]["message"]
                rest = [line async for line in lines if line]
            assert rest[-1] == "data: [DONE]"
            assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
            assert await draining
            assert service.streams == 0


async def test_a_drain_that_takes_too_long() -> None:
    """Tells that something was still running, over HTTP too."""
    async with running(ServiceConfig(ModelsConfig(STORIES))) as (service, where):
        body = {"model": "stories260K", "prompt": "Once", "max_tokens": 400, "ignore_eos": True, "stream": True}
        url = where.replace("ws", "http", 1) + "v1/completions"
        async with httpx2.AsyncClient(timeout=60) as http, http.stream("POST", url, json=body) as answer:
            await anext(answer.aiter_lines())
            assert not await service.drain(0.0)
            assert service.streams == 1


async def test_a_load_that_fails_is_told_to_everybody(tmp_path: Path) -> None:
    """To whoever started the server, to clients that wait, and to probes."""
    (tmp_path / "empty").mkdir()
    service = Service(ServiceConfig(ModelsConfig(str(tmp_path / "empty"))))
    where = opened(service)
    async with LmtpClient(where) as client, http_client(where) as http:
        waiting = asyncio.create_task(anext(stream(client, GenerateRequest("a", "text"))))
        with pytest.raises(ModelLoadError):
            await service.ready(ignore)
        assert (await waiting).error is not None
        health = await http.get("/health")
        assert (health.status_code, health.json()) == (500, {"status": "failed"})
        assert await probed(http) == (503, 503)
    await service.close()


async def test_closing_ends_what_still_runs() -> None:
    """Without draining, running streams end with an error that says why."""
    service = Service(ServiceConfig(ModelsConfig(STORIES)))
    where = opened(service)
    await service.ready(ignore)
    async with LmtpClient(where) as client:
        request = GenerateRequest("a", "Once upon a time", SamplingParams(max_tokens=500, ignore_eos=True))
        outputs = stream(client, request)
        await anext(outputs)
        closing = asyncio.create_task(service.close())
        last = [output async for output in outputs][-1]
        await closing
        assert last.error_code == "connection"
        assert last.error is not None
        assert "shutting down" in last.error


async def test_workers_do_not_take_the_text_from_http() -> None:
    """The server in front of workers has their model's tokenizer, where it is at hand: logprobs are spelt."""
    worker = f"stdio:{sys.executable} -m lmtool serve --stdio --quiet --threads 1"
    async with running(ServiceConfig(workers=(worker,))) as (_, where), http_client(where) as http:
        ask = {"prompt": "The capital of France is", "max_tokens": 2, "temperature": 0, "logprobs": 1}
        (choice,) = (await http.post("/v1/completions", json=ask)).json()["choices"]
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]


@pytest.mark.parametrize("how", [HttpConfig("llm"), HttpConfig(uvicorn_log_level="loud")])
def test_a_carrier_that_cannot_be(how: HttpConfig) -> None:
    """It is told before anything is opened."""
    with pytest.raises(UsageError):
        how.check()


async def test_behind_a_proxy() -> None:
    """Under `--root-path` the routes answer with the proxy's part of the path, and without it."""
    config = ServiceConfig(ModelsConfig("auto"), http=HttpConfig("/llm"))
    async with running(config, loaded=False) as (_, where), http_client(where) as http:
        assert [(await http.get(path)).status_code for path in ("/llm/health", "/health")] == [503, 503]


async def test_under_auto_it_is_ready_at_once() -> None:
    """No model is named, so there is none to wait for."""
    service = Service(ServiceConfig(ModelsConfig("auto")))
    assert await service.ready(ignore) is None
    assert service.health.state == "ready"
    assert service.streams == 0
    await service.close()


async def listed(http: httpx2.AsyncClient) -> dict[str, str]:
    """Names and phases; each name is there by itself as well, with and without `/v1`."""
    cards = (await http.get("/v1/models")).json()["data"]
    for card in cards:
        for front in ("/v1", ""):
            assert (await http.get(f"{front}/models/{card['id']}")).json()["id"] == card["id"]
    return {card["id"]: card["phase"] for card in cards}


async def test_models_are_listed_at_once() -> None:
    """While one loads, where several are served, under every name that was given; nothing is loaded for it."""
    config = ServiceConfig(ModelsConfig(STORIES, ("a", "b"), allow_model=("lmtool-tiny",)))
    async with running(config, loaded=False) as (service, where):
        async with http_client(where) as http:
            assert await listed(http) == {"a": "unloaded", "b": "unloaded", "lmtool-tiny": "unloaded"}
            loading = asyncio.create_task(service.ready(ignore))
            while (await listed(http))["a"] != "loading":
                assert not loading.done()
            await loading
            assert await listed(http) == {"a": "ready", "b": "ready", "lmtool-tiny": "unloaded"}
            card = (await http.get("/v1/models/b")).json()
            assert (card["root"], card["max_model_len"], card["size_bytes"]) == ("a", 512, 1044992)
            missing = await http.get("/v1/models/other")
            assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")
            refused = await http.post("/v1/embeddings", json={"model": "lmtool-tiny", "input": "x"})
            assert refused.status_code == 400
            assert (await listed(http))["lmtool-tiny"] == "unloaded"
        with openai.OpenAI(base_url=f"{where.replace('ws', 'http', 1)}v1", api_key="x", max_retries=0) as client:
            models = await asyncio.to_thread(lambda: list(client.models.list()))
            assert [model.id for model in models] == ["a", "b", "lmtool-tiny"]
            assert all(type(model.created) is int and model.object == "model" for model in models)
            assert (await asyncio.to_thread(client.models.retrieve, "b")).id == "b"


async def test_two_served_models_are_listed_while_one_loads() -> None:
    """Both at once, from the beginning; what is listed waits for no load."""
    config = ServiceConfig(ModelsConfig("lmtool-tiny", extra_models=(STORIES,)))
    async with running(config, loaded=False) as (service, where), http_client(where) as http:
        loading = asyncio.create_task(service.ready(ignore))
        seen = {tuple((await listed(http)).items())}
        while not loading.done():
            seen.add(tuple((await listed(http)).items()))
        assert (await loading).model == "lmtool-tiny"
        assert [info.model for info in service.loaded] == ["lmtool-tiny", "stories260K"]
        assert await listed(http) == {"lmtool-tiny": "ready", "stories260K": "ready"}
        assert {tuple(name for name, _ in one) for one in seen} == {("lmtool-tiny", "stories260K")}
        assert any("loading" in dict(one).values() for one in seen)


async def test_models_under_auto() -> None:
    """What is in memory or allowed is listed; a name that is neither is no reason to load it, and 404."""
    config = ServiceConfig(ModelsConfig("auto", allow_model=(STORIES,)))
    async with running(config) as (_, where), http_client(where) as http:
        assert await listed(http) == {"stories260K": "unloaded"}
        assert (await http.get("/v1/models/org/other")).status_code == 404
        for name in ("org/other", str(Path(STORIES).parent)):
            refused = await http.post("/v1/completions", json={"model": name, "prompt": "a"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
        assert (await http.post("/v1/completions", json={"model": STORIES, "prompt": "a"})).status_code == 200
        assert await listed(http) == {"stories260K": "ready"}


async def test_pins_under_auto() -> None:
    """They are loaded at the start; without a name no model is meant, as several could be."""
    async with running(ServiceConfig(ModelsConfig("auto", allow_model=(STORIES,), pin=(STORIES,)))) as (service, where):
        assert [info.model for info in service.loaded] == ["stories260K"]
        assert service.health.model is None
        async with http_client(where) as http:
            assert await listed(http) == {"stories260K": "ready"}


async def test_frames_above_the_limit_close_their_connection_alone() -> None:
    """The limit of the protocol's configuration reaches the sockets: close code 1009."""
    from websockets.asyncio.client import connect
    from websockets.exceptions import ConnectionClosed

    config = ServiceConfig(ModelsConfig("auto"), server=ServerConfig(max_frame_bytes=1000))
    async with (
        running(config, loaded=False) as (_, where),
        LmtpClient(where) as neighbour,
        connect(where, compression=None) as big,
    ):
        await big.send("GENERATE " + " " * 2000)
        with pytest.raises(ConnectionClosed) as closed:
            await big.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009
        assert (await anext(stream(neighbour, GenerateRequest("a", "text")))).error is not None


async def test_deflate_is_never_agreed_to() -> None:
    """Compressing small frames costs more time than it saves."""
    from websockets.asyncio.client import connect

    service = Service(ServiceConfig(ModelsConfig("auto")))
    async with connect(opened(service), compression="deflate") as socket_:
        assert socket_.response is not None
        assert "Sec-WebSocket-Extensions" not in socket_.response.headers
    await service.close()
