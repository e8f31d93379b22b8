"""Streams whose connections are cut at random, against the same streams uncut.

Run it as `python -m tests.lab resuming [CUTS]`.

A proxy stands before a real server and cuts each connection after a random number of bytes, in either direction.
Every stream must have the ids, logprobs, alternatives, texts and ending of the run that nobody cut, to the bit.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from lmtool.core import constraint
from lmtool.core.interfaces import TokenModel
from lmtool.core.resuming import ResumeOptions, Resuming
from lmtool.core.streams import stream
from lmtool.core.types import GenerateRequest, SamplingParams, ScoreRequest, TokenOutput
from lmtool.inference.engine.config import EngineConfig
from lmtool.protocol.lmtp.client import LmtpClient
from lmtool.serving.composition import Loader
from tests.protocol.lmtp.harness import serving

STORIES = Path(__file__).parent.parent / "data/stories260K"
OPTIONS = ResumeOptions(retries=1000, backoff=0.001, longest_pause=0.02)
"""A SCORE comes whole or not at all, so that dozens of cuts in a row may bring nothing of it."""
PATIENCE = 120.0
"""Seconds that one stream may take, with all that is done to it."""
MOST_BYTES = 24_000
"""Most bytes of one direction before a cut: about what three streams take, whose tokens may come in one frame."""

BASE = SamplingParams(max_tokens=40, top_logprobs=2, ignore_eos=True)
HOT = replace(BASE, temperature=1.4, seed=11)
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}, "n": {"enum": [1, 22, 333]}},
          "required": ["name", "n"], "additionalProperties": False}  # fmt: skip
KINDS: dict[str, GenerateRequest | ScoreRequest] = {
    "greedy": GenerateRequest("s", (1, 403, 407), BASE),
    "greedy text": GenerateRequest("s", "Once upon", BASE, text=True),
    "seeded": GenerateRequest("s", "Once upon", replace(HOT, top_p=0.95), text=True),
    "unseeded": GenerateRequest("s", (1, 403, 407), replace(HOT, seed=None), resumable=True),
    "constrained": GenerateRequest(
        "s", "{", replace(HOT, ignore_eos=False, max_tokens=80), text=True, constraint=constraint.json_schema(SCHEMA)
    ),
    "constrained, unseeded": GenerateRequest(
        "s", (1, 403), replace(HOT, seed=None), constraint=constraint.regex("([a-z]{1,5} ){9}"), resumable=True
    ),
    "penalties": GenerateRequest(
        "s", (1, 403), replace(HOT, repetition_penalty=1.2, presence_penalty=0.7, frequency_penalty=0.3)
    ),
    "stop strings": GenerateRequest("s", "Lily", replace(HOT, seed=3, stop=("qqq", ". The", "zebra")), text=True),
    "stop ids": GenerateRequest("s", (1, 403), replace(HOT, min_tokens=9, stop_token_ids=tuple(range(300, 320)))),
    "bytes": GenerateRequest("s", (1, 403), replace(HOT, logit_bias=dict.fromkeys(range(3, 259), 20.0)), text=True),
    "score": ScoreRequest("s", (1, 403), tuple(range(300, 360)), top_logprobs=2),
}


@dataclass(frozen=True)
class Cut:
    """What happens to one connection."""

    after: int
    """Bytes of one direction that are passed on before."""
    answers: bool = True
    """True if these are the server's."""


