"""One stream as an iterator, streams that cannot start yet or at all."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from lmtool.core.errors import LmtoolError, OverloadedError, RequestError, deadline_error
from lmtool.core.interfaces import Sink
from lmtool.core.streams import Deadlines, DeferredHandle, Inbox, error_of, failure, refuse, stream
from lmtool.core.types import GenerateRequest, ModelInfo, SamplingParams, ScoreRequest, TokenOutput
from tests.protocol.lmtp.harness import until
from tests.scripted_model import ScriptedModel


class Counter:
    """A model whose streams count upwards, `burst` tokens a turn of the loop, to `end`; its own stream handle."""

    def __init__(self, end: int, burst: int = 1) -> None:
        self.end = end
        self.burst = burst
        self.said: list[str] = []
        self.sent = 0

    def submit(self, request: GenerateRequest | ScoreRequest, sink: Sink) -> Counter:
        self.sink = sink
        self.stream_id = request.stream_id
        asyncio.get_running_loop().call_soon(self.step)
        return self

    async def info(self, model: str | None = None) -> ModelInfo:
        return ModelInfo("counter", "Counter()", "counter")

    def step(self) -> None:
        if "cancel" in self.said:
            self.sink([TokenOutput(self.stream_id, finish_reason="cancelled")])
            return
        if not self.said or self.said[-1] != "pause":
            until = min(self.end, self.sent + self.burst)
            outputs = [
                TokenOutput(self.stream_id, i, finish_reason="length" if i + 1 == self.end else None)
                for i in range(self.sent, until)
            ]
            self.sent = until
            self.sink(outputs)
        if self.sent < self.end:
            asyncio.get_running_loop().call_soon(self.step)

    def cancel(self) -> None:
        self.said.append("cancel")

    def pause(self) -> None:
        self.said.append("pause")

    def resume(self) -> None:
        self.said.append("resume")


def collector(into: list[TokenOutput]) -> Sink:
    def sink(outputs: Sequence[TokenOutput]) -> None:
        into.extend(outputs)

    return sink


class TestStream:
    """One stream as an async iterator."""

    async def test_all_outputs_in_order(self) -> None:
        """Every output is yielded, in order, up to the last."""
        found = [output.token async for output in stream(Counter(50, 7), GenerateRequest(1, ()))]
        assert found == list(range(50))

    async def test_leaving_early_cancels(self) -> None:
        """Leaving the iterator before the last output cancels the stream."""
        model = Counter(50)
        outputs = stream(model, GenerateRequest(1, ()))
        async for output in outputs:
            if output.token == 3:
                break
        await outputs.aclose()
        assert model.said == ["cancel"]

    async def test_slow_reader_pauses(self) -> None:
        """A reader that falls behind pauses the stream until it has caught up by half, and loses nothing."""
        model = Counter(100, burst=10)
        found = [output.token async for output in stream(model, GenerateRequest(1, ()), high_water=10)]
        assert found == list(range(100))
        assert model.said[:2] == ["pause", "resume"]


class TestDeferredHandle:
    """The hold on a stream that cannot start yet."""

    async def test_what_was_asked_is_passed_on(self) -> None:
        """A stream paused before it starts is paused when it starts; afterwards everything passes straight on."""
        model = Counter(5)
        handle = DeferredHandle(1, collector([]))
        handle.pause()
        handle.start(lambda: model.submit(GenerateRequest(1, ()), collector([])))
        assert model.said == ["pause"]
        handle.resume()
        handle.pause()
        handle.cancel()
        assert model.said == ["pause", "resume", "pause", "cancel"]

    async def test_resumed_before_it_starts(self) -> None:
        """A stream that was paused and resumed before it starts is not paused."""
        model = Counter(5)
        handle = DeferredHandle(1, collector([]))
        handle.pause()
        handle.resume()
        handle.start(lambda: model.submit(GenerateRequest(1, ()), collector([])))
        assert model.said == []

    async def test_cancelled_before_it_starts(self) -> None:
        """A stream cancelled before it starts ends with `cancelled`, never starts, and ends once."""
        found: list[TokenOutput] = []
        handle = DeferredHandle("s", collector(found))
        handle.cancel()
        handle.cancel()
        assert not found
        assert handle.ended
        handle.start(lambda: Counter(1))
        handle.fail(OverloadedError("too many"))
        await asyncio.sleep(0)
        assert found == [TokenOutput("s", finish_reason="cancelled")]


async def test_refusal() -> None:
    """A refused request gets its error, with code and what to do next, after the caller has returned; once."""
    found: list[TokenOutput] = []
    handle = refuse(7, collector(found), OverloadedError("too many streams", "try again later"))
    handle.cancel()
    assert not found
    await asyncio.sleep(0)
    assert found == [TokenOutput(7, error="too many streams; try again later", error_code="overloaded")]
    assert found == [failure(7, OverloadedError("too many streams", "try again later"))]


def test_an_error_that_goes_through_a_stream_keeps_its_hints() -> None:
    """Message and hints come out as they went in; of an error from elsewhere the sentence is the message."""
    error = error_of(failure("a", OverloadedError("no room; none at all", "wait", "or go")))
    assert (type(error), error.message, error.hints) == (OverloadedError, "no room; none at all", ("wait", "or go"))
    other = error_of(TokenOutput("a", error="no room; wait", error_code=OverloadedError.code))
    assert (type(other), other.message, other.hints) == (OverloadedError, "no room; wait", ())


@pytest.mark.parametrize("error", [OverloadedError("no room", "wait"), RequestError("no"), deadline_error(2.5)])
def test_an_error_that_goes_through_a_stream_is_the_same(error: LmtoolError) -> None:
    """Also what is known of it beside its class: whether, and when, the request may be sent again."""
    error.retry_after = 7
    found = error_of(failure("a", error))
    assert (type(found), found.sentence, found.hints) == (type(error), error.sentence, error.hints)
    assert (found.retryable, found.retry_after) == (error.retryable, 7)


class TestDeadlines:
    """Streams that end when their time is over."""

    async def test_the_error_comes_behind_the_tokens(self) -> None:
        """In place of the ending of the stream that was cancelled; another ending stays."""
        model = ScriptedModel(manual=True)
        inbox = Inbox()
        late = GenerateRequest("late", (1,), SamplingParams(max_tokens=9), deadline=0.01)
        inbox.submit(model, late)
        inbox.submit(model, replace(late, stream_id="whole", sampling=SamplingParams(max_tokens=2)))
        inbox.submit(model, replace(late, stream_id="free", deadline=None))
        model.step()
        await until(lambda: model.cancelled)
        model.step()
        found = {output.stream_id: output for output in await inbox.take()}
        assert (found["late"].error_code, found["late"].retryable) == ("timeout", False)
        assert found["late"].error_hints == ("send the request again with a longer one",)
        assert found["free"].finish_reason is None

    async def test_what_has_passed_counts(self) -> None:
        """A request that waited elsewhere before has less time left, or none."""
        model = ScriptedModel(manual=True)
        outputs = stream(model, GenerateRequest(1, (1,), deadline=60.0), elapsed=60.0)
        reading = asyncio.ensure_future(anext(aiter(outputs)))
        await until(lambda: model.cancelled)
        model.step()
        assert (await reading).error == "the deadline of 60 s is over; send the request again with a longer one"

    async def test_an_id_that_is_used_again_has_its_own_time(self) -> None:
        """What ended before its deadline is forgotten with it."""
        deadlines, handle = Deadlines(), CountingHandle()
        deadlines.start(GenerateRequest(1, (1,), deadline=0.01), handle)
        deadlines.apply([TokenOutput(1, finish_reason="stop")])
        deadlines.start(GenerateRequest(2, (1,), deadline=0.01), handle)
        deadlines.forget(2)
        deadlines.start(GenerateRequest(3, (1,), deadline=0.01), handle)
        deadlines.close()
        await asyncio.sleep(0.03)
        assert handle.cancelled == 0
        cancelled = [TokenOutput(1, finish_reason="cancelled")]
        assert deadlines.apply(cancelled) == cancelled


class CountingHandle:
    """The handle of a stream, which counts how often it is cancelled."""

    cancelled = 0

    def cancel(self) -> None:
        self.cancelled += 1

    def pause(self) -> None:
        raise AssertionError

    def resume(self) -> None:
        raise AssertionError
