"""Large requests at a server, and how others fare beside them: `python -m tests.lab frames [MODEL] [OPTION...]`.

Starts `lmtool serve MODEL OPTION...` and measures it: the gaps between the tokens of 16 greedy streams without and
beside 20 large requests a second (`tests/large_frames.py`: refused, or without a step of the model), and whether their
ids and logprobs are the same; how long pings take on the idle server without and beside them; what memory stays.
`--only WORD` takes the requests with this word in their name, `--each` goes through them one after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from websockets.asyncio.client import connect

from lmtool.core.streams import stream
from lmtool.core.types import GenerateRequest, SamplingParams
from lmtool.protocol.lmtp.client import LmtpClient
from tests.large_frames import CASES, LMTP

STREAMS = 16
TOKENS = 200
RATE = 20.0
"""Large requests a second."""
AT_ONCE = 32
"""Most of them that wait for an answer at a time."""
PING_SECONDS = 0.005
BEGUN = "begun"
"""What the attacking process says when it begins."""
PROMPTS = ("Once upon a time", "The sun is", "One day a small cat", "My friend said")


@dataclass
class Streams:
    """Greedy or seeded streams that begin anew for ever, what they say, and the times between their tokens."""

    url: str
    seeded: bool = False
    """True if tokens are drawn, by each stream's own seed."""
    model: str | None = None
    """The one to name where several are served."""
    gaps: list[float] = field(default_factory=list)
    """Seconds."""
    said: dict[int, set[tuple[object, ...]]] = field(default_factory=dict)
    """By stream, its answers as ids with their logprobs; one each where nothing disturbs them."""

    async def run(self) -> None:
        """Stream until cancelled."""
        async with LmtpClient(self.url) as client:
            await asyncio.gather(*(self._endless(client, number) for number in range(STREAMS)))

    async def _endless(self, client: LmtpClient, number: int) -> None:
        drawn = {"temperature": 1.0, "seed": number} if self.seeded else {}
        sampling = SamplingParams(max_tokens=TOKENS, ignore_eos=True, **drawn)
        prompt = f"{PROMPTS[number % len(PROMPTS)]} {number}"
        while True:
            last, answer = None, []
            async for output in stream(client, GenerateRequest(f"greedy {number}", prompt, sampling, self.model)):
                if output.error is not None:
                    raise RuntimeError(output.error)
                now = time.perf_counter()
                if last is not None:
                    self.gaps.append(now - last)
                last = now
                answer.append((output.token, output.logprob, output.top_logprobs))
            self.said.setdefault(number, set()).add(tuple(answer))

    def take(self) -> list[float]:
        """Sorted gaps since the last call."""
        taken, self.gaps = sorted(self.gaps), []
        return taken


@contextlib.asynccontextmanager
async def server(words: list[str]) -> AsyncIterator[tuple[str, int]]:
    """The URL and the process id of a server of its own."""
    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder) / "ready"
        command = [sys.executable, "-m", "lmtool", "serve", *words, "--port", "0", "--ready-file", str(ready)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            while not ready.is_file():
                if process.poll() is not None:
                    raise RuntimeError(f"the server ended with status {process.returncode}")
                await asyncio.sleep(0.1)
            yield ready.read_text().strip(), process.pid
        finally:
            process.terminate()
            process.wait(30)


async def pings(url: str, seconds: float) -> list[float]:
    """How long each ping took, sorted."""
    took = []
    async with connect(url, compression=None) as connection:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            began = time.perf_counter()
            await (await connection.ping())
            took.append(time.perf_counter() - began)
            await asyncio.sleep(PING_SECONDS)
    return sorted(took)


@dataclass
class Watch:
    """Pings from when it begins."""

    url: str
    seconds: float
    pings: asyncio.Task[list[float]] | None = None

    def begin(self) -> None:
        """Begin."""
        self.pings = asyncio.create_task(pings(self.url, self.seconds))


def memory(process: int) -> dict[str, float]:
    """Resident megabytes of a server's own process and of it with its children."""
    found = [process]
    for each in found:
        for task in Path(f"/proc/{each}/task").glob("*/children"):
            found += [int(child) for child in task.read_text().split()]
    sizes = [
        int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{each}/status").read_text())[1]) / 1024  # type: ignore[index]
        for each in found
    ]
    return {"server": sizes[0], "with its helpers": sum(sizes)}


class Attack:
    """Sends large requests at a rate."""

    def __init__(self, url: str, names: list[str]) -> None:
        self._url = url
        self._names = names
        self._made = {name: CASES[name].make().encode() for name in names}
        self.answers: dict[str, tuple[str, list[float]]] = {}
        """By name: how the last one was answered, and the seconds that each took."""

    async def run(self, seconds: float, rate: float) -> None:
        """Send in turn; at most `AT_ONCE` are on their way."""
        began, room, tasks = time.perf_counter(), asyncio.Semaphore(AT_ONCE), []
        number = 0
        while (now := time.perf_counter() - began) < seconds:
            await asyncio.sleep(max(0.0, number / rate - now))
            await room.acquire()
            tasks.append(asyncio.create_task(self._one(self._names[number % len(self._names)], room)))
            number += 1
        await asyncio.gather(*tasks)

    async def _one(self, name: str, room: asyncio.Semaphore) -> None:
        began = time.perf_counter()
        try:
            send = self._frame if CASES[name].wire == LMTP else self._post
            answer = await send(name)
        finally:
            room.release()
        self.answers.setdefault(name, ("", []))[1].append(time.perf_counter() - began)
        self.answers[name] = (answer, self.answers[name][1])

    async def _frame(self, name: str) -> str:
        async with connect(
            self._url, compression=None, max_size=None, open_timeout=None, ping_interval=None
        ) as connection:
            await connection.send(self._made[name], text=True)
            return str(await connection.recv())

    async def _post(self, name: str) -> str:
        where = urlsplit(self._url)
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        body = self._made[name]
        head = f"POST {CASES[name].wire} HTTP/1.1\r\nHost: {where.netloc}\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        answer = await reader.read()
        writer.close()
        return answer.partition(b" ")[2].decode()


async def attack(url: str, names: list[str], seconds: float, rate: float, *, shown: bool) -> None:
    """Send, and print how it went."""
    os.nice(19)  # as if it were another machine
    attacking = Attack(url, names)
    sys.stdout.write(f"{BEGUN}\n")
    sys.stdout.flush()
    began = time.perf_counter()
    await attacking.run(seconds, rate)
    sent = sum(len(took) for _, took in attacking.answers.values())
    took = time.perf_counter() - began
    sys.stdout.write(f"  {sent} large requests in {took:.1f} s, {sent / took:.1f} a second\n")
    for name, (answer, times) in sorted(attacking.answers.items()) if shown else ():
        line = " ".join(answer.split("\r\n\r\n")[-1].split())
        sys.stdout.write(f"  {max(times):6.2f} s  {name}: {line[:150]}\n")


async def beside(
    url: str, options: argparse.Namespace, names: list[str], begun: Callable[[], object] | None = None
) -> None:
    """Let another process attack until it ends. begun: called when it has made what it sends."""
    words = [sys.executable, "-m", "tests.lab.frames", "--attack", url, "--seconds", str(options.seconds)]
    words += ["--rate", str(options.rate), *(word for name in names for word in ("--name", name))]
    words += ["--answers"] if options.answers else []
    process = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE)
    assert process.stdout is not None
    async for line in process.stdout:
        if line.decode().strip() != BEGUN:
            sys.stdout.write(line.decode())
        elif begun is not None:
            begun()
    if await process.wait():
        raise RuntimeError("the attack failed")


