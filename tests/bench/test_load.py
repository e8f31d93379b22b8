"""How requests are sent."""

from __future__ import annotations

import asyncio
import time

from lmtool.bench.load import closed_loop, landing_loop, open_loop
from lmtool.bench.record import Record
from lmtool.bench.targets import ModelTarget, OnToken
from lmtool.bench.workload import Job, arrivals
from tests.scripted_model import ScriptedModel


class Watched(ModelTarget):
    """Counts how many requests run at once."""

    def __init__(self) -> None:
        super().__init__(ScriptedModel())
        self.running = self.most = 0
        self.begun: list[float] = []

    async def send(self, job: Job, on_token: OnToken | None = None) -> Record:
        self.running += 1
        self.most = max(self.most, self.running)
        self.begun.append(time.perf_counter())
        record = await super().send(job, on_token)
        self.running -= 1
        return record


def requests(count: int, output_len: int = 5) -> list[Job]:
    return [Job((number,), output_len + number % 3) for number in range(count)]


async def test_closed_loop_runs_so_many_at_once() -> None:
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
    began = time.perf_counter()
    records = await open_loop(target, requests(10, 3), times)
    assert [record.tokens for record in records] == [3 + number % 3 for number in range(10)]
    late = [begun - began - at for begun, at in zip(sorted(target.begun), times, strict=True)]
    assert min(late) >= 0


async def test_the_long_prompt_lands_once_every_stream_runs() -> None:
    """It is sent when each has so many tokens."""
    model = ScriptedModel()
    streams, landed = await landing_loop(ModelTarget(model), requests(5, 20), Job((7,) * 50, 1), after=8)
    assert landed.tokens == 1
    assert all(record.stamps[7] <= landed.began for record in streams)
    assert all(record.stamps[-1] > landed.began for record in streams)


async def test_a_stream_that_fails_does_not_keep_the_long_prompt_waiting() -> None:
    """It counts as one that runs."""
    jobs = [*requests(2, 9), Job((999_999,), 9)]
    async with asyncio.timeout(30):
        records, landed = await landing_loop(ModelTarget(ScriptedModel()), jobs, Job((7,), 1), after=4)
    assert records[2].error is not None
    assert landed.complete
