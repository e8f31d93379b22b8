"""A balancer over servers of different models offers all of them on every wire, each by its name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import httpx2
import pytest
from websockets.asyncio.client import connect

import lmtool
from lmtool.core.errors import UnknownModelError
from lmtool.inference.engine.config import EngineConfig
from lmtool.protocol.evergreen.codec import encode, pack_struct
from lmtool.protocol.evergreen.messages import SessionMessage, TargetSpec
from lmtool.serving.config import ModelsConfig, ServiceConfig
from tests.conftest import STORIES
from tests.protocol.evergreen.harness import action, leaf
from tests.protocol.evergreen.test_websocket import value
from tests.serving.running import running

NAMES = ("lmtool-tiny", "stories260K")
PROMPT = "Once upon a time"
UNNAMED = f"the request names no model, and 2 are served; served here: {', '.join(NAMES)}"


@pytest.fixture
async def urls() -> AsyncIterator[dict[str | None, str]]:
    """The address of each model's server; None: of a balancer over both."""
    async with AsyncExitStack() as stack:
        found: dict[str | None, str] = {}
        for model in (NAMES[0], str(STORIES)):
            config = ServiceConfig(ModelsConfig(model), EngineConfig(threads=1))
            service, where = await stack.enter_async_context(running(config))
            assert service.health.model is not None
            found[service.health.model] = where
        front = ServiceConfig(workers=tuple(found.values()), balances=True)
        service, found[None] = await stack.enter_async_context(running(front))
        assert service.health.model is None
        yield found


async def posted(where: str, path: str, **body: object) -> httpx2.Response:
    async with httpx2.AsyncClient(base_url=where.replace("ws", "http", 1), timeout=60) as http:
        return await http.post(path, json={"temperature": 0, "max_tokens": 6, **body})


async def test_all_are_listed(urls: dict[str | None, str]) -> None:
    """By `/v1/models`; a request without a name is refused with the names, as by one server of several models."""
    async with httpx2.AsyncClient(base_url=urls[None].replace("ws", "http", 1), timeout=60) as http:
        cards = (await http.get("/v1/models")).json()["data"]
    assert [(card["id"], card["phase"]) for card in cards] == [(name, "ready") for name in NAMES]
    for path, body in (
        ("/v1/completions", {"prompt": PROMPT}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "Hi"}]}),
    ):
        answer = await posted(urls[None], path, **body)
        assert (answer.status_code, UNNAMED in answer.text) == (404, True), answer.text
    async with lmtool.connect(urls[None]) as model:
        with pytest.raises(UnknownModelError) as refused:
            [one async for one in model.generate(PROMPT, max_tokens=1)]
    assert refused.value.sentence == UNNAMED


async def test_each_answers_as_its_own_server(urls: dict[str | None, str]) -> None:
    """LMTP, OpenAI's routes, Anthropic's and Evergreen give what the model's own server gives."""
    for name in NAMES:
        await compare(urls[name], urls[None], name)


async def compare(own: str, front: str, name: str) -> None:
    """A model's own server and one that passes its requests on."""
    turns = [{"role": "user", "content": "Hi"}]
    for path, body, part in (
        ("/v1/completions", {"prompt": PROMPT, "model": name}, "choices"),
        ("/v1/chat/completions", {"messages": turns, "model": name}, "choices"),
        ("/v1/messages", {"messages": turns, "model": name}, "content"),
    ):
        answers = [await posted(where, path, **body) for where in (own, front)]
        assert answers[0].status_code == answers[1].status_code, answers[1].text
        assert answers[0].json().get(part) == answers[1].json().get(part)
    texts = []
    for where in (own, front):
        async with lmtool.connect(where, model=name) as model:
            texts.append("".join([one.text or "" async for one in model.generate(PROMPT, max_tokens=6)]))
    assert texts[0] == texts[1] != ""
    options = pack_struct({"max_tokens": 6, "temperature": 0})
    spec = TargetSpec(name)
    generate = action("GENERATE", {"prompt": "q"}, {"response": "a"}, configs=(options,), target_spec=spec)
    ask = SessionMessage((leaf("q", PROMPT),), (generate,))
    async with connect(f"{front}evergreen") as websocket:
        await websocket.send(encode(ask))
        assert await value(websocket, "a") == texts[0].encode()


async def test_a_balancer_counts_for_itself(urls: dict[str | None, str]) -> None:
    """Its own `/metrics` has the streams that went through it by model, its queue, its workers; its probe is ready."""
    assert (await posted(urls[None], "/v1/completions", model=NAMES[1], prompt=PROMPT)).status_code == 200
    async with httpx2.AsyncClient(base_url=urls[None].replace("ws", "http", 1), timeout=60) as http:
        lines = (await http.get("/metrics")).text.splitlines()
        assert (await http.get("/health/ready")).status_code == 200
    own = f'{{model_name="{NAMES[1]}"}}'
    assert {
        f"lmtool_time_to_first_token_seconds_count{own} 1",
        f"lmtool_inter_token_latency_seconds_count{own} 5",
        f"lmtool_request_queue_time_seconds_count{own} 1",
        f"lmtool_generation_tokens_total{own} 6",
        "lmtool_workers_up 2",
        *(
            f'lmtool_worker_{name}{{worker="{number}"}} {value}'
            for name, value in (("up", 1), ("streams", 0))
            for number in "12"
        ),
    } <= set(lines)
