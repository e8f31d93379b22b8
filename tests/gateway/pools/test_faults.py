"""Every fault of a provider ends as the outcome table says, whole and streamed; Glide's defects are not ours."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from lmtool.core.outcomes import Outcome
from lmtool.gateway.pools.backend import CallFailedError
from tests.fake_answers import Words
from tests.fake_upstream import BAD, HANG, STRANGE, Behaviour, FakeUpstream
from tests.gateway.pools.running import CHAT, KEY, MESSAGE, gateway, member, pool
from tests.gateway.pools.test_server import read_events

RESTS = {"429 in seconds": 30.0, "429 with a date": 0.0, "429 alone": 5.0, "401": 60.0, "403": 60.0}
"""Seconds for which a member rests after one fault; the date is in the past."""
FREE = {"400", "400 context", "404"}
"""Faults of the request, which cost the member nothing."""
WHOLE_ONLY = {"malformed", "html", "no choices"}


def shown(reply: Any, *, stream: bool) -> str:
    """The text of an answer."""
    parts = read_events(reply) if stream else [reply]
    return "".join(part["provider_response"]["message"]["content"] for part in parts)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", sorted(BAD))
async def test_the_next_member_answers(name: str, stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A fault before the first words is a fallback; the member rests, pays, or neither, as the table says."""
    if stream and name == "reset in the body":
        pytest.skip("it comes after the first words")
    caplog.set_level(logging.DEBUG)
    async with (
        FakeUpstream(BAD[name]) as bad,
        FakeUpstream() as good,
        gateway(pool(member("bad", bad), member("good", good), retry="{max_retries: 2}")) as served,
    ):
        status, headers, reply = await served.post("/v1/default/chat", MESSAGE | {"stream": stream})
        assert (status, shown(reply, stream=stream)) == (200, "Hello")
        assert headers["x-lmtool-attempts"].count(",") == 1
        first, _ = served.pool.members
        now = served.pool.clock()
        assert first.health.rest_seconds(now) == pytest.approx(RESTS.get(name, 0.0), abs=1)
        paid = first.health.tokens(now) < 9.5
        assert paid == (name not in RESTS and name not in FREE)
    assert len(bad.received) == 1
    assert KEY not in json.dumps(reply) + str(headers) + caplog.text


async def test_counts_of_a_failed_call_are_not_those_of_the_next() -> None:
    """Anthropic counts the prompt before the first word; a member that then answers is not charged with it."""
    uncounted = b'data: {"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    async with (
        FakeUpstream(Behaviour(words=Words(prompt_tokens=900), fault="error", after=1)) as bad,
        FakeUpstream(Behaviour(body=uncounted, content_type="text/event-stream")) as good,
        gateway(pool(member("bad", bad, "anthropic"), member("good", good))) as served,
    ):
        _, _, reply = await served.post("/v1/default/chat", MESSAGE | {"stream": True})
        assert shown(reply, stream=True) == "Hi"
        assert [one.totals.prompt_tokens for one in served.pool.members] == [0, 0]


@pytest.mark.parametrize("fault", ["reset", "half", "error"])
async def test_a_stream_that_breaks_off_is_never_glued(fault: Any) -> None:
    """One clear error that counts what was sent; the other member is not asked."""
    async with (
        FakeUpstream(Behaviour(fault=fault, after=3)) as bad,
        FakeUpstream() as good,
        gateway(pool(member("bad", bad), member("good", good))) as served,
    ):
        _, _, reply = await served.post("/v1/default/chat", MESSAGE | {"stream": True})
        *pieces, error = read_events(reply)
        assert [one["provider_response"]["message"]["content"] for one in pieces] != []
        assert error["name"] == "answer_broken"
        assert "broke off" in error["message"]
        assert error["attempts"][0]["model"] == "bad"
        _, _, reply = await served.post("/v1/chat/completions", CHAT | {"stream": True})
        assert "broke off" in reply
        assert served.pool.members[0].health.tokens(served.pool.clock()) < 8.5
    assert good.received == []


@pytest.mark.parametrize(
    ("stream", "timeouts", "outcome"),
    [
        (False, "{total: 200ms}", "timeout"),
        (True, "{total: 200ms}", "timeout"),
        (True, "{total: 10s, first_token: 200ms}", "first token timeout"),
    ],
)
async def test_a_member_that_hangs_is_left(stream: bool, timeouts: str, outcome: str) -> None:
    """After its time for all, or for the first token of a stream; the call is ended."""
    async with (
        FakeUpstream(HANG) as bad,
        FakeUpstream() as good,
        gateway(pool(member("bad", bad, timeouts=timeouts), member("good", good))) as served,
    ):
        status, headers, _ = await served.post("/v1/default/chat", MESSAGE | {"stream": stream})
        assert status == 200
        assert headers["x-lmtool-attempts"].startswith(f"bad {outcome} 2")
        async with asyncio.timeout(10):
            await bad.left.wait()


