"""What a server's memory consists of before, under and after a mixed load: `python -m tests.lab memory [OPTION...]`.

Starts `lmtool serve` with the other options and loads it for `--seconds`: streams over LMTP and as server-sent events,
long prompts of which no two begin alike, constraints of which no two are the same, scores, prompts with logprobs over
HTTP, clients that leave in the middle, and `--connections` that stay open and idle. Prints the resident memory by kind
(`/proc/PID/smaps`) every `--every` seconds, and after the load as long as `--rest` says. The exit status is 0 where the
server never took more than `--most` megabytes, and gave all but `--stays` of what it took back.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random

import aiohttp
from websockets.asyncio.client import connect

from lmtool.core.streams import stream
from lmtool.core.types import Constraint, GenerateRequest, SamplingParams, ScoreRequest
from lmtool.net.http_client import open_client
from lmtool.protocol.lmtp.client import LmtpClient
from tests.lab.frames import server

VOCABULARY, CONTEXT = 1536, 512
"""Of the embedded model."""
WORDS = (
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "and",
    "saw",
    "one",
    "small",
    "red",
    "ship",
    "sail",
    "far",
    "over",
    "blue",
)
ARENA = 64 << 20
"""Bytes to which glibc aligns the arenas of threads."""
LARGE = 24 << 20
"""Bytes from which a mapping is a pool of keys or values rather than objects of Python."""
STACK = 512 << 20
"""Bytes of addresses that a thread which compiles constraints has for its stack."""


def smaps(process: int) -> Counter[str]:
    """Resident bytes by kind of mapping."""
    kinds: Counter[str] = Counter()
    kind, size, start = "", 0, 0
    for line in Path(f"/proc/{process}/smaps").read_text().splitlines():
        if head := re.match(r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \d+\s*(.*)", line):
            start, size, kind = int(head[1], 16), int(head[2], 16) - int(head[1], 16), head[3]
        elif line.startswith("Rss:"):
            kinds[_kind(kind, start, size)] += int(line.split()[1]) << 10
    return kinds


def _kind(name: str, start: int, size: int) -> str:
    if name == "[heap]":
        return "heap"
    if name.startswith("/"):
        return "files"
    if name:
        return "other"
    if start % ARENA == 0:
        return "arenas"
    if abs(size - STACK) < LARGE:
        return "stacks"
    return "large" if size >= LARGE else "objects"


def told(process: int, began: float) -> float:
    """Print a line on a server's memory; its resident megabytes."""
    kinds = smaps(process)
    parts = "  ".join(
        f"{kind} {kinds[kind] / 1e6:6.1f}" for kind in ("large", "heap", "arenas", "objects", "files", "stacks")
    )
    whole = sum(kinds.values()) / 1e6
    sys.stdout.write(f"{time.perf_counter() - began:6.1f} s  {whole:7.1f} MB   {parts}\n")
    sys.stdout.flush()
    return whole


