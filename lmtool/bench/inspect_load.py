"""Tokens for the inspector to show: many streams at a steady rate, live or as a trace."""

from __future__ import annotations

import asyncio
import math
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lmtool.trace.events import Frame, Open, Parsed, Vocab
from lmtool.trace.header import Header
from lmtool.trace.writer import TraceWriter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from lmtool.trace.events import Event
    from lmtool.tui.sources.source import Feed

VOCABULARY = 5000
ALTERNATIVES = 5
DIFFERENT = 256
"""Frames after which the tokens come again; only their times differ."""
TICK = 0.004
"""Seconds between two deliveries, as a busy network makes them."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is offered. Every frame brings one token of each stream, with five alternatives."""

    streams: int = 64
    rate: float = 50_000.0
    """Tokens a second, of all streams together."""
    seed: int = 0

    def beginning(self) -> Iterator[Event]:
        """A connection, its requests, and what ids mean."""
        yield Open(0.0, 1, {"peer": "client", "agent": "lmtool bench inspect"})
        yield Vocab(0.0, 0, {token: _word(token) for token in range(VOCABULARY)})
        for stream in range(1, self.streams + 1):
            payload = {"model": "load", "prompt": [stream, 2, 3], "stream_id": stream, "max_tokens": 1_000_000}
            yield Frame(0.0, ">", 1, Parsed("GENERATE", payload, "msgspec"))

    def payloads(self) -> list[Parsed]:
        """What frames hold."""
        chance = random.Random(self.seed)  # noqa: S311 - the same load each time
        return [
            Parsed("TOKEN", [_entry(chance, stream) for stream in range(1, self.streams + 1)], "msgspec")
            for _ in range(DIFFERENT)
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


class LoadSource:
    """A live `Source` that feeds a load until it is closed."""

    live, title, generate, score, recorded = True, "load", None, None, None
    cannot_ask = "a load cannot be asked anything"

    def __init__(self, load: Load) -> None:
        """Prepare the frames."""
        self._load = load
        self._payloads = load.payloads()

    async def run(self, feed: Feed) -> None:
        """Feed as many frames as the clock asks for. What came late because the loop was busy comes all the same."""
        feed(list(self._load.beginning()))
        began, fed, per_second = time.monotonic(), 0, self._load.frames_per_second
        while True:
            await asyncio.sleep(TICK)
            now = time.monotonic() - began
            owed = int(now * per_second)
            feed([Frame(now, "<", 1, self._payloads[number % DIFFERENT]) for number in range(fed, owed)])
            fed = owed

    def cancel(self, label: str) -> None:
        """Nothing can be cancelled."""

    def start_recording(self, path: Path, history: Sequence[Event] = ()) -> None:
        """Nothing is recorded."""

    async def stop_recording(self) -> None:
        """Nothing is recorded."""

    async def close(self) -> None:
        """Nothing is open."""


def write_trace(path: Path, load: Load, tokens: int) -> None:
    """Write a trace of this load with about so many tokens. Raises `FileError` and `OSError`."""
    writer = TraceWriter(path, Header(by="lmtool bench inspect", json="msgspec", model={"vocab_size": VOCABULARY}))
    time_now = 0.0
    try:
        for event in load.beginning():
            writer.write(event)
        payloads = load.payloads()
        for number in range(-(-tokens // load.streams)):
            time_now = number / load.frames_per_second
            writer.write(Frame(time_now, "<", 1, payloads[number % DIFFERENT]))
            if writer.waiting_bytes > 2**22:
                writer.flush()
        writer.close(time_now)
    finally:
        writer.abandon()
