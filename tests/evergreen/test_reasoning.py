"""What a model thinks, in a node of its own."""

from __future__ import annotations

import pytest

from lmtool.evergreen.status import Abort
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


async def test_how_much_it_thinks() -> None:
    """At its budget, its own or that of an effort, the thought is ended, as over HTTP; without the output, refused."""
    outputs = ["response", "reasoning", "usage"]
    with scripted() as server:
        async with session(Only(server.model, "lmtool-tiny")) as client:

            async def asked(says: str, **options: object) -> dict[str, object]:
                server.says(says)
                config = [struct(max_tokens=60, temperature=0, **options)]
                return await texts(await client.invoke("GENERATE", {"text": "Hello"}, outputs, config))

            cut = await asked("<think>\nSo, so, so, so, so.\n</think>\n\nYes.", thinking_token_budget=3)
            assert 0 < len(str(cut["reasoning"])) < len("So, so, so, so, so.")
            await asked("Yes.", reasoning_effort="low")
            assert server.requests[-1].thought_marks.budget == 1024  # type: ignore[union-attr]
            off = await asked("<think>\n\n</think>\n\nYes.", reasoning_effort="none")
            assert (off["reasoning"], off["response"]) == ("", "Yes.")
            unknown = struct(reasoning_effort="lots")
            with pytest.raises(Abort, match="reasoning_effort is 'lots'"):
                await texts(await client.invoke("GENERATE", {"text": "Hello"}, outputs, [unknown]))
        async with session(Only(server.model, "lmtool-tiny")) as client:
            bounded = struct(thinking_token_budget=3)
            with pytest.raises(Abort, match="output reasoning"):
                await texts(await client.invoke("GENERATE", {"text": "Hello"}, ["response"], [bounded]))