class Load:
    """Everything at once, until it is cancelled."""

    def __init__(self, url: str, seed: int) -> None:
        self._url = url
        self._http = url.replace("ws://", "http://").rstrip("/")
        self._random = Random(seed)
        self._number = 0
        self.ended: Counter[str] = Counter()
        """Requests that ended, by kind."""

    async def run(self, kinds: list[str], each: int, idle: int) -> None:
        """Keep `each` requests of every kind running, and so many connections open and idle."""
        async with contextlib.AsyncExitStack() as stack:
            client = await stack.enter_async_context(LmtpClient(self._url))
            http = await stack.enter_async_context(open_client())
            for _ in range(idle):
                await stack.enter_async_context(connect(self._url, compression=None))
            work = self._kinds(client, http)
            await asyncio.gather(*(self._again(kind, work[kind]) for kind in kinds or work for _ in range(each)))

    def _kinds(self, client: LmtpClient, http: aiohttp.ClientSession) -> dict[str, Callable[[], Awaitable[None]]]:
        return {
            "text": lambda: self._lmtp(client, self._text(30), max_tokens=60),
            "long": lambda: self._lmtp(client, self._ids(460), max_tokens=30),
            "constraint": lambda: self._lmtp(client, self._text(10), max_tokens=60, constraint=self._schema()),
            "score": lambda: self._score(client),
            "chat": lambda: self._chat(http),
            "whole": lambda: self._post(http, "chat/completions", {"messages": self._messages(), "max_tokens": 60}),
            "echo": lambda: self._echo(http),
            "leaving": self._leaving,
        }

    async def _again(self, kind: str, request: Callable[[], Awaitable[None]]) -> None:
        while True:
            await request()
            self.ended[kind] += 1

    def _text(self, words: int) -> str:
        return " ".join(self._random.choices(WORDS, k=words))

    def _ids(self, count: int) -> tuple[int, ...]:
        return tuple(self._random.randrange(3, VOCABULARY) for _ in range(count))

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _schema(self) -> Constraint:
        names = [f"{self._random.choice(WORDS)}_{self._random.randrange(10**6)}" for _ in range(8)]
        members = {name: {"type": self._random.choice(["integer", "boolean"])} for name in names}
        schema = {"type": "object", "properties": members, "required": names[:4], "additionalProperties": False}
        return Constraint("json_schema", json.dumps(schema))

    async def _lmtp(
        self, client: LmtpClient, prompt: str | tuple[int, ...], max_tokens: int, constraint: Constraint | None = None
    ) -> None:
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=constraint is None, temperature=1.0, top_logprobs=5)
        request = GenerateRequest(self._next(), prompt, sampling, constraint=constraint)
        async for output in stream(client, request):
            if output.error is not None:
                self.ended[f"error: {output.error[:80]}"] += 1

    async def _score(self, client: LmtpClient) -> None:
        async for output in stream(client, ScoreRequest(self._next(), self._ids(200), self._ids(200), top_logprobs=5)):
            assert output.error is None, output.error

    def _messages(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": self._text(self._random.randrange(5, 100))}]

    async def _post(self, http: aiohttp.ClientSession, path: str, body: dict[str, object]) -> None:
        async with http.post(f"{self._http}/v1/{path}", json=body) as answer:
            await answer.read()
            if answer.status != 200:
                self.ended[f"status {answer.status}"] += 1

    async def _chat(self, http: aiohttp.ClientSession) -> None:
        await self._post(http, "chat/completions", {"messages": self._messages(), "max_tokens": 60, "stream": True})

    async def _echo(self, http: aiohttp.ClientSession) -> None:
        body = {"prompt": list(self._ids(300)), "max_tokens": 1, "echo": True, "logprobs": 5}
        await self._post(http, "completions", body)

    async def _leaving(self) -> None:
        async with connect(self._url, compression=None) as connection:
            request = {"stream_id": 1, "prompt": list(self._ids(20)), "max_tokens": 300}
            await connection.send(f"GENERATE {json.dumps(request)}")
            for _ in range(3):
                await connection.recv()
            connection.transport.abort()


@contextlib.asynccontextmanager
async def loading(load: Load, options: argparse.Namespace) -> AsyncIterator[None]:
    """Load while the block runs."""
    running = asyncio.create_task(load.run(options.kind, options.each, options.connections))
    try:
        yield
        if running.done():
            await running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def watch(process: int, began: float, seconds: float, every: float) -> list[float]:
    """The resident megabytes in this time, each printed."""
    found, until = [told(process, began)], time.perf_counter() + seconds
    while time.perf_counter() < until:
        await asyncio.sleep(min(every, max(0.1, until - time.perf_counter())))
        found.append(told(process, began))
    return found


async def main(options: argparse.Namespace) -> bool:
    """Measure everything and print it; whether it is as it should be."""
    async with server(options.words) as (url, process):
        async with LmtpClient(url) as client:
            await client.info()
        began = time.perf_counter()
        before = told(process, began)
        load = Load(url, options.seed)
        os.nice(5)
        async with loading(load, options):
            during = await watch(process, began, options.seconds, options.every)
        sys.stdout.write(f"ended: {dict(load.ended)}\n")
        after = await watch(process, began, options.rest, options.every)
    most, stays = max(during + after), after[-1] - before
    sys.stdout.write(f"before {before:.0f} MB, at most {most:.0f}, after {after[-1]:.0f} ({stays:+.0f})\n")
    return most <= options.most and stays <= options.stays


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="of load")
    parser.add_argument("--rest", type=float, default=30.0, help="seconds to watch the server without load")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two looks")
    parser.add_argument("--each", type=int, default=8, help="requests of each kind at a time")
    parser.add_argument("--connections", type=int, default=200, help="idle ones")
    parser.add_argument("--kind", action="append", help="only requests of this kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=float, default=500.0, help="megabytes")
    parser.add_argument("--stays", type=float, default=100.0, help="megabytes")
    given, given.words = parser.parse_known_args()
    sys.exit(not asyncio.run(main(given)))
