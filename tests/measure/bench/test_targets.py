"""Servers under load: records of their answers, and their CPU time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

from lmtool.core.errors import ConnectError, ServerError
from lmtool.core.types import GenerateRequest
from lmtool.measure.bench.targets import PROC, HttpApi, ModelTarget, OpenAITarget, listener, process_cpu_seconds
from lmtool.measure.bench.workload import Job, schema, words
from lmtool.net.access.policy import AccessPolicy
from tests.scripted_model import ScriptedModel, logprob_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


async def test_a_models_tokens_are_stamped() -> None:
    """One stamp a token, ascending, and none too few."""
    model = ScriptedModel()
    record = await ModelTarget(model).send(Job((1, 2), 6))
    assert record.complete
    assert (len(record.stamps), record.tokens) == (6, 6)
    assert record.start <= record.stamps[0] <= record.stamps[-1]
    assert model.requests[0].sampling.ignore_eos  # type: ignore[union-attr]  # a GENERATE


async def test_samples_and_constraints() -> None:
    """A job's seed and constraint go with its request."""
    model, rule = ScriptedModel(), schema(1)
    assert (await ModelTarget(model).send(Job((1, 2), 6, sample_seed=7, constraint=rule))).error is None
    (request,) = model.requests
    assert isinstance(request, GenerateRequest)
    assert (request.sampling.temperature, request.sampling.seed, request.constraint) == (1.0, 7, rule)


async def test_scoring_and_failing() -> None:
    """SCORE counts scored tokens; an error is in the record."""
    target = ModelTarget(ScriptedModel())
    assert (await target.send(Job((1, 2), 0, (3, 4, 5)))).tokens == 3
    failed = await target.send(Job((1_000_000,), 3))
    assert not failed.complete
    assert "not in the vocabulary" in str(failed.error)
    assert logprob_of(3) < 0


CUT = (9, 9)
"""A prompt whose answer breaks off."""
SILENT = (8, 8)
"""A prompt whose tokens have no text."""


