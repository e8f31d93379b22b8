"""Deadlines of requests to pools: on every wire, over all attempts, and as members are told of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import aiohttp
import pytest

import lmtool
from lmtool.core.errors import (
    LmtoolError,
    OverloadedError,
    RequestError,
    TimeLimitError,
    UnknownModelError,
    deadline_error,
)
from lmtool.core.interfaces import Sink, StreamHandle, TokenModel
from lmtool.core.outcomes import Outcome
from lmtool.core.streams import refuse
from lmtool.core.types import GenerateRequest, ScoreRequest
from lmtool.gateway.pools.failures import OVER, outcome_of_error
from lmtool.protocol.http.errors import from_error
from lmtool.protocol.providers.outcomes import TIMEOUT
from tests.fake_answers import Words
from tests.fake_upstream import BAD, HANG, Behaviour, FakeUpstream
from tests.gateway.pools.running import CHAT, MESSAGE, gateway, member, pool
from tests.gateway.pools.test_token_stream import RecordingModel, models
from tests.gateway.pools.test_token_stream import member as lmtp_member
from tests.gateway.pools.wires import WIRES
from tests.protocol.lmtp.harness import serving

__all__ = ["models"]

SECONDS = 0.8
OVER_WORDS = f"the deadline of {SECONDS} s is over"
STUCK = Behaviour(words=Words(("Hello", " to", " you")), fault="hang", after=2)
"""Sends the beginning of an answer, and nothing more."""
WAV = {"content-type": "audio/wav"}


@pytest.mark.parametrize("wire", WIRES)
async def test_streams(wire: str) -> None:
    """The error comes behind what there is of the answer; the call ends, and its member is not to blame."""
    async with FakeUpstream(STUCK) as upstream, gateway(pool(member("main", upstream))) as running:
        found = await WIRES[wire](running, deadline=SECONDS)
        assert OVER_WORDS in (found.error or "")
        assert found.text.startswith("Hello")
        await asyncio.wait_for(upstream.left.wait(), 10)
        assert running.pool.members[0].totals.outcomes == {"cancelled": 1}
        assert running.pool.members[0].health.outcome is None


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/language/default/chat", MESSAGE), ("/v1/default/chat", MESSAGE), ("/v1/chat/completions", CHAT)],
)
async def test_whole_answers(path: str, body: dict[str, Any]) -> None:
    """504 and the error `timeout`; nobody else is asked, and clients that know the header do not try again."""
    async with FakeUpstream(HANG) as first, FakeUpstream() as second:
        async with gateway(pool(member("first", first), member("second", second))) as running:
            status, headers, reply = await running.post(path, body | {"deadline": SECONDS})
            assert running.pool.members[0].totals.outcomes == {"cancelled": 1}
        assert (status, headers["x-should-retry"]) == (504, "false")
        error = reply.get("error", reply)
        assert OVER_WORDS in error["message"]
        assert "timeout" in (error.get("name"), error.get("code"))
        assert headers["x-lmtool-attempts"].startswith("first cancelled ")
        assert second.received == []


async def test_attempts_and_pauses_end_with_it() -> None:
    """It holds over all attempts; these are told."""
    async with FakeUpstream(BAD["500"]) as ill:
        text = pool(
            member("main", ill, error_budget="1000/s"), retry="{max_retries: 100, min_delay: 50ms, max_delay: 50ms}"
        )
        async with gateway(text) as running:
            status, _, reply = await running.post("/v1/language/default/chat", MESSAGE | {"deadline": SECONDS})
        count = len(ill.received)
    assert (status, reply["name"]) == (504, "timeout")
    *earlier, last = (one["outcome"] for one in reply["attempts"])
    assert set(earlier) == {"status 500"}
    assert last in ("status 500", "cancelled")  # it may be over within a call, which may not have arrived
    assert 0 <= len(earlier) + 1 - count <= (last == "cancelled")
    assert count > 1


OTHERS = {
    "embed": ("/v1/embeddings/default/embed", {"json": {"input": ["a"], "deadline": SECONDS}}),
    "speak": ("/v1/speech/synthesizers/default", {"json": {"text": "a", "deadline": SECONDS}}),
    "multimodal": ("/v1/multi/default/multimodal", {"json": MESSAGE | {"deadline": SECONDS}}),
    "transcribe": (f"/v1/speech/transcribers/default?deadline={SECONDS}", {"data": b"RIFF", "headers": WAV}),
}


@pytest.mark.parametrize("name", [*OTHERS, "form"])
async def test_other_requests(name: str) -> None:
    """Embeddings, recordings and the rest have one as well; a form in a field."""
    if name == "form":
        form = aiohttp.FormData({"deadline": str(SECONDS)})
        form.add_field("file", b"RIFF", filename="a.wav", content_type="audio/wav")
        path, sent = "/v1/speech/transcribers/default", {"data": form}
    else:
        path, sent = OTHERS[name]
    async with FakeUpstream(HANG) as upstream, gateway(pool(member("main", upstream))) as running:
        status, _, reply = await running.post(path, **sent)
        assert (status, reply["name"]) == (504, "timeout")
        assert b"deadline" not in upstream.received[0].body


@pytest.mark.parametrize("value", [0, -1, 86401, "soon"])
async def test_what_is_none(value: Any) -> None:
    """Refused by name, before anybody is called."""
    async with FakeUpstream() as upstream, gateway(pool(member("main", upstream))) as running:
        for path, body in (("/v1/language/default/chat", MESSAGE), ("/v1/embeddings/default/embed", {"input": "a"})):
            status, _, reply = await running.post(path, body | {"deadline": value})
            assert (status, "deadline" in reply["message"]) == (400, True), path
        path = f"/v1/speech/transcribers/default?deadline={value}"
        status, _, reply = await running.post(path, data=b"RIFF", headers=WAV)
        assert (status, reply["message"]) == (
            400,
            f"deadline is '{value}'; expected a number above 0, at most 86400, in seconds",
        )
    assert upstream.received == []


async def test_python() -> None:
    """`pools.chat(..., deadline=...)` raises `TimeLimitError`, which is of no use to try again."""
    async with (
        FakeUpstream(HANG) as upstream,
        gateway(pool(member("main", upstream))) as running,
        lmtool.pools(running.url) as pools,
    ):
        with pytest.raises(TimeLimitError, match=OVER_WORDS) as raised:
            await pools.chat("default", "Hello", deadline=SECONDS)
    assert raised.value.retryable is False


async def test_members_get_what_is_left(models: Sequence[TokenModel]) -> None:
    """A server of ours is told how much of the time there is still; without a deadline nothing."""
    recorded = RecordingModel(models[0])
    late = Behaviour(status=500, delay=0.5)
    async with FakeUpstream(late) as first, serving(recorded) as served:
        members = member("first", first), lmtp_member("second", served.port)
        async with gateway(pool(*members, overridable="[maxTokens]")) as running:
            for deadline in ({"deadline": 30}, {}):
                body = MESSAGE | {"maxTokens": 3} | deadline
                status, _, _ = await running.post("/v1/language/default/chat", body)
                assert status == 200
    told, untold = (request.deadline for request in recorded.requests)
    assert told is not None
    assert 1 < told <= 29.5
    assert untold is None


class Refusing(RecordingModel):
    """A model that refuses everything with this error."""

    def __init__(self, model: TokenModel, error: LmtoolError) -> None:
        super().__init__(model)
        self.error = error

    def submit(self, request: GenerateRequest | ScoreRequest, sink: Sink) -> StreamHandle:
        assert isinstance(request, GenerateRequest)
        self.requests.append(request)
        return refuse(request.stream_id, sink, self.error)


async def test_a_member_that_is_first_to_say_so(models: Sequence[TokenModel]) -> None:
    """A server of ours whose clock is ahead ends the request as well: nobody else is asked, and it is not to blame."""
    ahead, other = Refusing(models[0], deadline_error(29)), RecordingModel(models[1])
    async with (
        serving(ahead) as one,
        serving(other) as two,
        gateway(pool(lmtp_member("a", one.port), lmtp_member("b", two.port))) as running,
    ):
        status, _, reply = await running.post("/v1/language/default/chat", MESSAGE | {"deadline": 30})
        assert (status, reply["name"]) == (504, "timeout")
        assert "the deadline of 30 s is over" in reply["message"]
        assert running.pool.members[0].totals.outcomes == {"cancelled": 1}
    assert other.requests == []


class TestWhatOurServersSayOfRetrying:
    """`retryable` and `retry_after` (EXT-7) of members that are lmtool's."""

    def test_outcomes(self) -> None:
        """A rest as long as was said; a deadline that is over is no failure; else as the code says."""
        busy = OverloadedError("full")
        assert outcome_of_error(busy) == outcome_of_error(from_error(busy)) == Outcome("rate_limit", "overloaded", 1.0)
        busy.retry_after = 7
        assert outcome_of_error(busy) == outcome_of_error(from_error(busy)) == Outcome("rate_limit", "overloaded", 7.0)
        assert outcome_of_error(deadline_error(1)) is OVER
        assert outcome_of_error(TimeLimitError("late")) is TIMEOUT
        late = TimeLimitError("late")
        late.retry_after = 3
        assert outcome_of_error(late) == Outcome("rate_limit", "timeout", 3.0)
        unknown = UnknownModelError("none such")
        unknown.retry_after = 3
        assert outcome_of_error(unknown).kind == "refused"

    async def test_it_rests_as_long_as_it_says(self, models: Sequence[TokenModel]) -> None:
        """Over LMTP."""
        busy = OverloadedError("full")
        busy.retry_after = 40
        async with serving(Refusing(models[0], busy)) as one, serving(models[1]) as two:
            members = lmtp_member("a", one.port), lmtp_member("b", two.port)
            async with gateway(pool(*members, overridable="[maxTokens]")) as running:
                status, _, _ = await running.post("/v1/language/default/chat", MESSAGE | {"maxTokens": 2})
                assert status == 200
                assert 30 < running.pool.members[0].health.rest_seconds(running.pool.clock()) <= 40

    async def test_over_http_as_well(self) -> None:
        """By `Retry-After` of a 503, as of a 429."""
        busy = Behaviour(status=503, headers={"retry-after": "40"})
        async with (
            FakeUpstream(busy) as one,
            FakeUpstream() as two,
            gateway(pool(member("a", one), member("b", two))) as running,
        ):
            status, _, _ = await running.post("/v1/language/default/chat")
            assert status == 200
            assert 30 < running.pool.members[0].health.rest_seconds(running.pool.clock()) <= 40

    async def test_the_same_model_is_not_asked_again(self, models: Sequence[TokenModel]) -> None:
        """What one refuses all of its fingerprint would refuse; another model may take it."""
        error = RequestError("the chat template has no place for this")
        first, same, other = Refusing(models[0], error), RecordingModel(models[1]), RecordingModel(models[2])
        async with serving(first) as one, serving(same) as two, serving(other) as three:
            members = [lmtp_member(name, one.port) for name, one in (("a", one), ("b", two), ("c", three))]
            async with gateway(pool(*members, overridable="[maxTokens]")) as running:
                status, headers, _ = await running.post("/v1/language/default/chat", MESSAGE | {"maxTokens": 2})
                assert status == 200
                assert "b is the same model as one that refused" in headers["x-lmtool-attempts"]
                assert "c ok" in headers["x-lmtool-attempts"]
            async with gateway(pool(*members[:2])) as running:
                status, _, reply = await running.post("/v1/language/default/chat")
                assert (status, reply["name"]) == (400, "request_refused")
        assert (same.requests, len(other.requests)) == ([], 1)
        assert json.dumps(reply).count("same model") == 2
