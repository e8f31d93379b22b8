"""A model over one that loses its connection: streams go on from where they stood, each token once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from lmtool.core.errors import ConnectError, LmtoolError, OverloadedError, RequestError, deadline_error
from lmtool.core.interfaces import Sink, StreamHandle, began_at
from lmtool.core.resuming import ResumeOptions, Resuming
from lmtool.core.streams import failure
from lmtool.core.types import GenerateRequest, ModelInfo, SamplingParams, ScoreRequest, TokenOutput, Usage
from tests.protocol.lmtp.harness import until

AT_ONCE = ResumeOptions(retries=3, backoff=0.0, token_timeout=None)
LENGTH = 6
LOST = ConnectError("the connection is gone")


class LossyStream:
    """One attempt; the test says what comes."""

    def __init__(self, request: GenerateRequest | ScoreRequest, sink: Sink, *, tells: bool) -> None:
        self.request, self.sink, self.tells = request, sink, tells
        self.cancelled = self.paused = False
        self.sent = 0
        self.seed = (request.sampling.seed if isinstance(request, GenerateRequest) else None) or 77

    def cancel(self) -> None:
        self.cancelled = True
        asyncio.get_running_loop().call_soon(
            self.sink, [TokenOutput(self.request.stream_id, finish_reason="cancelled")]
        )

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def next(self) -> TokenOutput:
        """The token at its place: its number, and what it was drawn by."""
        request = self.request
        before = len(request.generated) if isinstance(request, GenerateRequest) else 0
        at = before + self.sent
        self.sent += 1
        last = at == LENGTH - 1
        return TokenOutput(
            request.stream_id,
            100 * self.seed + at,
            -float(at),
            finish_reason="length" if last else None,
            usage=Usage(3, self.sent) if last else None,
            seed=self.seed if self.tells and self.sent == 1 and getattr(request, "resumable", False) else None,
        )

    def say(self, count: int) -> None:
        """Bring the next tokens, in one call."""
        self.sink([self.next() for _ in range(count)])

    def fail(self, error: LmtoolError = LOST) -> None:
        self.sink([failure(self.request.stream_id, error)])


class LossyModel:
    """A `TokenModel` whose attempts the test drives. tells: whether it knows `resumable`."""

    def __init__(self, *, tells: bool = True) -> None:
        self.tells = tells
        self.attempts: list[LossyStream] = []
        self.submitted = asyncio.Event()

    def submit(self, request: GenerateRequest | ScoreRequest, sink: Sink) -> StreamHandle:
        made = LossyStream(request, sink, tells=self.tells)
        self.attempts.append(made)
        self.submitted.set()
        return made

    async def info(self, model: str | None = None) -> ModelInfo:
        return ModelInfo(model or "lossy", "", "lossy")

    async def attempt(self, number: int) -> LossyStream:
        """The n-th attempt, from 1, once it was submitted."""
        async with asyncio.timeout(5):
            while len(self.attempts) < number:
                self.submitted.clear()
                await self.submitted.wait()
        return self.attempts[number - 1]


class Reader:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.outputs: list[TokenOutput] = []
        self.calls = 0

    def __call__(self, outputs: Sequence[TokenOutput]) -> None:
        self.calls += 1
        self.outputs += outputs

    @property
    def tokens(self) -> list[int | None]:
        return [output.token for output in self.outputs]


REQUEST = GenerateRequest("s", (1, 2, 3), SamplingParams(max_tokens=LENGTH, temperature=1.0, seed=5))
UNSEEDED = replace(REQUEST, sampling=replace(REQUEST.sampling, seed=None))
Drive = Callable[[GenerateRequest | ScoreRequest], tuple[LossyModel, Reader, StreamHandle]]


@pytest.fixture
def begin() -> Callable[..., tuple[LossyModel, Reader, StreamHandle]]:
    """Submit a request over a lossy model."""

    def begin(request=REQUEST, options=AT_ONCE, **model):
        inner, reader = LossyModel(**model), Reader()
        return inner, reader, Resuming(inner, options).submit(request, reader)

    return begin


async def test_goes_on_from_where_it_stood(begin) -> None:
    """The next attempt counts what came as generated; the reader gets each token once, and the usage of the whole."""
    inner, reader, _ = begin()
    for number in (1, 2, 3):
        attempt = await inner.attempt(number)
        attempt.say(1)
        attempt.fail()
    (await inner.attempt(4)).say(3)
    assert reader.tokens == [500, 501, 502, 503, 504, 505]
    assert [one.request.generated for one in inner.attempts] == [(), (500,), (500, 501), (500, 501, 502)]
    assert {output.stream_id for output in reader.outputs} == {"s"}
    assert {output.seed for output in reader.outputs} == {None}, "nobody asked for it"
    assert reader.outputs[-1].usage == Usage(3, LENGTH)
    assert reader.calls == 4


async def test_a_stream_without_a_seed_goes_on_with_the_one_told(begin) -> None:
    """The seed that the server has drawn is that of every further attempt, and is told to who asked."""
    inner, reader, _ = begin(replace(UNSEEDED, resumable=True))
    (first := await inner.attempt(1)).say(2)
    first.fail()
    (second := await inner.attempt(2)).say(4)
    assert second.request.sampling.seed == 77
    assert [output.seed for output in reader.outputs] == [77] + [None] * 5


async def test_own_generated_ids_stay_in_front(begin) -> None:
    """What the submitter counts as generated is so in every attempt."""
    inner, _, _ = begin(replace(REQUEST, generated=(8, 9)))
    (first := await inner.attempt(1)).say(1)
    first.fail()
    assert (await inner.attempt(2)).request.generated == (8, 9, 502)


async def test_before_the_first_token(begin) -> None:
    """A stream of which nothing has come is begun again, also on a server that tells no seed, without one."""
    inner, reader, _ = begin(UNSEEDED, tells=False)
    (await inner.attempt(1)).fail()
    second = await inner.attempt(2)
    assert (second.request.sampling.seed, second.request.generated) == (None, ())
    second.say(LENGTH)
    assert len(reader.tokens) == LENGTH


async def test_a_server_that_cannot_go_on(begin) -> None:
    """Where tokens have come and no seed was told, the stream ends with the error."""
    inner, reader, _ = begin(tells=False)
    (first := await inner.attempt(1)).say(2)
    first.fail()
    assert reader.outputs[-1].error_code == "connection"
    await asyncio.sleep(0)
    assert len(inner.attempts) == 1


async def test_a_score_is_repeated_whole(begin) -> None:
    """What its reader has is not handed on again."""
    inner, reader, _ = begin(ScoreRequest("s", (1,), (2,) * LENGTH), tells=False)
    (first := await inner.attempt(1)).say(4)
    first.fail()
    (second := await inner.attempt(2)).say(2)
    assert len(reader.tokens) == 4
    second.say(4)
    assert [output.logprob for output in reader.outputs] == [-float(at) for at in range(LENGTH)]


@pytest.mark.parametrize("request_", [REQUEST, ScoreRequest("s", (1,), (2,) * LENGTH)])
async def test_retries_in_a_row(begin, request_) -> None:
    """After so many repetitions without a token the error is told; each token lets it begin to count anew."""
    inner, reader, _ = begin(request_)
    for number in range(1, 4):
        (await inner.attempt(number)).fail()
    (fourth := await inner.attempt(4)).say(1)
    fourth.fail()
    for number in range(5, 7):
        (await inner.attempt(number)).fail()
    assert not any(output.error for output in reader.outputs)
    (await inner.attempt(7)).fail()
    assert [output.error for output in reader.outputs] == [None, LOST.sentence]


@pytest.mark.parametrize(
    ("error", "begun", "repeated"),
    [
        (LOST, False, True),
        (OverloadedError("full"), False, True),
        (OverloadedError("shutting down"), True, True),
        (RequestError("no"), False, False),
        (RequestError("no"), True, False),
    ],
)
async def test_which_errors(begin, error, begun, repeated) -> None:
    """A lost connection, and a server that is full or on its way down: not what a server has refused."""
    inner, reader, _ = begin()
    first = await inner.attempt(1)
    if begun:
        first.say(1)
    first.fail(error)
    assert (not any(output.error for output in reader.outputs)) == repeated


async def test_pauses_grow(begin, monkeypatch) -> None:
    """The first repetition is at once; the pauses before further ones double, and vary by a quarter at most."""
    pauses = []
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "call_later", lambda pause, callback: pauses.append(pause) or loop.call_soon(callback))
    inner, _, _ = begin(options=replace(AT_ONCE, backoff=2.0, retries=4))
    for number in range(1, 5):
        (await inner.attempt(number)).fail()
    assert pauses[0] == 0
    assert all(least <= pause <= least * 1.25 for least, pause in zip((2, 4, 8), pauses[1:], strict=True))


class TestSilence:
    """A connection that is there and brings nothing."""

    OPTIONS = replace(AT_ONCE, token_timeout=0.03)

    async def test_is_cancelled_and_repeated(self, begin) -> None:
        """The silent attempt is cancelled; what it still sends is dropped."""
        inner, reader, _ = begin(options=self.OPTIONS)
        (first := await inner.attempt(1)).say(2)
        second = await inner.attempt(2)
        assert first.cancelled
        first.say(1)
        second.say(4)
        assert reader.tokens == [500, 501, 502, 503, 504, 505]

    async def test_ends_with_an_error_at_last(self, begin) -> None:
        """After the last repetition."""
        inner, reader, _ = begin(options=self.OPTIONS)
        (await inner.attempt(1)).say(1)
        await inner.attempt(4)
        async with asyncio.timeout(5):
            while not reader.outputs[-1].last:
                await asyncio.sleep(0.01)
        assert (reader.outputs[-1].error_code, len(inner.attempts)) == ("timeout", 4)
        assert all(one.cancelled for one in inner.attempts)

    @pytest.mark.parametrize("tells", [True, False])
    async def test_is_borne(self, begin, tells) -> None:
        """Before the first token, where a model may be loading; and while paused."""
        inner, _, handle = begin(options=self.OPTIONS, tells=tells)
        await asyncio.sleep(0.1)
        (first := await inner.attempt(1)).say(1)
        handle.pause()
        await asyncio.sleep(0.1)
        assert len(inner.attempts) == 1
        assert not first.cancelled

    @pytest.mark.parametrize(("retries", "tells"), [(3, False), (0, True), (0, False)])
    async def test_ends_what_cannot_go_on(self, begin, retries, tells) -> None:
        """A stream that the server cannot go on with, or may not be repeated, ends with the error."""
        inner, reader, _ = begin(options=replace(self.OPTIONS, retries=retries), tells=tells)
        (first := await inner.attempt(1)).say(2)
        await until(lambda: reader.outputs[-1].last)
        assert (reader.outputs[-1].error_code, reader.tokens[:2]) == ("timeout", [500, 501])
        assert first.cancelled
        assert len(inner.attempts) == 1


GREEDY = replace(REQUEST, sampling=SamplingParams(max_tokens=LENGTH))


@pytest.mark.parametrize("silent", [True, False])
async def test_greedy_streams_of_servers_that_cannot_go_on(begin, silent) -> None:
    """What was received becomes part of the prompt, after silence and after a loss; usage counts it as generated."""
    options = replace(AT_ONCE, token_timeout=0.03 if silent else None)
    inner, reader, _ = begin(GREEDY, options, tells=False)
    (first := await inner.attempt(1)).say(2)
    if not silent:
        first.fail()
    second = await inner.attempt(2)
    assert second.request.prompt == (1, 2, 3, *reader.tokens)
    assert second.request.sampling.max_tokens == LENGTH - 2
    assert (second.request.generated, second.request.resumable) == ((), False)
    attempt = second.request.stream_id
    second.sink([TokenOutput(attempt, 9, -1.0, finish_reason="length", usage=Usage(5, 1))])
    assert reader.outputs[-1] == TokenOutput("s", 9, -1.0, finish_reason="length", usage=Usage(3, 3))


class TestHandle:
    """The submitter's hold on a stream, whichever attempt runs."""

    async def test_cancel(self, begin) -> None:
        """Reaches the attempt that runs; its ending is the stream's."""
        inner, reader, handle = begin()
        (await inner.attempt(1)).say(1)
        handle.cancel()
        handle.cancel()
        await asyncio.sleep(0)
        assert [output.finish_reason for output in reader.outputs] == [None, "cancelled"]

    async def test_cancel_between_attempts(self, begin) -> None:
        """Ends the stream, which is not begun again."""
        inner, reader, handle = begin(options=replace(AT_ONCE, backoff=1000.0))
        for number in (1, 2):
            (await inner.attempt(number)).fail()
        handle.cancel()
        handle.cancel()
        await asyncio.sleep(0.01)
        assert [output.finish_reason for output in reader.outputs] == ["cancelled"]
        assert len(inner.attempts) == 2

    async def test_a_loss_after_cancel(self, begin) -> None:
        """Is no reason to begin again: the stream is cancelled."""
        inner, reader, handle = begin()
        first = await inner.attempt(1)
        handle.cancel()
        first.fail()
        await asyncio.sleep(0.01)
        assert [output.finish_reason for output in reader.outputs] == ["cancelled"]

    async def test_pause_lasts(self, begin) -> None:
        """Over a lost connection, until `resume`."""
        inner, _, handle = begin()
        handle.pause()
        (first := await inner.attempt(1)).fail()
        assert first.paused
        assert (second := await inner.attempt(2)).paused
        handle.resume()
        assert not second.paused


