"""What branches off a long buffer cost: `python -m tests.lab buffers [FOLDER]` prints a table.

Without a folder a Llama of 100 million random weights is made, in a folder that is removed at the end. A server in this
process listens on a free port; each number is of one branch: a prompt of `LENGTH` ids and some new ones, and one token.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from dataclasses import dataclass

import lmtool
from lmtool.api import Model
from lmtool.core.buffer import Buffer
from lmtool.core.types import BufferSlice, Usage
from lmtool.measure.bench.peers.maker_peer import Peer
from lmtool.protocol.lmtp.client import LmtpClient

LENGTH = 2000
"""Ids that all prompts have in common."""
NEW = (1, 16, 64, 256)
"""Ids of a prompt behind them."""


@dataclass
class Cost:
    """Of one request."""

    sent: int
    """Bytes of the frames that the client sent for it."""
    computed: int
    """Ids of the prompt whose keys and values were computed."""
    seconds: float
    """To the token."""


class Branches:
    """Prompts over one connection, and what each costs."""

    def __init__(self, url: str, vocab_size: int) -> None:
        self._sent = 0
        self._ids = random.Random(5)  # the same each time
        self._vocab_size = vocab_size
        self.client = LmtpClient(url, on_frame=self._count)
        self.model = Model(self.client, buffers=self.client)

    def _count(self, direction: str, frame: str) -> None:
        self._sent += len(frame.encode()) if direction == ">" else 0

    def new_ids(self, count: int) -> list[int]:
        """Random ids."""
        return [self._ids.randrange(3, self._vocab_size) for _ in range(count)]

    async def cost(self, prompt: list[int | str | Buffer | BufferSlice]) -> Cost:
        """Continue a prompt by one token."""
        before, began = self._sent, time.perf_counter()
        usage: Usage | None = None
        async for output in self.model.generate(prompt, max_tokens=1, top_logprobs=0):
            usage = output.usage
        assert usage is not None
        return Cost(self._sent - before, usage.prompt_tokens - usage.cached_tokens, time.perf_counter() - began)


async def measure(folder: str, length: int = LENGTH, new: tuple[int, ...] = NEW) -> dict[str, list[Cost]]:
    """The costs of branches of each number of new ids: with ids alone in an empty cache, with ids, with a buffer."""
    async with lmtool.serve(folder, device="cpu", dtype="float32", max_streams=4) as server:
        assert server.info is not None
        branches = Branches(server.url, server.info.vocab_size or 0)
        async with branches.client:
            await branches.model.info()
            await branches.cost(list(branches.new_ids(length)))  # warms up
            cold = [await branches.cost(list(branches.new_ids(length + count))) for count in new]
            beginning = branches.new_ids(length)
            buffer = branches.model.buffer()
            assert await buffer.append(beginning) == length
            await branches.model.prefill(buffer)
            ids = [await branches.cost([*beginning, *branches.new_ids(count)]) for count in new]
            buffered = [await branches.cost([buffer, *branches.new_ids(count)]) for count in new]
    return {"cold": cold, "ids": ids, "buffer": buffered}


def table(costs: dict[str, list[Cost]], new: tuple[int, ...] = NEW) -> str:
    """The costs as a table in Markdown."""
    columns = ("new ids", "sent, ids", "sent, buffer", "computed, nothing cached", "computed, buffer",
               "first token, nothing cached", "first token, buffer")  # fmt: skip
    rows = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for count, cold, ids, own in zip(new, costs["cold"], costs["ids"], costs["buffer"], strict=True):
        facts = (count, f"{ids.sent} B", f"{own.sent} B", cold.computed, own.computed)
        rows.append(f"| {' | '.join(map(str, facts))} | {cold.seconds * 1e3:.0f} ms | {own.seconds * 1e3:.1f} ms |")
    return "\n".join(rows)


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as made:
        folder = sys.argv[1] if len(sys.argv) > 1 else made
        if folder == made:
            Peer({}).make("llama-100m", folder, 0)
        sys.stdout.write(table(asyncio.run(measure(folder))) + "\n")


if __name__ == "__main__":
    main()
