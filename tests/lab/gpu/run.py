"""Runs `lab gpu`: section after section, each within its time; after each the file has what was measured."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from lmtool.core.errors import ResourceError
from tests.lab.gpu.marked_tests import run_marked
from tests.lab.gpu.report import GpuReport
from tests.lab.gpu.settings import TESTS
from tests.lab.gpu.worker_process import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from tests.lab.gpu.settings import GpuBench, Section

START_SECONDS = 150.0
"""To import torch and transformers, on a machine that reads them for the first time."""
LEAST_SECONDS = 5.0
"""With less left no section is begun."""


async def run(
    bench: GpuBench, sections: tuple[Section, ...], file: Path | None, note: Callable[[str], None], stop: asyncio.Event
) -> GpuReport:
    """Run the sections; what fails, or takes too long, is recorded and the others go on.

    file: where the report is saved after each section. note: called with each line of progress. stop: ends the run as
    it is. Raises `ResourceError` where there is no such device, before anything is measured.
    """
    report = GpuReport(bench, sections)
    runner = _Runner(report, file, note)
    try:
        await _unless(stop, runner.run(sections))
    finally:
        await runner.end()
        runner.save()
    report.interrupted = stop.is_set()
    return report


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Run `work`, until `stop` is set."""
    running, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
    for task in (running, stopping):
        task.cancel()
    await asyncio.gather(running, stopping, return_exceptions=True)
    if not running.cancelled() and (problem := running.exception()) is not None:
        raise problem


class _Runner:
    """The worker at hand, and the time that is left."""

    def __init__(self, report: GpuReport, file: Path | None, note: Callable[[str], None]) -> None:
        self._report, self._file, self._note = report, file, note
        self._bench = report.bench
        self._began = time.monotonic()
        self._worker: Worker | None = None

    @property
    def _left(self) -> float:
        return self._bench.seconds - (time.monotonic() - self._began)

    async def run(self, sections: tuple[Section, ...]) -> None:
        """All of them, in order."""
        await self._start()
        for section in sections:
            if self._left < LEAST_SECONDS:
                self._report.not_run(section.name, "the time of the whole run was over")
                continue
            if self._report.failed(section.needs):
                self._report.not_run(section.name, f"it needs {section.needs}, which failed")
                continue
            began = time.monotonic()
            limit = min(section.seconds, self._left)
            self._note(f"{section.name}: {section.title} (at most {limit:.0f} s, {self._left:.0f} s left)")
            answer = await (self._tests(limit) if section.name == TESTS else self._section(section, limit))
            self._report.ended(section.name, answer, time.monotonic() - began)
            self._note(f"{section.name}: {self._report.line(section.name)}")
            self.save()

    async def _start(self) -> None:
        worker = self._worker = Worker(self._bench)
        answer = await worker.start(min(START_SECONDS, self._left))
        if "ready" not in answer:
            await self.end()
            error = str(answer["failed"]["error"]).removeprefix("ResourceError: ")
            said = answer["failed"].get("output", [])[-3:]  # of a process that ended by itself
            raise ResourceError(
                f"nothing can be measured: {error}",
                *(said or ("see what torch finds:     lmtool doctor", "try the command itself:   --device cpu")),
            )
        self._report.machine = answer["ready"]

    async def _tests(self, limit: float) -> dict[str, Any]:
        self._report.part(TESTS, await run_marked(limit))
        return {"done": limit}

    async def _section(self, section: Section, limit: float) -> dict[str, Any]:
        if section.alone and self._report.began_in_worker:
            await self.end()
        if self._worker is None:
            try:
                await self._start()
            except ResourceError as problem:
                return {"failed": {"error": problem.message, "output": list(problem.hints)}}
        assert self._worker is not None
        self._report.began_in_worker = True
        answer = await self._worker.run(section.name, limit, lambda part: self._part(section.name, part))
        if "done" not in answer:
            await self.end()
        return answer

    def _part(self, name: str, part: dict[str, Any]) -> None:
        self._report.part(name, part)
        self.save()

    async def end(self) -> None:
        """End the worker; the next section gets another one."""
        worker, self._worker = self._worker, None
        self._report.began_in_worker = False
        if worker is not None:
            await worker.end()

    def save(self) -> None:
        """Write what is known. Raises `FileError`."""
        if self._file is not None:
            self._report.save(self._file)
