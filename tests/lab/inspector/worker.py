"""A synthetic load, and the inspector under it: `python -m tests.lab inspector.worker` in a terminal.

Arguments: the descriptor for results, then `live STREAMS RATE SEED` or `file PATH`. It writes a line once the screen is
up (for a file: once it is loaded), and another one with what was measured when it quits.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import os
import random
import sys
import time
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from lmtool.measure.bench.peers.worker import peak_memory
from lmtool.terminal.tui.sources.event_pipeline import EventPipeline
from lmtool.terminal.tui.sources.source import Source
from lmtool.trace import writer
from lmtool.trace.codec import Header
from lmtool.trace.events import Frame, JsonText, Open, Vocab

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lmtool.terminal.tui.event_store import EventStore, TraceFile
    from lmtool.terminal.tui.sources.event_pipeline import Feed
    from lmtool.trace.events import Event

VOCABULARY = 5000
ALTERNATIVES = 5
DISTINCT_FRAMES = 256
"""After these the tokens repeat; only their times differ."""
TICK = 0.004
"""Seconds between two deliveries, as on a busy network."""


@dataclass(frozen=True, slots=True)
class Load:
    """A steady load: every frame has one token of each stream, with five alternatives."""

    streams: int = 64
    rate: float = 50_000.0
    """Tokens a second, over all streams."""
    seed: int = 0

    def preamble(self) -> Iterator[Event]:
        """A connection, its requests, and the vocabulary."""
        yield Open(0.0, 1, {"peer": "client", "agent": "lab inspect"})
        yield Vocab(0.0, 0, {token: _word(token) for token in range(VOCABULARY)})
        for stream in range(1, self.streams + 1):
            payload = {"model": "load", "prompt": [stream, 2, 3], "stream_id": stream, "max_tokens": 1_000_000}
            yield Frame(0.0, ">", 1, JsonText("GENERATE", payload, "msgspec"))

    def payloads(self) -> list[JsonText]:
        """The contents of the frames."""
        chance = random.Random(self.seed)
        return [
            JsonText("TOKEN", [_entry(chance, stream) for stream in range(1, self.streams + 1)], "msgspec")
            for _ in range(DISTINCT_FRAMES)
        ]

    @property
    def frames_per_second(self) -> float:
        """Frames a second."""
        return self.rate / self.streams


def _word(token: int) -> str:
    kinds = (" the", " w", "日", "\n", "é", " longer", ".", "🙂")
    return kinds[token % len(kinds)] + (str(token) if token % 3 == 0 else "")


def _entry(chance: random.Random, stream: int) -> dict[str, Any]:
    tokens = chance.sample(range(VOCABULARY), ALTERNATIVES)
    left, logprobs = 1.0, []
    for _ in tokens:
        share = left * chance.uniform(0.2, 0.9)
        left -= share
        logprobs.append(math.log(share))
    chosen = 0 if chance.random() < 0.7 else chance.randrange(ALTERNATIVES)
    top = {str(token): logprob for token, logprob in zip(tokens, logprobs, strict=True)}
    return {
        "token": tokens[chosen], "stream_id": stream, "logprob": logprobs[chosen], "finish_reason": None,
        "top_logprobs": top,
    }  # fmt: skip


class LoadSource(Source):
    """A live source that plays a load until it is closed."""

    title = "load"
    no_requests = "a synthetic load takes no requests"

    def __init__(self, load: Load) -> None:
        """Prepare the frames."""
        super().__init__(EventPipeline(print, at="client"))
        self._load = load
        self._payloads = load.payloads()

    async def run(self, feed: Feed) -> None:
        """Feed frames by the clock; those that are late because the loop was busy are fed all the same."""
        feed(list(self._load.preamble()))
        start, fed, per_second = time.monotonic(), 0, self._load.frames_per_second
        while True:
            await asyncio.sleep(TICK)
            now = time.monotonic() - start
            due = int(now * per_second)
            feed([Frame(now, "<", 1, self._payloads[number % DISTINCT_FRAMES]) for number in range(fed, due)])
            fed = due


def write_trace(path: Path, load: Load, tokens: int) -> None:
    """Write a trace of this load with at least `tokens` tokens. Raises `FileError`."""
    header = Header(by="lab inspect", json="msgspec", model={"vocab_size": VOCABULARY})
    payloads = load.payloads()
    frames = (
        Frame(number / load.frames_per_second, "<", 1, payloads[number % DISTINCT_FRAMES])
        for number in range(-(-tokens // load.streams))
    )
    writer.write_trace(path, header, chain(load.preamble(), frames), overwrite=None)


async def measure(words: Sequence[str]) -> None:
    """Run the inspector until it quits; write when it was ready and when each key's action was finished."""
    from lmtool.terminal.tui.app import InspectorApp
    from lmtool.terminal.tui.event_store import EventStore, TraceFile
    from lmtool.terminal.tui.options import InspectorOptions

    class Measured(InspectorApp):
        """Records when each key's action was finished, and the CPU time by then."""

        CSS_PATH = str(Path(inspect.getfile(InspectorApp)).with_name("app.tcss"))
        done: list[tuple[float, float]]
        up: asyncio.Event

        def on_ready(self) -> None:
            self.up.set()

        def press(self, key: str, character: str | None) -> bool:
            result = super().press(key, character)
            self.done.append((time.monotonic(), time.process_time()))
            return result

    results, kind, *rest = words
    with os.fdopen(int(results), "w", buffering=1) as out:
        if kind == "live":
            source = LoadSource(Load(int(rest[0]), float(rest[1]), int(rest[2])))
            lines: EventStore | TraceFile = EventStore()
            app = Measured(lines, source, InspectorOptions())
        else:
            lines = TraceFile(Path(rest[0]))
            app = Measured(lines, None, InspectorOptions(speed=float("inf")))
        app.done, app.up = [], asyncio.Event()
        start = time.monotonic()
        readiness = asyncio.create_task(_report_ready(lines, out, start, app.up))
        await app.run_async()
        readiness.cancel()
        if app.failure is not None:
            raise app.failure
        result = {
            "done": app.done,
            "tokens": len(lines.state.tokens),
            "seconds": time.monotonic() - start,
            "rss_bytes": peak_memory(),
        }
        out.write(json.dumps(result) + "\n")


async def _report_ready(lines: EventStore | TraceFile, out: TextIO, start: float, up: asyncio.Event) -> None:
    """Write a line when there are tokens, or the whole file is loaded, and keys are accepted."""
    from lmtool.terminal.tui.event_store import TraceFile

    file = lines if isinstance(lines, TraceFile) else None
    while not len(lines.state.tokens) or (file and not file.is_loaded):
        await asyncio.sleep(0.005)
    seconds, cpu = time.monotonic() - start, time.process_time()
    await up.wait()
    out.write(json.dumps({"ready_s": seconds, "cpu_s": cpu, "tokens": len(lines.state.tokens)}) + "\n")


if __name__ == "__main__":
    asyncio.run(measure(sys.argv[1:]))
