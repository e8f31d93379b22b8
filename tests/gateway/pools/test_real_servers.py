"""Real tokens: two servers of the included model in one pool, one of which is killed in the middle of an answer."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tests.gateway.pools.running import gateway, pool

if TYPE_CHECKING:
    from tests.conftest import StartServer

CHAT = {"model": "default", "messages": [{"role": "user", "content": "Tell me a story"}]}
LONG = {"name": "long", "schema": {"type": "string", "minLength": 400, "maxLength": 400}, "strict": True}
"""An answer of hundreds of tokens."""


async def test_a_server_that_is_killed_falls_back_and_heals(start_server: StartServer, embedded: str) -> None:
    """One clear error after the first words, the other server from then on, and the first one again once it is back."""
    with start_server() as first:
        await asyncio.to_thread(first.expect, "ready in")
        port = urlsplit(first.url).port
        own = f'model: lmtool-tiny, base_url: "http://127.0.0.1:{port}", extra_body: {{ignore_eos: true}}'
        members = (
            f"{{id: first, error_budget: 1/s, openai: {{{own}}}}}",
            f'{{id: second, lmtp: {{endpoint: "{embedded}"}}}}',
        )
        text = pool(*members)
        async with gateway(text) as served:
            status, headers, reply = await served.post("/v1/chat/completions", CHAT | {"max_tokens": 8})
            assert (status, headers["x-lmtool-attempts"].split()[0]) == (200, "first")
            assert reply["usage"]["completion_tokens"] <= 8
            asked = {**CHAT, "max_tokens": 3000, "stream": True}
            async with served.session.post(f"{served.url}/v1/chat/completions", json=asked) as response:
                events = [json.loads((await response.content.readline())[6:])]
                await response.content.readline()
                first.process.kill()
                rest = (await response.content.read()).decode()
            assert events[0]["choices"][0]["delta"]["role"] == "assistant"
            broken = "broke off (connection lost)" in rest or "broke off (incomplete answer)" in rest
            assert broken, rest
            status, headers, reply = await served.post("/v1/chat/completions", CHAT | {"max_tokens": 8})
            assert (status, headers["x-lmtool-attempts"].split(", ")[-1].split()[0]) == (200, "second")
            assert reply["usage"]["completion_tokens"] <= 8
            with start_server(port=str(port)) as again:
                await asyncio.to_thread(again.expect, "ready in")
                async with asyncio.timeout(30):
                    while True:
                        _, headers, _ = await served.post("/v1/chat/completions", CHAT | {"max_tokens": 2})
                        if headers["x-lmtool-attempts"].startswith("first ok"):
                            break
                        await asyncio.sleep(0.1)


async def test_a_stream_outlives_the_process_that_began_it(start_server: StartServer) -> None:
    """Its other half comes from a server with the same fingerprint, and nobody notices."""
    asked = {**CHAT, "max_tokens": 3000, "temperature": 1.2, "seed": 5, "stream": True}
    asked |= {
        "response_format": {"type": "json_schema", "json_schema": LONG},
        "stream_options": {"include_usage": True},
    }
    with start_server() as first, start_server() as second:
        for server in (first, second):
            await asyncio.to_thread(server.expect, "ready in")
        members = (f'{{id: {name}, lmtp: {{endpoint: "{one.url}"}}}}' for name, one in (("a", first), ("b", second)))
        async with gateway(pool(*members, overridable="[maxTokens, temperature, seed]")) as served:

            async def answer(*, kill: bool) -> tuple[str, dict[str, int]]:
                text, usage, pieces = "", {}, 0
                async with served.session.post(f"{served.url}/v1/chat/completions", json=asked) as response:
                    async for line in response.content:
                        event = json.loads(line[5:]) if line.startswith(b"data: {") else {}
                        assert "error" not in event
                        for choice in event.get("choices", ()):
                            text += choice["delta"].get("content") or ""
                            pieces += 1
                        usage = event.get("usage") or usage
                        if kill and pieces == 3:
                            first.process.kill()
                return text, {name: usage[name] for name in ("prompt_tokens", "completion_tokens")}

            expected = await answer(kill=False)
            assert len(json.loads(expected[0])) == 400
            assert await answer(kill=True) == expected
            a, b = served.pool.members
            assert 0 < b.totals.response_tokens < expected[1]["completion_tokens"]
            assert a.totals.response_tokens + b.totals.response_tokens == 2 * expected[1]["completion_tokens"]