def told(name: str, times: list[float]) -> str:
    """A line on these sorted times."""
    p50, p99 = (1000 * times[int(len(times) * part)] for part in (0.5, 0.99))
    return f"{name:16} p50 {p50:6.2f} ms   p99 {p99:6.2f} ms   longest {1000 * times[-1]:6.1f} ms   ({len(times)})\n"


async def _streams(url: str, options: argparse.Namespace, names: list[str]) -> None:
    streams = Streams(url)
    running = asyncio.create_task(streams.run())
    await asyncio.wait([running], timeout=3.0)
    streams.take()
    await asyncio.wait([running], timeout=options.seconds)
    quiet = streams.take()
    sys.stdout.write(told("gaps, quiet", quiet))
    await beside(url, options, names, streams.take)
    loud = streams.take()
    await asyncio.wait([running], timeout=1.0)
    if running.done():
        await running
    running.cancel()
    sys.stdout.write(told("gaps, beside", loud))
    ratio = loud[int(len(loud) * 0.99)] / quiet[int(len(quiet) * 0.99)]
    differ = sum(len(said) > 1 for said in streams.said.values())
    sys.stdout.write(f"p99 {ratio:.2f} times the quiet one; {differ} of {STREAMS} streams differ\n")


async def _pings(url: str, options: argparse.Namespace, names: list[str]) -> None:
    sys.stdout.write(told("pings, quiet", await pings(url, options.seconds)))
    for part in [[name] for name in names] if options.each else [names]:
        watch = Watch(url, options.seconds)
        await beside(url, options, part, watch.begin)
        assert watch.pings is not None
        sys.stdout.write(told("pings, beside", await watch.pings))


async def main(options: argparse.Namespace) -> None:
    """Measure everything and print it."""
    names = [name for name in CASES if not options.only or any(word in name for word in options.only)]
    async with server(options.words) as (url, process):
        if not options.each:
            warm = Streams(url)
            await asyncio.wait([running := asyncio.create_task(warm.run())], timeout=5.0)
            running.cancel()
        await pings(url, 0.5)
        before = memory(process)
        if not options.each:
            await _streams(url, options, names)
        await _pings(url, options, names)
        for seconds in (1, 4, 5):
            await asyncio.sleep(seconds)
            after = memory(process)
            for name, size in after.items():
                told = f"{before[name]:.0f} MB before, {size:.0f} after ({size / before[name] - 1:+.1%})"
                sys.stdout.write(f"memory of the {name}: {told}\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each part")
    parser.add_argument("--rate", type=float, default=RATE, help="large requests a second")
    parser.add_argument("--only", action="append", help="take requests with this in their name")
    parser.add_argument("--each", action="store_true", help="pings beside one kind of request after the other")
    parser.add_argument("--answers", action="store_true", help="print how the requests were answered")
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    parser.add_argument("--name", action="append", help=argparse.SUPPRESS)
    given, given.words = parser.parse_known_args()
    if given.attack:
        asyncio.run(attack(given.attack, given.name, given.seconds, given.rate, shown=given.answers))
    else:
        asyncio.run(main(given))
