"""What a model thinks, in a node of its own."""

from __future__ import annotations

from tests.evergreen.models import Only, session, struct, texts
from tests.http_api.thinking import scripted


async def test_thought_and_answer() -> None:
    """Apart where `reasoning` is asked for; without it the thought is text like any other, and nothing counts it."""
    with scripted() as server:
        server.says("<think>\nHm.\n</think>\n\nYes.")
        async with session(Only(server.model, "lmtool-tiny")) as client:
            config = [struct(max_tokens=60, temperature=0)]
            asked = {"text": "Hello"}
            apart = await texts(await client.invoke("GENERATE", asked, ["response", "reasoning", "usage"], config))
            plain = await texts(await client.invoke("GENERATE", asked, ["response", "usage"], config))
    assert (apart["reasoning"], apart["response"]) == ("Hm.", "Yes.")
    assert apart["usage"]["reasoning_tokens"] > 0
    assert plain["response"] == "<think>\nHm.\n</think>\n\nYes."
    assert "reasoning_tokens" not in plain["usage"]