async def test_streams_of_one_sink_come_together(begin) -> None:
    """One call of the sink for each call by the inner model; ids are the sink's own, and free again afterwards."""
    inner, reader = LossyModel(), Reader()
    model = Resuming(inner, AT_ONCE)
    for name in "ab":
        model.submit(replace(REQUEST, stream_id=name), reader)
    one, other = inner.attempts
    assert one.sink is other.sink
    one.sink([one.next(), other.next()])
    assert reader.calls == 1
    one.say(5)
    other.say(5)
    assert [output.stream_id for output in reader.outputs if output.last] == ["a", "b"]
    model.submit(replace(REQUEST, stream_id="a"), reader)
    inner.attempts[2].say(LENGTH)
    assert reader.outputs[-1].stream_id == "a"


async def test_a_stream_that_comes_whole_tells_when_it_began() -> None:
    """Its reader asks behind the last token, which came in the same call as the first."""
    model = LossyModel()
    began: list[float | None] = []
    handle = Resuming(model, AT_ONCE).submit(REQUEST, lambda outputs: began.append(began_at(handle)))
    model.attempts[0].began_at = lambda: 42.0  # type: ignore[attr-defined]
    model.attempts[0].say(LENGTH)
    assert began == [42.0]


async def test_turned_off_and_prefills(begin) -> None:
    """Without retries, and for a prompt that is only computed, the inner model gets request and sink as they are."""
    for request, options in (
        (REQUEST, ResumeOptions(0, token_timeout=None)),
        (replace(REQUEST, prefill_only=True), AT_ONCE),
    ):
        inner, reader, _ = begin(request, options)
        assert inner.attempts[0].request is request
        assert inner.attempts[0].sink is reader


