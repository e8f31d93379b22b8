"""`continue: prefill`: another member goes on with an answer that broke off, and every wire tells where."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fake_answers import CALL, Words
from tests.fake_upstream import BAD, Behaviour, FakeUpstream
from tests.gateway.pools.running import CHAT, MESSAGE, gateway, member, pool
from tests.gateway.pools.wires import WIRES, WORDS, events_of, openai, unified

HALF = Behaviour(words=Words(("Once", " upon ", "lost")), fault="half", after=4)
"""Two texts come, and half of an event."""
REST = Words((" a", " time"), prompt_tokens=10, completion_tokens=4)
SEAM = {"at": 10, "before": "a", "after": "c"}
PREFILL: dict[str, Any] = {"continue": "prefill"}


def prices(prompt: float, response: float) -> str:
    return f"{{prompt: {prompt}, response: {response}}}"


@pytest.mark.parametrize("wire", WIRES)
async def test_another_kind_of_member_goes_on(wire: str) -> None:
    """Each wire tells the seam in the first event behind it; each token counts once; who has no prefill is skipped."""
    async with (
        FakeUpstream(HALF) as a,
        FakeUpstream() as b,
        FakeUpstream(Behaviour(words=REST)) as c,
        gateway(pool(member("a", a), member("b", b), member("c", c, "anthropic"), **PREFILL)) as served,
    ):
        found = await WIRES[wire](served)
        assert (found.text, found.error, found.finish_reason) == ("Once upon a time", None, "stop")
        assert found.seams == [(10, SEAM)]
        assert found.tokens == (8, 6)
        charged = [(one.totals.prompt_tokens, one.totals.response_tokens) for one in served.pool.members]
        assert charged == [(0, 2), (0, 0), (8, 4)]
        if found.attempts:
            outcomes = ["a broke off", "b skipped: no prefill", "c ok"]
            assert all(one in found.attempts for one in outcomes), found.attempts
    assert wire in ("openai", "anthropic", "responses") or found.attempts
    assert b.received == []
    [asked] = c.received
    assert asked.json["messages"] == [{"role": "user", "content": WORDS}, {"role": "assistant", "content": "Once upon"}]


@pytest.mark.parametrize("wire", WIRES)
async def test_without_the_option_nobody_does(wire: str) -> None:
    """One clear error, and no second answer."""
    async with (
        FakeUpstream(HALF) as a,
        FakeUpstream(Behaviour(words=REST)) as c,
        gateway(pool(member("a", a), member("c", c, "anthropic"))) as served,
    ):
        found = await WIRES[wire](served)
        assert (found.text, found.seams) == ("Once upon ", [])
        assert found.error is not None
        assert "the answer of a broke off (incomplete answer) after 2 pieces; what was" in found.error + "; what was"
        assert [one.totals.response_tokens for one in served.pool.members] == [0, 0]
    assert c.received == []


@pytest.mark.parametrize(
    ("kind", "own", "sent"),
    [
        ("anthropic", "", {"messages": "Once upon"}),
        ("ollama", "", {"messages": "Once upon "}),
        ("openai", ", prefill: last_message", {"messages": "Once upon "}),
        (
            "openai",
            ", prefill: continue_final_message",
            {"messages": "Once upon ", "continue_final_message": True, "add_generation_prompt": False},
        ),
        ("openai", ", prefill: prefix", {"messages": "Once upon ", "prefix": True}),
    ],
)
async def test_each_api_is_asked_in_its_own_way(kind: str, own: str, sent: dict[str, Any]) -> None:
    """The text is the last message; what the API wants beside it is there."""
    words = Words(("Once upon", " a", " time")) if "prefix" in own else Words(("a", " time"))
    async with (
        FakeUpstream(HALF) as a,
        FakeUpstream(Behaviour(words=words)) as c,
        gateway(pool(member("a", a), member("c", c, kind, own=own), **PREFILL)) as served,
    ):
        found = await openai(served)
    assert (found.text, found.error) == ("Once upon a time", None)
    body = c.received[0].json
    last = body["messages"][-1]
    assert (last["role"], last["content"]) == ("assistant", sent.pop("messages"))
    assert last.get("prefix") == sent.pop("prefix", None)
    assert {name: body.get(name) for name in sent} == sent
    assert "continue_final_message" in sent or "continue_final_message" not in body


@pytest.mark.parametrize("fault", ["reset", "half", "error"])
async def test_it_goes_on_as_often_as_it_must(fault: Any) -> None:
    """Also with the member that broke off, which is asked last; the limit of tokens holds for the whole."""
    async with FakeUpstream() as a, FakeUpstream() as b:
        a.plan += [Behaviour(words=Words((text, "x")), fault="half", after=3) for text in "12"]
        b.plan += [
            BAD["500"],
            Behaviour(words=Words(("3", "x")), fault=fault, after=3 if fault == "half" else 2, pause=0.1),
        ]
        text = pool(
            member("a", a, own=", prefill: last_message"),
            member("b", b, own=", prefill: last_message"),
            overridable="[maxTokens]",
            **PREFILL,
        )
        async with gateway(text) as served:
            found = await unified(served, max_tokens=3)
    assert found.error is None
    assert [seam["after"] for _, seam in found.seams] == ["a", "b"]
    assert "b status 500" in found.attempts
    limits = [one.json["max_tokens"] for one in [*a.received, *b.received[1:]]]
    assert limits == [3, 2, 1]
    assert (found.text, found.finish_reason) == ("123", "length")


@pytest.mark.parametrize(
    ("words", "asked", "why"),
    [
        (Words(("Hi",), (CALL,)), {"tools": [{"type": "function", "function": {"name": "weather"}}]}, "a tool call"),
        (Words(("{", '"a": 1', "}")), {"response_format": {"type": "json_object"}}, "a form to keep"),
        (Words(("Hi", " en", "d")), {"stop": ["end"]}, "a stop string may have begun"),
    ],
)
async def test_what_might_go_wrong_is_refused(words: Words, asked: dict[str, Any], why: str) -> None:
    """Calls, forms, stop strings: the error says why nobody goes on."""
    after = 5 if words.calls else 4
    async with (
        FakeUpstream(Behaviour(words=words, fault="half", after=after)) as a,
        FakeUpstream() as c,
        gateway(pool(member("a", a), member("c", c, "ollama"), **PREFILL)) as served,
    ):
        found = await openai(served, **asked)
    assert found.error is not None
    assert "and nobody goes on with it: " in found.error
    assert why in found.error
    assert c.received == []


def reasoned(*parts: tuple[str, str]) -> Behaviour:
    """A stream of OpenAI's API whose parts are of these kinds; it breaks off unless it ends."""
    events = [f'data: {{"choices": [{{"index": 0, "delta": {{"{kind}": "{text}"}}}}]}}\n\n' for kind, text in parts]
    return Behaviour(body="".join(events).encode(), content_type="text/event-stream")