def random_cuts(random: Random) -> Iterator[Cut]:
    """A cut for each connection: most while answers come, some within a request."""
    while True:
        answers = random.random() < 0.8
        after = random.randrange(MOST_BYTES if answers else MOST_BYTES // 4)
        yield Cut(after, answers)


@dataclass
class CuttingProxy:
    """Passes TCP connections on, each up to its cut; those for which there is none are not cut."""

    target: int
    """The server's port."""
    planned: Iterator[Cut | None]
    port: int = 0
    cuts: int = 0
    """Connections that were cut."""
    refuses: bool = False
    """True if a new connection is closed at once."""
    _pipes: set[asyncio.Task[None]] = field(default_factory=set)
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)
    """Of the connections that are open, to clients."""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[CuttingProxy]:
        """Listen on a free port."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in self._pipes:
                task.cancel()
            await asyncio.gather(*self._pipes, return_exceptions=True)

    def cut_now(self) -> None:
        """Cut every connection that is open."""
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuses:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._pipes.add(task)
        task.add_done_callback(self._pipes.discard)
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.target)
        writers = (writer, up_writer)
        self._writers.add(writer)
        cut = next(self.planned, None)
        asked, answered = (None, cut) if cut is None or cut.answers else (cut, None)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pass(reader, up_writer, asked, writers))
                both.create_task(self._pass(up_reader, writer, answered, writers))
        finally:
            self._writers.discard(writer)
            for one in writers:
                one.transport.abort()

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        cut: Cut | None,
        writers: tuple[asyncio.StreamWriter, ...],
    ) -> None:
        """Pass bytes on, up to the cut; without one, all."""
        left = sys.maxsize if cut is None else cut.after
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data[:left])
                await writer.drain()
                left -= len(data)
                if cut is not None and left <= 0:
                    self.cuts += 1
                    break
        for one in writers:
            one.transport.abort()


@dataclass
class Outcome:
    """What a run has shown."""

    streams: Counter[str] = field(default_factory=Counter)
    """By kind, those that ended as they should."""
    repeated: int = 0
    """Repetitions of streams."""
    differences: list[str] = field(default_factory=list)


def facts(outputs: list[TokenOutput], *, usage: bool) -> list[TokenOutput]:
    """What must be the same: all but the number of cached tokens and the seed that was told.

    usage: whether the last output has it. A server that has seen no extension on a connection sends none (EXT-3), which
    may be so for a SCORE, that uses none.
    """
    plain = [replace(output, seed=None, usage=None, stopped_by=None) for output in outputs]
    if not usage:
        return plain
    counted = outputs[-1].usage
    assert counted is not None, outputs[-1]
    return [*plain, TokenOutput("", usage=replace(counted, cached_tokens=0))]


async def said(model: TokenModel, request: GenerateRequest | ScoreRequest) -> list[TokenOutput]:
    """All outputs of a stream."""
    async with asyncio.timeout(PATIENCE):
        return [output async for output in stream(model, request)]


class Trial:
    """Streams through what is disturbed, compared with the same streams on the model itself."""

    def __init__(
        self, model: TokenModel, outcome: Outcome, kinds: Mapping[str, GenerateRequest | ScoreRequest] = KINDS
    ) -> None:
        self.kinds = kinds
        self._model = model
        self._outcome = outcome
        self._expected: dict[str, list[TokenOutput]] = {}

    async def compare(self, name: str, through: TokenModel) -> None:
        """One stream of a kind."""
        request = self.kinds[name]
        outputs = await said(through, request)
        if outputs[-1].error is not None:
            self._outcome.differences.append(f"{name}: {outputs[-1].error}")
            return
        if name not in self._expected or outputs[0].seed is not None:
            self._expected[name] = await said(self._model, _seeded(request, outputs[0].seed))
        usage = isinstance(request, GenerateRequest) or outputs[-1].usage is not None
        found, expected = (facts(one, usage=usage) for one in (outputs, self._expected[name]))
        if found == expected:
            self._outcome.streams[name] += 1
        else:
            self._outcome.differences.append(f"{name}: {found} instead of {expected}")


def _seeded(request: GenerateRequest | ScoreRequest, seed: int | None) -> GenerateRequest | ScoreRequest:
    if seed is None or not isinstance(request, GenerateRequest):
        return request
    return replace(request, sampling=replace(request.sampling, seed=seed), resumable=False)


async def run(model: TokenModel, cuts: int, seed: int = 0, clients: int = 4) -> tuple[Outcome, int]:
    """Streams of all kinds, three at a time on each client's connection, until that many connections were cut."""
    outcome = Outcome()
    trial = Trial(model, outcome)

    def count(_reason: object) -> None:
        outcome.repeated += 1

    async def one(proxy: CuttingProxy, number: int) -> None:
        kinds = itertools.cycle(KINDS)
        for _ in range(3 * number):
            next(kinds)
        async with contextlib.AsyncExitStack() as closing:
            client = LmtpClient(f"127.0.0.1:{proxy.port}")
            closing.push_async_callback(client.close)
            while proxy.cuts < cuts and not outcome.differences:
                names = [next(kinds) for _ in range(3)]
                through = Resuming(client, OPTIONS, count)
                await asyncio.gather(*(trial.compare(name, through) for name in names))

    async with serving(model) as served, CuttingProxy(served.port, random_cuts(Random(seed))).running() as proxy:
        await asyncio.gather(*(one(proxy, number) for number in range(clients)))
    return outcome, proxy.cuts


def load() -> TokenModel:
    """The stories model with compiled kernels."""
    return Loader(EngineConfig(device="cpu", dtype="float32", threads=1)).load(str(STORIES), lambda _progress: None)


def main(cuts: str = "1000") -> int:
    """Run, and tell; the exit status."""
    model, began = load(), time.perf_counter()
    outcome, made = asyncio.run(run(model, int(cuts)))
    model.close()  # type: ignore[attr-defined]  # a LoadedModel
    took = time.perf_counter() - began
    streams = sum(outcome.streams.values())
    say = sys.stdout.write
    say(f"{made} connections cut, {outcome.repeated} streams begun again, {streams} streams equal, {took:.1f} s\n")
    for name, number in sorted(outcome.streams.items()):
        say(f"  {name:<24}{number:>6}\n")
    for difference in outcome.differences:
        say(f"DIFFERENT {difference}\n")
    return 1 if outcome.differences else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
