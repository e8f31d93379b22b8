"""A stream of a pool outlives the member that it runs on: every token once, as if nothing had happened."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from lmtool.core.interfaces import Sink, StreamHandle, TokenModel
from lmtool.core.streams import stream
from lmtool.core.types import ChatMessage, ChatPrompt, GenerateRequest, ModelInfo, SamplingParams, ScoreRequest
from lmtool.inference.engine.config import EngineConfig
from lmtool.serving.composition import Loader
from lmtool.serving.config import ModelsConfig
from tests.conftest import STORIES
from tests.fake_answers import Words
from tests.fake_upstream import Behaviour, FakeUpstream
from tests.gateway.pools.running import CHAT, Gateway, gateway, pool
from tests.gateway.pools.running import member as http_member
from tests.gateway.pools.wires import WIRES, WORDS, lmtp, openai
from tests.protocol.lmtp.harness import serving

LENGTH = 10
"""Tokens of an answer."""
KINDS = {"greedy": {"temperature": 0}, "seeded": {"temperature": 1.3, "seed": 7}}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "n": {"enum": [1, 22, 333]}},
    "required": ["name", "n"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
TOOL = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}


class RecordingModel:
    """A model that keeps what is asked of it."""

    def __init__(self, model: TokenModel) -> None:
        self.model = model
        self.requests: list[GenerateRequest] = []

    def submit(self, request: GenerateRequest | ScoreRequest, sink: Sink) -> StreamHandle:
        assert isinstance(request, GenerateRequest)
        self.requests.append(request)
        return self.model.submit(request, sink)

    async def info(self, model: str | None = None) -> ModelInfo:
        return await self.model.info(model)


@dataclass
class TokenProxy:
    """Stands before a server, and ends a connection once it has passed on so many tokens of one stream."""

    target: int
    """The server's port."""
    after: int | None = None
    """Tokens of a stream; None: all."""
    stalls: bool = False
    """Whether it is silent from then on, in place of ending the connection."""
    port: int = 0
    passed: list[int] = field(default_factory=list)
    """Tokens of each connection that it ended."""
    _open: set[asyncio.Task[None]] = field(default_factory=set)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[TokenProxy]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in self._open:
                task.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        upstream, up_writer = await asyncio.open_connection("127.0.0.1", self.target)
        up = asyncio.create_task(_pass_all(reader, up_writer))
        try:
            writer.write(await upstream.readuntil(b"\r\n\r\n"))
            await self._frames(upstream, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # either side has gone
        finally:
            up.cancel()
            writer.transport.abort()
            up_writer.transport.abort()

    async def _frames(self, upstream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passed, stream_id = 0, None
        while True:
            head, payload = await _frame(upstream)
            entries = json.loads(payload[6:]) if payload.startswith(b"TOKEN ") else []
            tokens = sum("token" in entry for entry in entries)
            if tokens and entries[0]["stream_id"] != stream_id:
                passed, stream_id = 0, entries[0]["stream_id"]  # of a further stream, one at a time
            if self.after is None or not tokens or passed + tokens < self.after:
                passed += tokens
                writer.write(_written(head, payload))
                continue
            first = entries[: self.after - passed]
            if first[-1]["finish_reason"] is None:
                writer.write(_written(head, b"TOKEN " + json.dumps(first).encode()))
                await writer.drain()
                self.passed.append(self.after)
                if self.stalls:
                    await asyncio.Event().wait()
                return
            writer.write(_written(head, payload))


async def _frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The first byte and the payload of a server's WebSocket frame."""
    head, length = await reader.readexactly(2)
    if length == 126:
        length = int.from_bytes(await reader.readexactly(2))
    elif length == 127:
        length = int.from_bytes(await reader.readexactly(8))
    return head, await reader.readexactly(length)


def _written(head: int, payload: bytes) -> bytes:
    size = len(payload)
    length = bytes([size]) if size < 126 else b"\x7e" + size.to_bytes(2)
    assert size < 1 << 16
    return bytes([head]) + length + payload


async def _pass_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Sequence[TokenModel]:
    """Two of one fingerprint, and one of another."""
    template = tmp_path_factory.mktemp("template") / "template"
    template.write_text("{% for message in messages %}{{ message.content }}{% endfor %} Once upon a time")
    named = ModelsConfig(str(STORIES), chat_template=str(template))
    configs = [EngineConfig(device="cpu", dtype=dtype, threads=1) for dtype in ("float32", "float32", "bfloat16")]
    loaded = [Loader(config, models=named).load(str(STORIES), lambda _: None) for config in configs]
    yield loaded
    for model in loaded:
        model.close()


def member(name: str, port: int, **more: Any) -> str:
    rest = "".join(f", {key}: {value}" for key, value in ({"error_budget": "1000/s"} | more).items())
    return f'{{id: {name}{rest}, lmtp: {{endpoint: "127.0.0.1:{port}"}}}}'


@contextlib.asynccontextmanager
async def two(
    models: Sequence[TokenModel], *others: str, **more: Any
) -> AsyncIterator[tuple[Gateway, TokenProxy, TokenProxy]]:
    """A gateway over two servers, each behind a proxy."""
    async with contextlib.AsyncExitStack() as opened:
        proxies = []
        for model in models[:2]:
            served = await opened.enter_async_context(serving(model))
            proxies.append(await opened.enter_async_context(TokenProxy(served.port).running()))
        first, second = proxies
        members = (member("a", first.port, **more.pop("first", {})), member("b", second.port), *others)
        text = pool(*members, overridable="[maxTokens, temperature, seed]", **more)
        yield await opened.enter_async_context(gateway(text)), first, second


def asked(wire: str, kind: str) -> dict[str, Any]:
    """A request's parameters: Anthropic's API and Responses have no seed."""
    own = dict(KINDS[kind])
    if wire in ("anthropic", "responses"):
        own.pop("seed", None)
    return {"max_tokens": LENGTH, **own}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wire", WIRES)
async def test_a_member_is_lost_at_every_token(wire: str, kind: str, models: Sequence[TokenModel]) -> None:
    """Each answer is that of the run that nobody cut, with its usage; no caller notices."""
    if kind == "seeded" and wire in ("anthropic", "responses"):
        pytest.skip("the API has no seed")
    async with two(models) as (served, first, second):
        expected = await WIRES[wire](served, **asked(wire, kind))
        assert (expected.error, expected.finish_reason) == (None, "length")
        assert expected.tokens is not None
        assert expected.tokens[1] == LENGTH
        for lost_at in range(1, LENGTH):
            first.after = lost_at
            found = await WIRES[wire](served, **asked(wire, kind))
            assert (found.text, found.error, found.finish_reason) == (expected.text, None, "length"), lost_at
            assert (found.tokens, found.seams) == (expected.tokens, []), lost_at
            if wire in ("chatStream", "lmtp"):
                assert "a broke off: no connection" in found.attempts
                assert "b ok" in found.attempts
        assert first.passed == list(range(1, LENGTH))
        a, b = (one.totals.response_tokens for one in served.pool.members)
        assert a + b == LENGTH * LENGTH
        assert a == LENGTH + sum(range(1, LENGTH))
        first.after = second.after = 1  # each connection ends after one token
        found = await WIRES[wire](served, **asked(wire, kind))
        assert (found.text, found.error, found.tokens) == (expected.text, None, expected.tokens)
        assert second.passed == [1] * (LENGTH // 2 - 1)


@pytest.mark.parametrize(
    "more",
    [
        {"response_format": FORM, "temperature": 0, "max_tokens": 40},
        {"tools": [TOOL], "tool_choice": "required", "temperature": 1.2, "seed": 5, "max_tokens": 60},
        {"stop": [" little", "zebra"], "presence_penalty": 0.7, "temperature": 0.8, "seed": 3, "max_tokens": 25},
    ],
    ids=["schema", "call", "stop"],
)
async def test_forms_calls_and_stops_go_on_too(more: dict[str, Any], models: Sequence[TokenModel]) -> None:
    """What no other kind of member could go on with."""
    async with two(models) as (served, first, _):
        expected = await openai(served, **more)
        assert expected.error is None
        assert expected.tokens is not None
        assert bool(expected.calls) == ("tools" in more)
        for lost_at in range(1, expected.tokens[1]):
            first.after = lost_at
            found = await openai(served, **more)
            assert found == expected, lost_at
    assert len(first.passed) == expected.tokens[1] - 1 > 3


async def test_draws_without_a_seed_go_on(models: Sequence[TokenModel]) -> None:
    """By the seed that the lost member had drawn: the answer is that of one stream with this seed."""
    recorded = RecordingModel(models[1])
    prompt = ChatPrompt((ChatMessage("user", WORDS),))
    async with two((models[0], recorded)) as (served, first, _):
        for lost_at in range(1, LENGTH):
            first.after = lost_at
            found = await lmtp(served, max_tokens=LENGTH, temperature=1.3)
            request = recorded.requests[-1]
            assert len(request.generated) == lost_at
            assert request.sampling.seed is not None
            sampling = SamplingParams(max_tokens=LENGTH, temperature=1.3, seed=request.sampling.seed)
            alone = GenerateRequest("x", prompt, sampling, text=True)
            outputs = [output async for output in stream(models[0], alone)]
            assert found.text == "".join(output.text or "" for output in outputs)
            assert found.tokens is not None
            assert found.tokens[1] == LENGTH


async def test_whole_answers_lose_nothing_either(models: Sequence[TokenModel]) -> None:
    """The second member gets the ids that the first one gave."""
    recorded = RecordingModel(models[1])
    body = CHAT | {"max_tokens": LENGTH, "temperature": 0}
    async with two((models[0], recorded)) as (served, first, _):
        _, _, expected = await served.post("/v1/chat/completions", body)
        first.after = 4
        status, _, found = await served.post("/v1/chat/completions", body)
    assert status == 200
    assert (found["choices"], found["usage"]) == (expected["choices"], expected["usage"])
    assert [len(request.generated) for request in recorded.requests] == [4]


async def test_a_silent_member_is_left(models: Sequence[TokenModel]) -> None:
    """When its time is over, as one whose connection is lost."""
    async with two(models, first={"timeouts": "{total: 800ms}"}) as (served, first, _):
        expected = await openai(served, max_tokens=LENGTH, temperature=0)
        first.after, first.stalls = 3, True
        found = await openai(served, max_tokens=LENGTH, temperature=0)
        assert (found.text, found.error, found.tokens) == (expected.text, None, expected.tokens)
        assert served.pool.members[0].totals.outcomes["fault"] == 1


async def test_another_fingerprint_does_not_go_on(models: Sequence[TokenModel]) -> None:
    """It is asked for nothing, and the answer breaks off; by prefill it goes on, with a seam."""
    other = RecordingModel(models[2])
    for more in ({}, {"continue": "prefill"}):
        other.requests.clear()
        async with two((models[0], other), first={"error_budget": "1/m"}, **more) as (served, first, _):
            first.after = 3
            found = await lmtp(served, max_tokens=LENGTH)
            assert "b has another fingerprint" in found.attempts
            if not more:
                assert "broke off" in (found.error or "")
                assert other.requests == []
                continue
            assert (found.error, found.finish_reason) == (None, "length")
            assert [seam["after"] for _, seam in found.seams] == ["b"]
            assert found.tokens is not None
            assert found.tokens[1] == LENGTH
            [request] = other.requests
            assert isinstance(request.prompt, ChatPrompt)
            assert found.text.startswith(request.prompt.prefill)
            assert request.sampling.max_tokens == LENGTH - 3


async def test_tokens_before_text(models: Sequence[TokenModel]) -> None:
    """Where both ways are open the answer stays that of one model."""
    async with FakeUpstream(Behaviour(words=Words((" no",)))) as upstream:
        listed = http_member("c", upstream, "ollama")
        async with two(models, listed, **{"continue": "prefill"}) as (served, first, _):
            expected = await openai(served, max_tokens=LENGTH, temperature=0)
            first.after = 3
            assert (await openai(served, max_tokens=LENGTH, temperature=0)).text == expected.text
            assert upstream.received == []
