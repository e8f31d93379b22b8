"""Load on a server: loops, and the scenario that compares free streams with constrained ones."""

from __future__ import annotations

import asyncio
import time
from functools import partial

import pytest

from lmtool.core.errors import ServerError, UsageError
from lmtool.measure.bench.load import ROUNDS, closed_loop, landing_loop, open_loop, run_constrained
from lmtool.measure.bench.record import Record
from lmtool.measure.bench.targets import ModelTarget, OnToken, Server
from lmtool.measure.bench.workload import Job, ServeBench, arrivals
from tests.scripted_model import ScriptedModel


class Watched(ModelTarget):
    """Counts how many requests run at once."""

    def __init__(self) -> None:
        super().__init__(ScriptedModel())
        self.running = self.most = 0
        self.starts: list[float] = []

    async def send(self, job: Job, on_token: OnToken | None = None) -> Record:
        self.running += 1
        self.most = max(self.most, self.running)
        self.starts.append(time.perf_counter())
        record = await super().send(job, on_token)
        self.running -= 1
        return record


def requests(count: int, output_len: int = 5) -> list[Job]:
    return [Job((number,), output_len + number % 3) for number in range(count)]


async def test_a_closed_loop_keeps_its_concurrency() -> None:
    """Never more, and never fewer while there are requests left; records in the requests' order."""
    target = Watched()
    records = await closed_loop(target, requests(11), 4)
    assert target.most == 4
    assert [record.tokens for record in records] == [5 + number % 3 for number in range(11)]


async def test_closed_loop_of_fewer_requests_than_streams() -> None:
    """They all run at once."""
    target = Watched()
    assert len(await closed_loop(target, requests(2), 8)) == 2
    assert target.most == 2


async def test_open_loop_sends_each_at_its_time() -> None:
    """However many are running: here all arrive before the first one ends."""
    target = Watched()
    times = arrivals(2000.0, 10, 0)
    start = time.perf_counter()
    records = await open_loop(target, requests(10, 3), times)
    assert [record.tokens for record in records] == [3 + number % 3 for number in range(10)]
    late = [started - start - at for started, at in zip(sorted(target.starts), times, strict=True)]
    assert min(late) >= 0


async def test_the_long_prompt_lands_once_every_stream_runs() -> None:
    """It is sent when each has `after` tokens."""
    model = ScriptedModel()
    streams, landed = await landing_loop(ModelTarget(model), requests(5, 20), Job((7,) * 50, 1), after=8)
    assert landed.tokens == 1
    assert all(record.stamps[7] <= landed.start for record in streams)
    assert all(record.stamps[-1] > landed.start for record in streams)


async def test_a_stream_that_fails_does_not_keep_the_long_prompt_waiting() -> None:
    """It counts as one that runs."""
    jobs = [*requests(2, 9), Job((999_999,), 9)]
    async with asyncio.timeout(30):
        records, landed = await landing_loop(ModelTarget(ScriptedModel()), jobs, Job((7,), 1), after=4)
    assert records[2].error is not None
    assert landed.complete


COUNT = 3


class Answers:
    """Gives each request all of its tokens at once, or an error to constrained ones."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.jobs: list[Job] = []
        self._refuses = refuses

    async def send(self, job: Job, on_token: OnToken | None = None) -> Record:
        """See `Target`."""
        del on_token
        self.jobs.append(job)
        record = Record(time.perf_counter())
        if self._refuses and job.constraint is not None:
            record.error = "no constraints here"
            return record
        record.stamps = [time.perf_counter()] * job.output_len
        record.tokens = job.output_len
        return record


def ignore(_line: str) -> None:
    """No progress is shown."""


def server(target: Answers, *, context: int | None = None) -> Server:
    return Server(target, "here", "answers", 300, context, None)


async def test_free_and_constrained_streams_take_turns() -> None:
    """As many of each, in rounds of which the first is not counted; then new prompts, new schemas, and both."""
    target = Answers()
    result = await run_constrained(ServeBench("S7", output_len=5), server(target), COUNT, ignore)
    compared, new = target.jobs[: 2 * COUNT * (ROUNDS + 1)], target.jobs[2 * COUNT * (ROUNDS + 1) :]
    kinds = [job.constraint is not None for job in compared[::COUNT]]
    assert kinds == [False, True, True, False, False, True, True, False, False, True, True, False]
    assert len({job.constraint for job in compared if job.constraint is not None}) == 1
    assert len({job.prompt for job in compared}) == len(compared)
    assert all(job.sample_seed is not None for job in target.jobs)
    schemas = [job.constraint for job in new if job.constraint is not None]
    assert len(new) == 3 * ROUNDS
    assert len({*schemas, compared[COUNT].constraint}) == len(schemas) + 1 == 2 * ROUNDS + 1
    assert result["completed"] == COUNT * ROUNDS
    assert result["output_tokens"] == 5 * COUNT * ROUNDS
    ratio = result["constrained_over_free"]
    assert 0 < ratio["low"] <= ratio["median"] <= ratio["high"]
    longer = max(result["new_prompt_ttft_ms"], result["new_schema_ttft_ms"])
    assert result["both_over_longer"] == pytest.approx(result["new_both_ttft_ms"] / longer)


async def test_a_round_shorter_than_a_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU time is counted in ticks: there is a ratio by it only where each round took one."""
    for ticks, compared in (([0.0, 0.01] * 2 * ROUNDS, True), ([0.0, 0.0] + [0.0, 0.01] * (2 * ROUNDS - 1), False)):
        monkeypatch.setattr(
            "lmtool.measure.bench.targets.process_cpu_seconds",
            partial(lambda clock, _process: next(clock), iter(ticks)),
        )
        answering = Server(Answers(), "here", "answers", 300, None, process=1)
        result = await run_constrained(ServeBench("S7", output_len=5), answering, COUNT, ignore)
        assert ("constrained_over_free_cpu" in result) is compared


async def test_a_server_without_constraints() -> None:
    """Ends it with that server's error."""
    with pytest.raises(ServerError, match="no constraints here"):
        await run_constrained(ServeBench("S7"), server(Answers(refuses=True)), COUNT, ignore)


async def test_a_context_that_is_too_short() -> None:
    """Is refused before anything is sent."""
    with pytest.raises(UsageError, match="does not fit"):
        await run_constrained(ServeBench("S7"), server(Answers(), context=100), COUNT, ignore)
