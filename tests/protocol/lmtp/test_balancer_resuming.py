"""Streams over a balancer outlive their worker: each token once, on a worker with the same fingerprint."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from lmtool.core.errors import LmtoolError, OutOfMemoryError, OverloadedError, RequestError, ServerError
from lmtool.core.interfaces import QueuePlace, Sink, StreamHandle, place_of
from lmtool.core.types import GenerateRequest, ScoreRequest, TokenOutput, Usage
from lmtool.gateway.balance import balancer as balancer_module
from lmtool.gateway.balance.balancer import Balancer
from tests.protocol.lmtp.balanced import OTHER_PRINT, PRINT, Mortal, Refusing, asked, balanced, mortals, outputs, over
from tests.protocol.lmtp.harness import PATIENCE, until
from tests.scripted_model import ScriptedModel, tokens_of

PROMPT = (3, 4)


def scripted(fingerprint: str | None = PRINT, *, manual: bool = True, name: str = "scripted") -> ScriptedModel:
    """A model that makes tokens when the test says so."""
    return ScriptedModel(manual=manual, name=name, fingerprint=fingerprint)


class Reader:
    """A stream over a balancer, and what came of it."""

    def __init__(self, balancer: Balancer, request: GenerateRequest | ScoreRequest) -> None:
        self.outputs: list[TokenOutput] = []
        self.handle = balancer.submit(request, self.outputs.extend)

    async def take(self, model: ScriptedModel, count: int) -> None:
        """Have a model make tokens, each a step of its own, and read them."""
        for _ in range(count):
            await until(lambda: bool(model.running))
            before = len(self.outputs)
            model.step()
            await until(lambda: len(self.outputs) > before)  # noqa: B023  # awaited here

    async def end(self) -> TokenOutput:
        async with asyncio.timeout(PATIENCE):
            await until(lambda: bool(self.outputs) and self.outputs[-1].last)
        return self.outputs[-1]

    @property
    def tokens(self) -> list[int | None]:
        return [output.token for output in self.outputs]


async def on_first(balancer: Balancer, workers: list[Mortal], request: GenerateRequest | ScoreRequest) -> Reader:
    """A stream of which two tokens have come from the first worker."""
    reader = Reader(balancer, request)
    await reader.take(workers[0].model, 2)
    return reader


async def test_another_worker_goes_on_at_once() -> None:
    """Behind the ids that have come, each token once; usage is that of the whole; the seed is told to who asked."""
    async with mortals(scripted(), scripted()) as workers, over(*workers) as balancer:
        reader = await on_first(balancer, workers, asked(PROMPT, 5))
        workers[0].die()
        await reader.take(workers[1].model, 3)
        assert reader.tokens == tokens_of(PROMPT, 5)
        assert (reader.outputs[-1].usage, reader.outputs[0].seed) == (Usage(2, 5), None)
        [again] = workers[1].model.requests
        assert isinstance(again, GenerateRequest)
        assert again.generated == tuple(tokens_of(PROMPT, 2))
        assert again.sampling.seed == 7, "the one that the first worker told"
        assert (balancer.streams(), balancer.resumed) == ((0, 0), 1)


@pytest.mark.parametrize("another", [True, False])
async def test_a_silent_worker(another: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that falls silent goes on elsewhere, each token once; else it ends with an error."""
    monkeypatch.setattr("lmtool.gateway.balance.balancer._RESUME", replace(balancer_module._RESUME, token_timeout=0.3))
    prints = (PRINT, PRINT if another else OTHER_PRINT)
    async with mortals(*map(scripted, prints)) as workers, over(*workers) as balancer:
        reader = await on_first(balancer, workers, asked(PROMPT, 5))
        if another:
            await until(lambda: bool(workers[1].model.running))
            while not (reader.outputs and reader.outputs[-1].last):
                workers[1].model.step()
                await asyncio.sleep(0)
            assert reader.tokens == tokens_of(PROMPT, 5)
        else:
            assert (await reader.end()).error_code == "timeout"
        assert len(balancer.up) == 2


async def test_the_same_worker_goes_on_when_it_is_back() -> None:
    """Where there is no other one, the stream waits for it."""
    async with mortals(scripted()) as [worker], over(worker) as balancer:
        reader = await on_first(balancer, [worker], asked(PROMPT, 4))
        worker.die()
        await until(lambda: not balancer.up and balancer.streams() == (0, 1))
        worker.revive()
        await reader.take(worker.model, 2)
        assert reader.tokens == tokens_of(PROMPT, 4)