async def test_reasons_are_told() -> None:
    """Whoever wants to know is called with the error each time."""
    inner, reasons = LossyModel(), []
    Resuming(inner, AT_ONCE, reasons.append).submit(REQUEST, Reader())
    (await inner.attempt(1)).fail()
    assert [reason.message for reason in reasons] == [LOST.message]


async def test_where_there_is_nothing_to_go_on_with() -> None:
    """A server that was never reached, or does not know how, is not asked again: the error comes at once."""
    inner, reader, known = LossyModel(), Reader(), [True, False]
    model = Resuming(inner, AT_ONCE, may_repeat=lambda: known.pop(0))
    model.submit(REQUEST, reader)
    (await inner.attempt(1)).fail()
    (await inner.attempt(2)).fail()
    assert [output.error for output in reader.outputs] == [LOST.sentence]


async def test_description() -> None:
    """Is the inner model's."""
    assert (await Resuming(LossyModel()).info("m")).model == "m"


class TestWhatTheServerSays:
    """Of its error, beside the code."""

    @pytest.mark.parametrize(("retryable", "seconds", "attempts"), [(True, 0, 2), (False, 0, 1), (True, 31, 1)])
    async def test_is_heeded(self, begin, retryable, seconds, attempts) -> None:
        """A request that is of no use again, or only after a longer pause than is allowed, ends with the error."""
        inner, reader, _ = begin()
        (first := await inner.attempt(1)).say(2)
        error = ConnectError("gone for good")
        error.retryable, error.retry_after = retryable, seconds
        first.fail(error)
        await asyncio.sleep(0.01)
        assert len(inner.attempts) == attempts
        assert reader.outputs[-1].last is (attempts == 1)

    async def test_its_pause_is_kept(self, begin) -> None:
        """The seconds that an overloaded server asks for pass before the next attempt."""
        inner, _, _ = begin()
        (first := await inner.attempt(1)).say(2)
        error = OverloadedError("full")
        error.retry_after = 30
        first.fail(error)
        await asyncio.sleep(0.02)
        assert len(inner.attempts) == 1


