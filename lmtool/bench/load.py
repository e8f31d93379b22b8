"""How requests are sent: so many at once, or as they arrive."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.bench.record import Record
    from lmtool.bench.targets import Target
    from lmtool.bench.workload import Job


async def closed_loop(target: Target, jobs: Sequence[Job], concurrency: int) -> list[Record]:
    """Send all requests, each as soon as fewer than `concurrency` are running; the records in their order."""
    left = iter(enumerate(jobs))
    records: dict[int, Record] = {}

    async def work() -> None:
        for number, job in left:  # one iterator for all: each takes the next
            records[number] = await target.send(job)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(jobs))):
            group.create_task(work())
    return [records[number] for number in range(len(jobs))]


async def open_loop(target: Target, jobs: Sequence[Job], times: Sequence[float]) -> list[Record]:
    """Send each request at its time, seconds from now, however many are running; the records in their order."""
    start = time.perf_counter()

    async def later(job: Job, at: float) -> Record:
        await asyncio.sleep(start + at - time.perf_counter())
        return await target.send(job)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(later(job, at)) for job, at in zip(jobs, times, strict=True)]
    return [task.result() for task in tasks]


async def landing_loop(target: Target, streams: Sequence[Job], long: Job, after: int) -> tuple[list[Record], Record]:
    """Run the streams, and send the long prompt once each has so many tokens; their records, and its own."""
    ready = asyncio.Event()
    reached = set[int]()

    def on_token(record: Record) -> None:
        if record.error is not None or record.tokens >= after:
            reached.add(id(record))
        if len(reached) == len(streams):
            ready.set()

    async def land() -> Record:
        await ready.wait()
        return await target.send(long)

    async with asyncio.TaskGroup() as group:
        running = [group.create_task(target.send(job, on_token)) for job in streams]
        landed = group.create_task(land())
    return [task.result() for task in running], landed.result()