@pytest.mark.parametrize("prints", [(PRINT, OTHER_PRINT), (PRINT, None), (None, None)])
async def test_no_other_fingerprint_goes_on(prints: tuple[str | None, str | None]) -> None:
    """A worker that may compute otherwise is not asked; the error tells of the loss, without a seed at once."""
    async with mortals(*map(scripted, prints)) as workers, over(*workers, wait_seconds=0.2) as balancer:
        reader = await on_first(balancer, workers, asked(PROMPT, 5))
        workers[0].die()
        end = await reader.end()
        assert reader.tokens == [*tokens_of(PROMPT, 2), None]
        assert (end.error_code, end.retryable) == ("connection", True)
        words = "with the same fingerprint could go on with it within 0.2 s" if prints[0] else "before the stream's end"
        assert words in (end.error or "")
        assert workers[1].model.requests == []


async def test_another_fingerprint_waits_for_the_right_one() -> None:
    """The stream goes on where it stood once its worker is back."""
    async with mortals(scripted(), scripted(OTHER_PRINT)) as workers, over(*workers) as balancer:
        reader = await on_first(balancer, workers, asked(PROMPT, 4))
        workers[0].die()
        await until(lambda: balancer.streams()[1] == 1)
        workers[0].revive()
        await reader.take(workers[0].model, 2)
        assert reader.tokens == tokens_of(PROMPT, 4)
        assert workers[1].model.requests == []


async def test_what_has_not_begun_goes_anywhere() -> None:
    """Before its first token a stream may begin on any worker of its model, and waits for one that was up before."""
    async with mortals(scripted(), scripted(OTHER_PRINT)) as workers, over(*workers) as balancer:
        reader = Reader(balancer, asked(PROMPT, 2))
        await until(lambda: bool(workers[0].model.running))
        workers[0].die()
        await until(lambda: bool(workers[1].model.running))
        workers[1].die()
        await until(lambda: balancer.streams()[1] == 1)
        late = Reader(balancer, asked((9,), 2))
        workers[0].revive()
        await until(lambda: len(workers[0].model.running) == 2)
        await reader.take(workers[0].model, 2)
        assert (reader.tokens, late.tokens) == (tokens_of(PROMPT, 2), tokens_of((9,), 2))


async def test_a_worker_never_comes_back() -> None:
    """A request waits for a limited time, a question too; then both are told."""
    async with mortals(scripted(manual=False)) as [worker], over(worker, wait_seconds=0.2) as balancer:
        worker.die()
        await until(lambda: not balancer.up)
        assert not balancer.can_answer
        [end] = await outputs(balancer, asked(PROMPT))
        assert (end.error_code, end.error) == ("connection", "no worker is up; try again in a moment")
        with pytest.raises(LmtoolError, match="no worker is up"):
            await balancer.info()


async def test_a_score_is_repeated() -> None:
    """From its beginning; its reader gets each token once."""
    scored = tuple(range(10, 16))
    async with mortals(scripted(), scripted()) as workers, over(*workers) as balancer:
        reader = await on_first(balancer, workers, ScoreRequest("a", PROMPT, scored))
        workers[0].die()
        await until(lambda: bool(workers[1].model.running))
        for _ in scored:
            workers[1].model.step()
        await reader.end()
        assert reader.tokens == list(scored)


async def test_a_score_of_a_server_that_tells_nothing() -> None:
    """Without a fingerprint only its own server repeats it, as for a client that knows one server."""
    scored = tuple(range(10, 14))
    async with mortals(scripted(None), scripted(None)) as workers, over(*workers) as balancer:
        reader = await on_first(balancer, workers, ScoreRequest("a", PROMPT, scored))
        workers[0].die()
        await until(lambda: balancer.streams()[1] == 1)
        workers[0].revive()
        await until(lambda: bool(workers[0].model.running))
        for _ in scored:
            workers[0].model.step()
        await reader.end()
        assert reader.tokens == list(scored)
        assert workers[1].model.requests == []