class TestDeadline:
    """It counts over all attempts, and the pauses between them."""

    REQUEST = replace(REQUEST, deadline=0.05)

    async def test_ends_a_later_attempt(self, begin) -> None:
        """That attempt is cancelled, and the stream ends with the error."""
        inner, reader, _ = begin(self.REQUEST)
        (first := await inner.attempt(1)).say(2)
        first.fail()
        second = await inner.attempt(2)
        await until(lambda: reader.outputs[-1].last)
        assert second.cancelled
        assert (reader.outputs[-1].error_code, reader.outputs[-1].retryable) == ("timeout", False)

    async def test_ends_a_pause(self, begin) -> None:
        """A stream between two attempts ends as well."""
        inner, reader, _ = begin(self.REQUEST, options=replace(AT_ONCE, backoff=20.0))
        (first := await inner.attempt(1)).say(2)
        first.fail()
        (await inner.attempt(2)).fail()
        await until(lambda: reader.outputs[-1].last)
        assert (reader.outputs[-1].error_code, len(inner.attempts)) == ("timeout", 2)

    async def test_of_the_server_is_not_repeated(self, begin) -> None:
        """Its time is over for good."""
        inner, reader, _ = begin(self.REQUEST)
        (await inner.attempt(1)).fail(deadline_error(0.05))
        await asyncio.sleep(0.01)
        assert (len(inner.attempts), reader.outputs[-1].error_code) == (1, "timeout")


