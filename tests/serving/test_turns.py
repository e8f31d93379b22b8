"""While streams wait, connections take turns, whatever they send and by whichever protocol (GEN-14)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from lmtool.api import session
from lmtool.core.types import ChatMessage, ChatPrompt, GenerateRequest, SamplingParams
from lmtool.gateway.pools.config_reader import parse
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.engine.plan import Plan, Sequence
from lmtool.protocol.evergreen.client import Session
from lmtool.protocol.evergreen.messages import ChunkMetadata
from lmtool.protocol.lmtp.client import LmtpClient
from lmtool.serving.config import PoolsConfig, ServiceConfig
from lmtool.serving.service import Service
from tests.protocol.lmtp.harness import until
from tests.serving.running import running

POOL = "pools:\n  - id: pool\n    overridable: [maxTokens]\n    models:\n      - {id: own, local: {}}\n"
MODEL = "lmtool-tiny"
CHAT = ChatPrompt((ChatMessage("user", "Hello"),))
ASKED = range(20, 24)
"""Numbers of one connection's requests, which are their `max_tokens`: by these they are known in the queue."""
OTHERS = range(30, 34)
"""Those of the other connection."""

Send = Callable[[int], Awaitable[None]]
"""Sends the request of this number on a connection."""


@dataclass
class Server:
    """A service, all of whose streams wait."""

    service: Service
    url: str
    closing: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    @property
    def waiting(self) -> list[Sequence]:
        """What waits, in order of service."""
        return list(self.engine._scheduler._waiting)

    @property
    def engine(self) -> Any:
        """The one model's."""
        models: Any = self.service._models
        return models._slots[0].model._inner

    @property
    def numbers(self) -> list[int]:
        """Of the requests that wait."""
        return [sequence.max_length - sequence.prompt_length for sequence in self.waiting]

    def task(self, work: Awaitable[Any]) -> None:
        """Run until the end of the test."""

        async def run() -> None:
            with contextlib.suppress(Exception):  # its answer is of no interest, and the server's end is an error to it
                await work

        task = asyncio.create_task(run())
        self.closing.callback(task.cancel)

    # A connection of each kind.

    def lmtp(self, *prompts: Any, into: str | None = None) -> Send:
        """One that sends these prompts in turn, texts with text, for a conversation to the pool.

        into: what buffers are called that each second stream is appended to.
        """
        client = LmtpClient(self.url)
        self.closing.push_async_callback(client.close)

        async def send(number: int) -> None:
            prompt = prompts[number % len(prompts)]
            model, text = ("pool" if isinstance(prompt, ChatPrompt) else MODEL), not isinstance(prompt, tuple)
            buffer = f"{into}{number}" if into is not None and number % 2 else None
            sampling = SamplingParams(max_tokens=number)
            client.submit(GenerateRequest(number, prompt, sampling, model, text=text, into=buffer), _ignore)

        return send

    async def evergreen(self) -> Send:
        """A session whose prompts are texts and ids, and which asks for text and for ids."""
        opened: Session = await self.closing.enter_async_context(_unless_broken(session(self.url)))

        async def send(number: int) -> None:
            output = "response" if number % 2 else "tokens"
            await opened.call("GENERATE", {"prompt": "Once upon"}, [output], target=MODEL, max_tokens=number)

        return send

    async def chat_socket(self) -> Send:
        """A WebSocket of the pool."""
        client = await self.closing.enter_async_context(aiohttp.ClientSession())
        address = self.url.replace("ws:", "http:")
        websocket = await client.ws_connect(f"{address}v1/language/pool/chatStream")

        async def send(number: int) -> None:
            message = {"role": "user", "content": "Hello"}
            await websocket.send_json({"id": str(number), "message": message, "maxTokens": number})

        return send


@contextlib.asynccontextmanager
async def _unless_broken(opened: Any) -> AsyncIterator[Any]:
    """A session whose end is of no interest."""
    with contextlib.suppress(Exception):
        async with opened as connection:
            yield connection