class TestBetweenWorkers:
    """The hold on a stream that is on none."""

    async def test_cancel(self) -> None:
        """It ends as cancelled; no worker gets it any more."""
        async with mortals(scripted()) as [worker], over(worker) as balancer:
            reader = await on_first(balancer, [worker], asked(PROMPT, 4))
            worker.die()
            await until(lambda: balancer.streams()[1] == 1)
            reader.handle.cancel()
            assert (await reader.end()).finish_reason == "cancelled"
            worker.revive()
            await until(lambda: bool(balancer.up) and balancer.streams() == (0, 0))
            assert len(worker.model.requests) == 1

    async def test_pause_and_resume(self) -> None:
        """A pause holds on the next worker, until `resume`."""
        async with mortals(scripted()) as [worker], over(worker) as balancer:
            reader = await on_first(balancer, [worker], asked(PROMPT, 4))
            worker.die()
            await until(lambda: balancer.streams()[1] == 1)
            reader.handle.pause()
            worker.revive()
            await until(lambda: bool(worker.model.running))
            worker.model.step()
            await asyncio.sleep(0.05)
            assert len(reader.outputs) == 2
            reader.handle.resume()
            await until(lambda: len(reader.outputs) == 3)
            await reader.take(worker.model, 1)
            assert reader.tokens == tokens_of(PROMPT, 4)

    async def test_the_deadline_goes_on(self) -> None:
        """It counts while no worker has the stream."""
        async with mortals(scripted()) as [worker], over(worker) as balancer:
            reader = await on_first(balancer, [worker], asked(PROMPT, 4, deadline=0.3))
            worker.die()
            assert (await reader.end()).error_code == "timeout"
            assert balancer.streams() == (0, 0)

    async def test_close(self) -> None:
        """A balancer that is closed ends what waits."""
        async with mortals(scripted()) as [worker], over(worker) as balancer:
            reader = await on_first(balancer, [worker], asked(PROMPT, 4))
            worker.die()
            await until(lambda: balancer.streams()[1] == 1)
            await balancer.close()
            assert "shutting down" in ((await reader.end()).error or "")


class TestRefusals:
    """What one worker cannot do and another can."""

    @pytest.mark.parametrize(
        ("error", "elsewhere"),
        [
            (OverloadedError("its queue is full"), True),
            (OutOfMemoryError("no room"), True),
            (ServerError("a fault of its own"), True),
            (RequestError("no such thing"), False),
        ],
    )
    async def test_before_the_first_token(self, error: LmtoolError, elsewhere: bool) -> None:
        """Goes to another worker at once, where it is not the request's own fault; the error is told where none can."""
        first, second = Refusing(), Refusing()
        first.error = error
        async with balanced(first, second) as balancer:
            found = await outputs(balancer, asked(PROMPT))
            assert (found[-1].error is None, len(second.requests)) == (elsewhere, int(elsewhere))
            first.requests.clear()
            second.error = error
            [end] = await outputs(balancer, asked(PROMPT))
            assert end.error_code in {error.code, "overloaded"}
            assert end.retry_after == (1 if end.error_code == "overloaded" else 0)

    async def test_a_stream_that_goes_on_waits_for_room(self) -> None:
        """A worker that has none for the rest of a stream is asked again; its reader hears nothing of it."""
        refusing = Refusing(manual=True, fingerprint=PRINT)
        async with mortals(scripted(), refusing) as workers, over(*workers) as balancer:
            reader = await on_first(balancer, workers, asked(PROMPT, 4))
            refusing.error = OverloadedError("its queue is full")
            workers[0].die()
            await until(lambda: bool(refusing.requests))
            refusing.error = None
            await reader.take(refusing, 2)
            assert reader.tokens == tokens_of(PROMPT, 4)

    async def test_a_request_that_kills(self) -> None:
        """It is given up after some workers, though each has come back meanwhile."""

        class Killed(ScriptedModel):
            def submit(self, request: GenerateRequest | ScoreRequest, sink: Sink) -> StreamHandle:
                handle = super().submit(request, sink)
                asyncio.get_running_loop().call_soon(worker.proxy.cut_now)
                return handle

        killed = Killed(manual=True)
        async with mortals(killed) as [worker], over(worker) as balancer:
            [end] = await outputs(balancer, asked(PROMPT))
            assert end.error_code == "connection"
            assert len(killed.requests) == 7


async def test_what_clients_may_count_on() -> None:
    """Seeds and the fingerprint are told where all workers go on alike, and not where they do not."""
    for other in (PRINT, OTHER_PRINT):
        async with balanced(scripted(manual=False), scripted(other, manual=False)) as balancer:
            info = await balancer.info()
            [first, *_] = await outputs(balancer, replace(asked(PROMPT), resumable=True))
            assert (info.fingerprint, first.seed) == ((PRINT, 7) if other == PRINT else (None, None))


async def test_places_in_the_queue_are_passed_on() -> None:
    """Of the worker that the stream is on (SYS-2)."""

    class Queueing(ScriptedModel):
        def submit(self, request: GenerateRequest | ScoreRequest, sink: Sink) -> StreamHandle:
            handle = super().submit(request, sink)
            handle.queue_place = lambda: QueuePlace(3, 1.5)  # type: ignore[attr-defined]
            return handle

    async with balanced(Queueing(manual=True)) as balancer:
        reader = Reader(balancer, asked(PROMPT))
        await until(lambda: place_of(reader.handle) == QueuePlace(3, 1.5))
        reader.handle.cancel()
