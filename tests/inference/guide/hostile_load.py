"""Hostile constraints against a running server: `python -m tests.inference.guide.hostile_load`.

Start `lmtool serve` first; the server's address may follow, then how many are sent at once. Says for each constraint
how it ended and after how long, and at the end the inter-token latency of plain streams without and with them.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from dataclasses import dataclass, field

from lmtool.core.errors import ConstraintError
from lmtool.core.streams import stream
from lmtool.core.types import GenerateRequest, SamplingParams
from lmtool.protocol.lmtp.client import LmtpClient
from tests.inference.guide.hostile import CASES

STREAMS = 4
QUIET_SECONDS = 10.0
STEPS = 64
ALONE = "alone"
"""The word for the process that sends them."""
LIMIT = 10.0
"""Seconds within which each must be refused, or answer."""


@dataclass
class Beside:
    """Plain streams that go on and on, and the times between their tokens."""

    url: str
    gaps: list[float] = field(default_factory=list)
    """Seconds."""

    async def run(self) -> None:
        """Stream until cancelled."""
        async with LmtpClient(self.url) as client:
            await asyncio.gather(*(self._endless(client, number) for number in range(STREAMS)))

    async def _endless(self, client: LmtpClient, number: int) -> None:
        sampling = SamplingParams(max_tokens=200, ignore_eos=True, temperature=1.0)
        while True:
            last = None
            async for output in stream(client, GenerateRequest(f"plain {number}", "Once upon a time", sampling)):
                if output.error is not None:
                    raise RuntimeError(output.error)
                now = time.perf_counter()
                if last is not None:
                    self.gaps.append(now - last)
                last = now

    def take(self) -> list[float]:
        """Sorted gaps since the last call."""
        taken, self.gaps = sorted(self.gaps), []
        return taken


@dataclass(frozen=True)
class Outcome:
    """How one constraint ended."""

    name: str
    seconds: float
    told: str


async def ask(client: LmtpClient, name: str) -> Outcome:
    """Send one, or have it refused before it is sent."""
    began = time.perf_counter()
    try:
        held = CASES[name]()
    except ConstraintError as error:
        return Outcome(name, time.perf_counter() - began, f"refused at a glance: {error.message}")
    sampling = SamplingParams(max_tokens=STEPS, temperature=1.0, seed=1)
    last = None
    async for output in stream(client, GenerateRequest(name, "Say it:", sampling, text=True, constraint=held)):
        last = output
    assert last is not None
    return Outcome(name, time.perf_counter() - began, last.error or f"followed, ended with {last.finish_reason}")


async def attack(url: str, at_once: int) -> list[Outcome]:
    """Send all of them, so many at once."""
    room = asyncio.Semaphore(at_once)

    async def one(client: LmtpClient, name: str) -> Outcome:
        async with room:
            return await ask(client, name)

    async with LmtpClient(url) as client:
        return await asyncio.gather(*(one(client, name) for name in CASES))


async def main(url: str, at_once: int) -> int:
    """Print everything; how many took longer than they may."""
    beside = Beside(url)
    running = asyncio.create_task(beside.run())
    await asyncio.wait([running], timeout=1.0)
    beside.take()
    await asyncio.wait([running], timeout=QUIET_SECONDS)
    if running.done():
        await running
    quiet = beside.take()
    words = (sys.executable, "-m", "tests.inference.guide.hostile_load", url, str(at_once), ALONE)
    attacking = await asyncio.create_subprocess_exec(*words)  # what it takes to make them must not disturb the watch
    late = await attacking.wait()
    loud = beside.take()
    running.cancel()
    for name, gaps in (("without", quiet), ("with", loud)):
        p50, p99 = (1000 * gaps[int(len(gaps) * part)] for part in (0.5, 0.99))
        sys.stdout.write(
            f"{name:8} ITL p50 {p50:.1f} ms, p99 {p99:.1f} ms, longest {1000 * gaps[-1]:.0f} ms ({len(gaps)} tokens)\n"
        )
    return late


async def report(url: str, at_once: int) -> int:
    """Send all, and print how each ended; how many took longer than they may."""
    os.nice(19)  # as if it were another machine: building half a megabyte of schema takes a core for a while
    began = time.perf_counter()
    outcomes = await attack(url, at_once)
    seconds = time.perf_counter() - began
    for outcome in sorted(outcomes, key=lambda outcome: outcome.seconds):
        sys.stdout.write(f"{outcome.seconds:7.2f} s  {outcome.name}: {outcome.told[:90]}\n")
    late = sum(outcome.seconds > LIMIT for outcome in outcomes)
    sys.stdout.write(
        f"{len(outcomes)} constraints, {at_once} at once, in {seconds:.1f} s; {late} took over {LIMIT:g} s\n"
    )
    return late


if __name__ == "__main__":
    words = sys.argv[1:]
    address, number = (words[0] if words else "ws://127.0.0.1:8080/"), (int(words[1]) if len(words) > 1 else 8)
    sys.exit(asyncio.run((report if ALONE in words else main)(address, number)))