def _ignore(_outputs: object) -> None:
    """Outputs are of no interest."""


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    """The embedded model and a pool of it, whose scheduler begins nothing: all that comes waits."""
    config = ServiceConfig(engine=EngineConfig(device="cpu", threads=1), pools=PoolsConfig(parse(POOL)))
    async with running(config) as (service, url):
        one = Server(service, url)
        with monkeypatch.context() as held:
            held.setattr(one.engine._scheduler, "plan", Plan)
            yield one
        one.engine._thread.post(lambda: None)  # else it sleeps on
        await one.closing.aclose()


async def queued(server: Server, sends: list[tuple[Send, range]]) -> list[int]:
    """The numbers in order of service, once each connection in turn has sent all of its requests."""
    count = 0
    for send, numbers in sends:
        for number in numbers:
            await send(number)
            count += 1
            await until(lambda expected=count: len(server.waiting) == expected)
    return server.numbers


ALTERNATING = [number for pair in zip(ASKED, OTHERS, strict=True) for number in pair]


async def test_texts_and_ids(server):
    """A connection that sends texts and ids has no more turns than one that sends ids."""
    mixed, plain = server.lmtp("Hello", (5, 6)), server.lmtp((5, 6))
    assert await queued(server, [(mixed, ASKED), (plain, OTHERS)]) == ALTERNATING


async def test_buffers(server):
    """Nor has one whose streams are appended to a buffer."""
    mixed, plain = server.lmtp((5, 6), into="story"), server.lmtp((5, 6))
    assert await queued(server, [(mixed, ASKED), (plain, OTHERS)]) == ALTERNATING


async def test_pools_and_models(server):
    """Nor has one that sends texts, ids and conversations to a pool of the same model."""
    mixed, plain = server.lmtp("Hello", (5, 6), CHAT, CHAT), server.lmtp((5, 6))
    assert await queued(server, [(mixed, ASKED), (plain, OTHERS)]) == ALTERNATING


async def test_evergreen(server):
    """Nor has a session that asks for text and for ids."""
    assert await queued(server, [(await server.evergreen(), ASKED), (server.lmtp((5, 6)), OTHERS)]) == ALTERNATING


async def test_sockets_of_a_pool(server):
    """Nor has a WebSocket with many conversations."""
    assert await queued(server, [(await server.chat_socket(), ASKED), (server.lmtp((5, 6)), OTHERS)]) == ALTERNATING


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("v1/completions", {"prompt": ["Hello", "there"], "n": 2}),
        ("v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}], "n": 4}),
    ],
)
async def test_http(server, path, body):
    """All answers of one HTTP request are one client's."""
    client = await server.closing.enter_async_context(aiohttp.ClientSession())
    address = server.url.replace("ws:", "http:")
    server.task(client.post(address + path, json={"model": MODEL, "max_tokens": ASKED[0], **body}))
    await until(lambda: len(server.waiting) == 4)
    plain = server.lmtp((5, 6))
    for count, number in enumerate(OTHERS, start=5):
        await plain(number)
        await until(lambda expected=count: len(server.waiting) == expected)
    assert server.numbers == [number for other in OTHERS for number in (ASKED[0], other)]


async def test_prompts_that_are_computed_ahead(server):
    """Beginnings that a session has computed before their prompts are whole are its own, like its answers."""
    opened: Session = await server.closing.enter_async_context(_unless_broken(session(server.url)))
    prompts = [opened.output() for _ in range(2)]
    for prompt in prompts:
        server.closing.callback(prompt.close)  # or the session would wait for the rest of it
        await prompt.write("a b c d e " * 60, metadata=ChunkMetadata("text/plain"))
        await opened.call("GENERATE", {"prompt": opened.node(prompt.id)}, ["tokens"], target=MODEL, max_tokens=9)
    await opened.call("GENERATE", {"prompt": "Once upon"}, ["response"], target=MODEL, max_tokens=ASKED[0])
    await until(lambda: len(server.waiting) == 3)
    assert [sequence.prefill_only for sequence in server.waiting] == [False, True, True]
    assert len({sequence.client for sequence in server.waiting}) == 1