@pytest.mark.parametrize("stream", [False, True])
async def test_characters_that_are_cut_arrive_whole(stream: bool) -> None:
    """Bytes of a character in several packets; U+2028 and its like are text."""
    async with (
        FakeUpstream(Behaviour(words=STRANGE, torn=True)) as upstream,
        gateway(pool(member("main", upstream))) as served,
    ):
        _, _, reply = await served.post("/v1/default/chat", MESSAGE | {"stream": stream})
        assert shown(reply, stream=stream) == STRANGE.text


async def test_an_answer_without_end_is_malformed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit of bytes the call is ended."""
    monkeypatch.setattr("lmtool.gateway.pools.http_backend.MAX_ANSWER_BYTES", 2000)
    async with (
        FakeUpstream(Behaviour(words=Words(("x" * 3000,)))) as bad,
        FakeUpstream() as good,
        gateway(pool(member("bad", bad), member("good", good))) as served,
    ):
        _, headers, _ = await served.post("/v1/default/chat")
        assert headers["x-lmtool-attempts"].startswith("bad answer too large")


async def test_a_request_at_fault_everywhere_is_a_400() -> None:
    """With the reason's class; a context that is too long says so. Nobody pauses, nobody pays."""
    async with (
        FakeUpstream(BAD["400"]) as one,
        FakeUpstream(BAD["404"]) as two,
        gateway(pool(member("a", one), member("b", two), retry="{max_retries: 5}")) as served,
    ):
        status, _, reply = await served.post("/v1/default/chat")
        assert (status, reply["name"], len(reply["attempts"])) == (400, "request_refused", 2)
        one.usual = BAD["400 context"]
        status, _, reply = await served.post("/v1/default/chat")
        assert (status, reply["name"]) == (400, "context_too_long")
        status, _, reply = await served.post("/v1/chat/completions", CHAT)
        assert (status, reply["error"]["code"]) == (400, "context_length_exceeded")