@contextlib.asynccontextmanager
async def http_server(bodies: list[dict[str, Any]] | None = None) -> AsyncIterator[str]:
    """A server that streams answers as OpenAI's APIs do. bodies: collects the requests."""
    bodies = [] if bodies is None else bodies
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, StreamingResponse
    from starlette.routing import Route

    from lmtool.protocol.lmtp.config import ServerConfig
    from lmtool.serving.config import ListenConfig
    from lmtool.serving.frontends import http_server
    from lmtool.serving.listening import bind

    async def answer(request: Request) -> Response:
        body = await request.json()
        bodies.append(body)
        chat = request.url.path.endswith("/chat/completions")
        prompt = words(CUT) if chat else list(CUT)
        piece = {"delta": {"content": "ab"}} if chat else {"text": "ab"}
        sent = body["messages"][0]["content"] if chat else body["prompt"]
        if body["model"] != "m":
            return JSONResponse({"error": {"message": "no such model"}}, 404)

        async def events() -> AsyncIterator[str]:
            for _ in range(body["max_tokens"] // 2):  # two tokens a chunk
                if sent not in (list(SILENT), words(SILENT)):
                    yield f"data: {json.dumps({'choices': [piece]})}\n\n"
            if sent == prompt:
                return
            yield f"data: {json.dumps({'choices': [{'text': '', 'delta': {}, 'finish_reason': 'length'}]})}\n\n"
            usage = {"prompt_tokens": 7, "completion_tokens": body["max_tokens"]}
            yield f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n"
            yield "data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    async def models(_request: Request) -> Response:
        return JSONResponse({"data": [{"id": "m"}]})

    posts = [Route(f"/v1{path}", answer, methods=["POST"]) for path in ("/completions", "/chat/completions")]
    routes = [*posts, Route("/v1/models", models)]
    sockets = bind(ListenConfig(port=0))
    server = http_server(Starlette(routes=routes), AccessPolicy(), ServerConfig())
    task = asyncio.create_task(server.serve(sockets))
    try:
        yield f"http://127.0.0.1:{sockets[0].getsockname()[1]}/v1"
    finally:
        server.should_exit = True
        await task


@pytest.mark.parametrize("api", ["chat", "completions"])
async def test_an_openai_compatible_server(api: HttpApi) -> None:
    """A stamp a piece of text, tokens as the server counts them; an answer without an ending is a failure."""
    async with http_server() as url:
        target = OpenAITarget(url, "m", api=api)
        assert await target.models() == ["m"]
        record = await target.send(Job((1, 2), 6))
        cut = await target.send(Job(CUT, 6))
        target.model = "other"
        refused = await target.send(Job((1, 2), 6))
        scoring = await target.send(Job((1,), 0, (2,)))
        await target.close()
    assert (len(record.stamps), record.tokens, record.prompt_tokens, record.error) == (3, 6, 7, None)
    assert (len(cut.stamps), cut.complete, cut.error) == (3, False, "the answer ended before the stream did")
    assert refused.error is not None
    assert refused.error.startswith("status 404")
    assert scoring.error is not None


@pytest.mark.parametrize("api", ["chat", "completions"])
async def test_an_answer_without_text_is_whole(api: HttpApi) -> None:
    """Tokens may have no text, such as parts of characters: an answer of these has an end, and tokens in `usage`."""
    async with http_server() as url:
        target = OpenAITarget(url, "m", api=api)
        record = await target.send(Job(SILENT, 6))
        await target.close()
    assert (record.complete, record.tokens, len(record.stamps)) == (True, 6, 1)
    assert record.ttft == record.e2el > 0


async def test_a_chat_is_what_people_use() -> None:
    """A load of an HTTP server posts messages by default: common words in place of ids, a schema as response format."""
    bodies: list[dict[str, Any]] = []
    async with http_server(bodies) as url:
        target = OpenAITarget(url, "m")
        await target.send(Job((1, 2, 1), 6, constraint=schema(1)))
        await target.close()
    (body,) = bodies
    assert body["messages"] == [{"role": "user", "content": "of and of"}]
    assert body["response_format"]["json_schema"]["schema"] == json.loads(schema(1).text)
    assert "prompt" not in body


async def test_samples_and_constraints_over_http() -> None:
    """A job's seed and constraint go with its request here, too."""
    bodies: list[dict[str, Any]] = []
    rule = schema(1)
    async with http_server(bodies) as url:
        target = OpenAITarget(url, "m", api="completions")
        await target.send(Job((1, 2), 6))
        await target.send(Job((1, 2), 6, sample_seed=7, constraint=rule))
        await target.close()
    plain, sampled = bodies
    assert (plain["stream"], plain["stream_options"], plain["ignore_eos"]) == (True, {"include_usage": True}, True)
    assert (plain["temperature"], "seed" in plain, "structured_outputs" in plain) == (0, False, False)
    assert (sampled["temperature"], sampled["seed"]) == (1, 7)
    assert sampled["structured_outputs"] == {"json": json.loads(rule.text)}


async def test_no_server() -> None:
    """An address without a server, and one that is no API."""
    target = OpenAITarget("http://127.0.0.1:1/v1")
    with pytest.raises(ConnectError, match="no OpenAI-compatible server"):
        await target.models()
    assert (await target.send(Job((1,), 2))).error is not None
    await target.close()
    async with http_server() as url:
        target = OpenAITarget(url.removesuffix("/v1") + "/v2")
        with pytest.raises(ServerError, match="404"):
            await target.models()
        await target.close()


LINUX = pytest.mark.skipif(not PROC.is_dir(), reason="needs Linux's /proc")


@LINUX
def test_the_listener_of_a_port() -> None:
    """This process, or none."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert listener(port) == os.getpid()
    assert listener(port) is None


@LINUX
def test_cpu_time_counts_children() -> None:
    """A child's work is its parent's; a process that is gone has none."""
    work = "import sys; sum(range(4_000_000)); print(); sys.stdin.read()"
    before = process_cpu_seconds(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", work], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    own = process_cpu_seconds(child.pid)
    total = process_cpu_seconds(os.getpid())
    assert own is not None
    assert total is not None
    assert before is not None
    assert own > 0
    assert total - before > own
    child.communicate(b"")
    assert process_cpu_seconds(child.pid) is None


@LINUX
def test_cpu_time_is_finer_than_the_systems_ticks() -> None:
    """Work of far less than a tick of 10 ms is seen each time, so that a short load's figures are not 0 or double."""
    seen = [process_cpu_seconds(os.getpid()) or 0.0]
    for _ in range(20):
        sum(range(1000))
        seen.append(process_cpu_seconds(os.getpid()) or 0.0)
    assert all(later > earlier for earlier, later in itertools.pairwise(seen))
    assert min(later - earlier for earlier, later in itertools.pairwise(seen)) < 1 / os.sysconf("SC_CLK_TCK")
