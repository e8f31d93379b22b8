"""Real tokens: two servers of the included model in one pool, one of which is killed in the middle of an answer."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tests.gateway.running import gateway, pool

if TYPE_CHECKING:
    from tests.conftest import StartServer

CHAT = {"model": "default", "messages": [{"role": "user", "content": "Tell me a story"}]}


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
