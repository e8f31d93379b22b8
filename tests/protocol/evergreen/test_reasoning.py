"""What a model thinks, in a node of its own."""

from __future__ import annotations

import asyncio

import pytest

from lmtool.protocol.evergreen.node_io import TEXT
from lmtool.protocol.evergreen.status import Abort
from tests.protocol.evergreen.harness import action
from tests.protocol.evergreen.models import Only, session, struct, texts
from tests.protocol.http.thinking import scripted


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
    """At its budget, its own or that of an effort, the thought is ended, as over HTTP."""
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


@pytest.mark.parametrize(
    ("outputs", "option", "why"),
    [
        (["response", "reasoning"], {"reasoning_effort": "lots"}, "reasoning_effort is 'lots'"),
        (["response"], {"thinking_token_budget": 3}, "output reasoning"),
    ],
)
async def test_what_cannot_be_asked_of_a_thought(outputs: list[str], option: dict[str, object], why: str) -> None:
    """An effort that is none, and a budget without the output that it bounds, end the session."""
    with scripted() as server, pytest.raises(Abort, match=why):
        async with session(Only(server.model, "lmtool-tiny")) as client:
            await texts(await client.invoke("GENERATE", {"text": "Hello"}, outputs, [struct(**option)]))


async def test_a_thought_goes_on_behind_an_early_start() -> None:
    """Once its beginning was computed a prompt is ids; what of it begins the answer is known all the same."""
    with scripted() as server:
        model = Only(server.model, "lmtool-tiny")
        server.says("so.\n</think>\n\nYes.")
        async with session(model) as client, asyncio.timeout(60):
            options = struct(max_tokens=60, temperature=0, chat_template_kwargs={"enable_thinking": True})
            outputs = {"response": "r", "reasoning": "t"}
            nodes = client.start(action("GENERATE", {"prompt": "p"}, outputs, configs=(options,)))
            client.output("p").add("a", "b")
            client.close_node("p")
            await client.output("a").put("Once upon a time there was a girl. " * 12, TEXT, "user")
            while not model.ends:
                await asyncio.sleep(0.01)
            await client.output("b").put(
                "Let me see what that may be, word by word, and then go on. " * 2, TEXT, "assistant"
            )
            made = await texts(nodes)
        first, *_, last = model.requests
        assert first.prefill_only
        assert isinstance(last.prompt, tuple)
        assert last.reasoning.prefill.startswith("Let me see")
    assert (made["reasoning"], made["response"]) == ("so.", "Yes.")