class TestParked:
    """Over a wire that cannot pause one stream of several, a stream that stays paused ends there."""

    PARKING = replace(AT_ONCE, park_after=0.0)

    async def test_goes_on_when_it_is_resumed(self, begin) -> None:
        """From where its reader stands: what came meanwhile is computed again, and nothing of it shows."""
        inner, reader, handle = begin(options=self.PARKING)
        first = await inner.attempt(1)
        first.say(2)
        handle.pause()
        assert first.paused
        await until(lambda: first.cancelled)
        first.say(2)
        assert reader.tokens == [500, 501]
        handle.resume()
        (await inner.attempt(2)).say(4)
        assert reader.tokens == [500, 501, 502, 503, 504, 505]
        assert inner.attempts[1].request.generated == (500, 501)
        assert reader.outputs[-1].usage == Usage(3, 6)

    async def test_a_short_pause_changes_nothing(self, begin) -> None:
        """A stream that is resumed in time goes on where it is."""
        inner, reader, handle = begin(options=replace(AT_ONCE, park_after=0.05))
        handle.pause()
        handle.resume()
        await asyncio.sleep(0.1)
        inner.attempts[0].say(6)
        assert (len(reader.tokens), len(inner.attempts)) == (6, 1)

    async def test_cancelled_meanwhile(self, begin) -> None:
        """It ends at once, and never begins again."""
        inner, reader, handle = begin(options=self.PARKING)
        handle.pause()
        await until(lambda: inner.attempts[0].cancelled)
        handle.cancel()
        await until(lambda: bool(reader.outputs))
        handle.resume()
        assert [output.finish_reason for output in reader.outputs] == ["cancelled"]
        assert len(inner.attempts) == 1

    async def test_resumed_in_the_turn_in_which_it_is_cancelled(self, begin) -> None:
        """A reader that reads again while its stream is cancelled begins nothing that nobody would end."""
        inner, reader, handle = begin(options=self.PARKING)
        handle.pause()
        await until(lambda: inner.attempts[0].cancelled)
        handle.cancel()
        handle.resume()
        await until(lambda: bool(reader.outputs))
        assert [output.finish_reason for output in reader.outputs] == ["cancelled"]
        assert len(inner.attempts) == 1

    async def test_not_while_it_is_being_cancelled(self, begin, monkeypatch: pytest.MonkeyPatch) -> None:
        """The ending that comes late is the stream's."""
        inner, reader, handle = begin(options=self.PARKING)
        [attempt] = inner.attempts
        monkeypatch.setattr(attempt, "cancel", lambda: None)
        handle.pause()
        handle.cancel()
        await asyncio.sleep(0.01)
        attempt.sink([TokenOutput(attempt.request.stream_id, finish_reason="cancelled")])
        assert [output.finish_reason for output in reader.outputs] == ["cancelled"]

    async def test_begun_again_while_it_is_paused(self, begin) -> None:
        """An attempt that begins for a stream which is paused still does not stay either."""
        inner, reader, handle = begin(options=self.PARKING)
        (await inner.attempt(1)).say(2)
        inner.attempts[0].fail()
        handle.pause()
        second = await inner.attempt(2)
        await until(lambda: second.cancelled)
        handle.resume()
        (await inner.attempt(3)).say(4)
        assert reader.tokens == [500, 501, 502, 503, 504, 505]

    @pytest.mark.parametrize(
        ("request_", "model"),
        [(ScoreRequest("s", (1,), (2, 3)), {}), (REQUEST, {"tells": False})],
        ids=["a score", "no seed was told"],
    )
    async def test_what_could_not_go_on_stays(self, begin, request_, model) -> None:
        """A score, and a stream of a server that tells no seed, wait where they are."""
        inner, reader, handle = begin(request_, self.PARKING, **model)
        inner.attempts[0].say(1)
        handle.pause()
        await asyncio.sleep(0.01)
        assert not inner.attempts[0].cancelled
        handle.resume()
        inner.attempts[0].say(1)
        assert len(reader.outputs) == 2
