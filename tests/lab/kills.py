"""Streams over a balancer, one of whose two workers is killed every second, against the same streams undisturbed.

Run it as `python -m tests.lab kills [STREAMS]`.

Each worker is a process that serves at a Unix socket of its own. SIGKILL ends it, and another one is started there at
once. So that this takes less than the second between two kills, each is a fork of one process that has imported what a
server needs, and has computed nothing. Every stream must have the ids, logprobs, alternatives, texts and ending of the
run that nobody disturbs, to the bit.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from lmtool.core.interfaces import TokenModel
from lmtool.core.types import GenerateRequest, ScoreRequest
from lmtool.gateway.balance.balancer import Balancer
from tests.lab.resuming import KINDS, STORIES, Outcome, Trial, load

START_SECONDS = 120.0
"""How long the first workers may take."""
CONCURRENT = 6
"""Streams at a time."""
_FORK = "--fork"


def longer(request: GenerateRequest | ScoreRequest, tokens: int) -> GenerateRequest | ScoreRequest:
    """The request with room for this many tokens, so that kills fall into its stream."""
    if isinstance(request, ScoreRequest):
        return replace(request, scored=tuple(300 + number % 100 for number in range(tokens)))
    return replace(request, sampling=replace(request.sampling, max_tokens=tokens))


def long_kinds(tokens: int) -> dict[str, GenerateRequest | ScoreRequest]:
    """All kinds of streams, longer."""
    return {name: longer(request, tokens) for name, request in KINDS.items()}


@dataclass
class Workers:
    """Processes of servers, each at a socket, that come back when they are killed."""

    folder: Path
    count: int
    kills: int = 0
    _pids: dict[int, int] = field(default_factory=dict)
    """By number."""
    _forker: asyncio.subprocess.Process | None = None

    def endpoint(self, number: int) -> str:
        """Where a worker is reached."""
        return f"unix:{self.folder / str(number)}"

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Workers]:
        """Start all workers; at the end all processes are ended."""
        pipe = asyncio.subprocess.PIPE
        words = (sys.executable, "-m", "tests.lab.kills", _FORK, str(self.folder))
        self._forker = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe)
        try:
            for number in range(self.count):
                await self._start(number)
            yield self
        finally:
            for pid in self._pids.values():
                os.kill(pid, signal.SIGKILL)
            self._forker.kill()
            await self._forker.wait()

    async def _start(self, number: int) -> None:
        assert self._forker is not None
        assert self._forker.stdin is not None
        assert self._forker.stdout is not None
        self._forker.stdin.write(f"{number}\n".encode())
        async with asyncio.timeout(START_SECONDS):
            self._pids[number] = int(await self._forker.stdout.readline())

    async def kill(self, number: int) -> None:
        """Kill a worker, and start the next one in its place."""
        pid = self._pids.pop(number)
        os.kill(pid, signal.SIGKILL)
        self.kills += 1
        async with asyncio.timeout(START_SECONDS):
            while psutil.pid_exists(pid):  # it holds its socket until its memory is given back
                await asyncio.sleep(0.005)
        await self._start(number)


def fork_workers(folder: Path) -> None:
    """Fork a worker for each number on stdin, and print its pid. Ends when stdin does."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os.dup2(os.open(os.devnull, os.O_RDWR), 0)
            os.dup2(2, 1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            asyncio.run(serve(folder / line.strip()))
            return
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


async def serve(socket: Path) -> None:
    """Serve the stories model at a Unix socket, until this process is killed."""
    from lmtool.inference.engine.config import EngineConfig
    from lmtool.serving.config import ListenConfig, ModelsConfig, ServiceConfig
    from lmtool.serving.listening import bind
    from lmtool.serving.service import Service

    engine = EngineConfig(device="cpu", dtype="float32", threads=1)
    service = Service(ServiceConfig(ModelsConfig(str(STORIES)), engine))
    service.listen(bind(ListenConfig(unix=str(socket))))
    await service.ready(lambda _progress: None)
    await service.ended()


async def killing(workers: Workers, balancer: Balancer, seconds: float) -> None:
    """Kill one worker after another, each as long after the one before, and after it was up."""
    for number in itertools.cycle(range(workers.count)):
        async with asyncio.timeout(START_SECONDS):
            while f"worker {number + 1} " not in "".join(f"{name} " for name in balancer.up):
                await asyncio.sleep(0.02)
        await asyncio.sleep(seconds)
        await workers.kill(number)


async def run(
    model: TokenModel, streams: int, *, kills: int = 0, tokens: int = 300, seconds: float = 1.0
) -> tuple[Outcome, int]:
    """Streams of all kinds through the balancer: so many at least, and until so many workers were killed; the kills."""
    outcome = Outcome()
    trial = Trial(model, outcome, long_kinds(tokens))
    kinds = itertools.cycle(trial.kinds)

    def enough(workers: Workers) -> bool:
        return sum(outcome.streams.values()) >= streams and workers.kills >= kills

    async def one(balancer: Balancer, workers: Workers, killer: asyncio.Task[None]) -> None:
        while not (enough(workers) or outcome.differences or killer.done()):
            await trial.compare(next(kinds), balancer)

    with tempfile.TemporaryDirectory() as folder:
        async with Workers(Path(folder), 2).running() as workers:
            balancer = Balancer([workers.endpoint(number) for number in range(2)], check_seconds=0.05)
            balancer.start()
            async with asyncio.timeout(START_SECONDS):
                while len(balancer.up) < workers.count:
                    await asyncio.sleep(0.05)
            killer = asyncio.create_task(killing(workers, balancer, seconds))
            try:
                await asyncio.gather(*(one(balancer, workers, killer) for _ in range(CONCURRENT)))
            finally:
                killer.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await killer
                await balancer.close()
            outcome.repeated = balancer.resumed
            return outcome, workers.kills


def main(streams: str = "200") -> int:
    """Run, and tell; the exit status."""
    if streams == _FORK:
        fork_workers(Path(sys.argv[2]))
        return 0
    model, began = load(), time.perf_counter()
    outcome, kills = asyncio.run(run(model, int(streams), kills=30))
    model.close()  # type: ignore[attr-defined]  # a LoadedModel
    took = time.perf_counter() - began
    equal = sum(outcome.streams.values())
    say = sys.stdout.write
    say(f"{kills} workers killed, {outcome.repeated} streams gone on with, {equal} streams equal, {took:.1f} s\n")
    for name, number in sorted(outcome.streams.items()):
        say(f"  {name:<24}{number:>6}\n")
    for difference in outcome.differences:
        say(f"DIFFERENT {difference}\n")
    return 1 if outcome.differences else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