class TestGlide:
    """What is wrong with Glide 0.1.0-rc.1, by number of the list; each is right here."""

    async def test_1_retry_after_in_seconds_rests(self) -> None:
        """`Retry-After: 30`, and not a second call meanwhile."""
        async with FakeUpstream(BAD["429 in seconds"]) as bad, FakeUpstream() as good:
            async with gateway(pool(member("bad", bad), member("good", good))) as served:
                for _ in range(3):
                    await served.post("/v1/default/chat")
            assert len(bad.received) == 1

    async def test_2_least_latency_answers_its_first_request(self) -> None:
        """And goes to the quickest after the warm-up."""
        async with FakeUpstream(Behaviour(delay=0.05)) as slow, FakeUpstream() as quick:
            members = (member("a", slow), member("b", quick))
            async with gateway(pool(*members, strategy="least_latency")) as served:
                named = [(await served.post("/v1/default/chat"))[2]["model_id"] for _ in range(9)]
        assert named == ["a", "b"] * 3 + ["b"] * 3

    @pytest.mark.parametrize("kind", ["anthropic", "cohere"])
    async def test_3_system_turns_and_roles_are_mapped(self, kind: str) -> None:
        """The specification's own example, a system turn in the history, is answered by an assistant."""
        async with FakeUpstream() as upstream, gateway(pool(member("main", upstream, kind))) as served:
            history = [{"role": "system", "content": "Be brief."}]
            _, _, reply = await served.post("/v1/default/chat", MESSAGE | {"messageHistory": history})
            assert reply["provider_response"]["message"]["role"] == "assistant"
            body = upstream.received[0].json
            assert ("system" in body) == (kind == "anthropic")
            assert [one["role"] for one in body["messages"]] == ["system", "user"][kind == "anthropic" :]

    async def test_5_keys_heal_and_a_callers_fault_costs_nothing(self) -> None:
        """A refused key rests a minute, not for ever; a 400 is not an error of the member."""
        async with FakeUpstream(BAD["401"]) as upstream, gateway(pool(member("main", upstream))) as served:
            await served.post("/v1/default/chat")
            health = served.pool.members[0].health
            assert 0 < health.rest_seconds(served.pool.clock()) <= 60
            assert health.available(served.pool.clock() + 61)

    @pytest.mark.parametrize("strategy", ["round_robin", "weighted_round_robin", "least_latency"])
    async def test_6_a_request_calls_each_member_once_a_pass(self, strategy: str) -> None:
        """When all fail, under strategies without an end in Glide."""
        async with FakeUpstream(BAD["500"]) as one, FakeUpstream(BAD["500"]) as two:
            async with gateway(pool(member("a", one), member("b", two), strategy=strategy)) as served:
                status, headers, reply = await served.post("/v1/default/chat")
                assert (status, reply["name"]) == (503, "all_models_unavailable")
                assert int(headers["retry-after"]) >= 1
                served.pool.members[0].health.record(Outcome("rate_limit", "rate limit", 30.0), served.pool.clock())
                served.pool.members[1].health.record(Outcome("rate_limit", "rate limit", 40.0), served.pool.clock())
                for path, expected in (("/v1/default/chat", 503), ("/v1/chat/completions", 503), ("/v1/messages", 529)):
                    status, headers, _ = await served.post(
                        path, MESSAGE if path.endswith("/chat") else CHAT | {"max_tokens": 5}
                    )
                    assert (path, status) == (path, expected)
                    assert 25 <= int(headers["retry-after"]) <= 30, path
            assert (len(one.received), len(two.received)) == (1, 1)

    async def test_8_empty_choices_are_a_fault_and_nothing_is_echoed(self, caplog: pytest.LogCaptureFixture) -> None:
        """No crash; a key that the provider repeats is in no answer and no log."""
        caplog.set_level(logging.DEBUG)
        async with (
            FakeUpstream(BAD["no choices"]) as one,
            FakeUpstream(BAD["500"]) as two,
            gateway(pool(member("a", one), member("b", two))) as served,
        ):
            status, _, reply = await served.post("/v1/default/chat")
            assert [one["outcome"] for one in reply["attempts"]] == ["empty answer", "status 500"]
            assert status == 503
        assert KEY not in json.dumps(reply) + caplog.text

    async def test_10_every_parameter_is_sent(self) -> None:
        """By the provider's own names; counts are not mixed up."""
        own = ", default_params: {temperature: 0.5, topP: 0.9, topK: 3, maxTokens: 8, seed: 1, stop: [END]}"
        async with FakeUpstream() as upstream, gateway(pool(member("main", upstream, "cohere", own=own))) as served:
            _, _, reply = await served.post("/v1/default/chat")
            body = upstream.received[0].json
            assert (body["temperature"], body["p"], body["k"], body["max_tokens"]) == (0.5, 0.9, 3, 8)
            assert (body["seed"], body["stop_sequences"]) == (1, ["END"])
            assert reply["provider_response"]["token_count"]["prompt_tokens"] == 7


async def test_a_rotated_key_is_read_again(tmp_path: Any) -> None:
    """After a 401 the file has another key: the same member answers, without a fallback."""
    file = tmp_path / "key"
    file.write_text(f"{KEY}-old\n")
    async with FakeUpstream() as upstream:
        text = pool(member("main", upstream).replace(f"{KEY}-main", f"${{file:{file}}}"))
        async with gateway(text) as served:
            await served.post("/v1/default/chat")
            upstream.plan.append(BAD["401"])
            file.write_text(f"{KEY}-new\n")
            status, headers, _ = await served.post("/v1/default/chat")
            assert (status, headers["x-lmtool-attempts"].count("main")) == (200, 1)
        assert [one.key for one in upstream.received] == [f"{KEY}-{age}" for age in ("old", "old", "new")]


async def test_two_hundred_at_once_against_a_dying_pool() -> None:
    """Each is answered, and no member is called beyond its budget by far."""
    async with (
        FakeUpstream() as one,
        FakeUpstream() as two,
        gateway(pool(member("a", one), member("b", two), strategy="round_robin")) as served,
    ):
        one.plan.extend([Behaviour()] * 40)
        one.usual = BAD["500"]
        two.plan.extend([Behaviour(delay=0.01)] * 60)
        two.usual = BAD["reset"]
        found = await asyncio.gather(*(served.post("/v1/default/chat") for _ in range(200)))
    statuses = [status for status, _, _ in found]
    assert set(statuses) == {200, 503}
    assert statuses.count(200) == 100
    assert all(reply["name"] == "all_models_unavailable" for status, _, reply in found if status == 503)


def test_a_failed_call_says_only_our_words() -> None:
    """Its text is the outcome's."""
    from lmtool.protocol.providers.outcomes import RESET

    assert str(CallFailedError(RESET)) == "connection lost"