async def test_reasoning_is_not_gone_on_with() -> None:
    """Nobody goes on behind reasoning, nor with reasoning; an answer of which nothing else was given begins anew."""
    cut = reasoned(("reasoning", "Hm"), ("content", "Once"))
    async with FakeUpstream(cut) as a, FakeUpstream() as c:
        own = ", prefill: last_message"
        async with gateway(pool(member("a", a), member("c", c, own=own), **PREFILL)) as served:
            found = await openai(served)
            assert found.error is not None
            assert "reasoning that no other model knows" in found.error
            a.usual = reasoned(("content", "Once"))
            c.usual = reasoned(("reasoning", "Hm"), ("content", "Once"))
            found = await openai(served)
            assert found.error is not None
            assert "no other model did so" in found.error
            assert found.text == "Once"
            a.usual, c.usual = reasoned(("reasoning", "Hm")), Behaviour()
            found = await openai(served)
            assert (found.text, found.error, found.seams) == ("Hello", None, [])


async def test_an_answer_that_lacks_its_end_alone_is_whole() -> None:
    """Where its ending was told before it broke off nobody is asked; the rest that somebody brings may be nothing."""
    ended = 'data: {"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":"stop"}]}\n\ndata: {"cho'
    nothing = 'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    async with FakeUpstream() as a, FakeUpstream() as c:
        a.usual = Behaviour(body=ended.encode(), content_type="text/event-stream")
        own = ", prefill: last_message"
        async with gateway(pool(member("a", a), member("c", c, own=own), **PREFILL)) as served:
            found = await openai(served)
            assert (found.text, found.error, found.finish_reason, c.received) == ("Hi", None, "stop", [])
            a.usual = HALF
            c.usual = Behaviour(body=nothing.encode(), content_type="text/event-stream")
            found = await openai(served)
            assert (found.text, found.error, found.finish_reason) == ("Once upon ", None, "stop")
            assert found.seams == [(10, SEAM)]


async def test_costs_and_cache() -> None:
    """The cost is that of both members, each token once; an answer with a seam is not kept."""
    a_prices, c_prices = prices(1e6, 2e6), prices(10e6, 20e6)
    async with (
        FakeUpstream(HALF) as a,
        FakeUpstream(Behaviour(words=REST)) as c,
        gateway(
            pool(
                member("a", a, prices=a_prices),
                member("c", c, "anthropic", prices=c_prices),
                cache="{kind: memory, sampled: true}",
                **PREFILL,
            )
        ) as served,
    ):
        for _ in range(2):
            pieces = events_of((await served.post("/v1/default/chat", MESSAGE | {"stream": True}))[2])
            assert pieces[-1]["cost"] == 2 * 2 + 8 * 10 + 4 * 20
            assert [one["model_id"] for one in pieces] == ["a", "a", "c", "c", "c"]
            assert not pieces[-1]["cached"]
    assert len(c.received) == 2


async def test_whole_answers_begin_anew() -> None:
    """Nothing of them was given out: another member answers from the beginning, and there is no seam."""
    async with (
        FakeUpstream(BAD["reset in the body"]) as a,
        FakeUpstream(Behaviour(words=REST)) as c,
        gateway(pool(member("a", a), member("c", c, "anthropic"), **PREFILL)) as served,
    ):
        _, _, reply = await served.post("/v1/chat/completions", CHAT | {"max_tokens": 9})
    assert reply["choices"][0]["message"]["content"] == " a time"
    assert len(c.received[0].json["messages"]) == 1
