"""One reader at a byte a second among fast ones: whether these get their tokens as evenly as without it."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmtool.core.errors import ServerError
from lmtool.measure.bench.record import percentile
from lmtool.protocol.lmtp.client import LmtpClient
from lmtool.protocol.lmtp.endpoint import SocketEndpoint
from tests.lab.soak.finding import Finding, need_lmtp
from tests.lab.soak.lmtp_client import BareClient
from tests.lab.soak.visits import SMALL_BUFFER

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.lab.soak.connection import Address
    from tests.lab.soak.settings import SoakBench
    from tests.lab.soak.watch import Watch
    from tests.lab.soak.wires import SoakTarget

READERS = 32
ALTERNATIVES = 100
"""`top_logprobs` of the readers: enough bytes to fill what lies between a server and one that does not read."""


async def slow_reader(
    bench: SoakBench,
    address: Address,
    target: SoakTarget,
    watch: Watch,  # as the other scenarios
    note: Callable[[str], None],
) -> Finding:
    """Fast readers alone and beside one that takes a byte a second, in turn: whether their gaps differ."""
    need_lmtp(target, address, READERS)
    readers = Readers(address, target.model, await _longest(address, target))
    seconds = bench.seconds / (3 * bench.rounds)
    note(f"{bench.rounds} rounds of three runs of {seconds:.1f} s, after one that warms up")
    await readers.run(seconds, slow=False)
    quiet, beside = list[tuple[float, float]](), list[float]()
    for number in range(bench.rounds):
        runs = {}
        for name, slow in (("first", False), ("slow", True), ("second", False)):
            runs[name] = await readers.run(seconds, slow=slow)
        quiet.append((runs["first"], runs["second"]))
        beside.append(runs["slow"])
        said = "  ".join(f"{1000 * runs[name]:.1f}" for name in ("first", "slow", "second"))
        note(f"round {number + 1}: p99 gap ms alone, beside the slow one, alone:  {said}")
    finding = Finding(f"{READERS - 1} fast readers and one at 1 byte/s", seconds=bench.seconds)
    differences = [slow - sum(pair) / 2 for slow, pair in zip(beside, quiet, strict=True)]
    median, most = percentile(differences, 50), max(abs(first - second) for first, second in quiet)
    finding.judge(
        "p99 gap beside it longer by, ms, median of rounds",
        f"{1000 * median:.2f}",
        f"at most {1000 * most:.2f}, that of two quiet runs",
        ok=median <= most,
    )
    finding.figures |= {
        "quiet_p99_s": quiet,
        "beside_p99_s": beside,
        "difference_s": median,
        "quiet_difference_s": most,
    }
    return finding


@dataclass
class Readers:
    """Clients that ask for one long stream after the other, each over a connection of its own."""

    address: Address
    model: str
    tokens: int
    """Of each stream."""

    async def run(self, seconds: float, *, slow: bool) -> float:
        """The p99 gap, in seconds, of all but the last reader. slow: whether that one takes a byte a second."""
        clients = [await BareClient.open(self.address) for _ in range(READERS - 1)]
        clients.append(await BareClient.open(self.address, receive_buffer=SMALL_BUFFER if slow else None))
        fast = clients[:-1] if slow else clients
        works = [work for client in fast for work in (client.read(), self._one_after_another(client))]
        if slow:
            works += [clients[-1].drip(), self._every_second(clients[-1])]
        tasks = [asyncio.create_task(work) for work in works]
        try:
            done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            for client in clients:
                client.abort()
            await asyncio.gather(*tasks, return_exceptions=True)
        return _p99_gap(clients[:-1])

    async def _one_after_another(self, client: BareClient) -> None:
        ended: asyncio.Queue[int] = asyncio.Queue()
        client.listen(ended.put_nowait)
        for number in itertools.count():
            await self._ask(client, number)
            await ended.get()

    async def _every_second(self, client: BareClient) -> None:
        """For one that never sees an end; its requests are read until too much of its answers waits."""
        for number in itertools.count():
            await self._ask(client, number)
            await asyncio.sleep(1.0)

    async def _ask(self, client: BareClient, number: int) -> None:
        named = {"model": self.model} if self.model else {}
        sampling = {"max_tokens": self.tokens, "top_logprobs": ALTERNATIVES}
        await client.generate(number, prompt=f"The sun is {number}", **sampling, **named)


def _p99_gap(clients: list[BareClient]) -> float:
    """In seconds. Raises `ServerError` where a stream failed, or there are no gaps."""
    streams = [stream for client in clients for stream in client.streams.values()]
    if errors := [stream.error for stream in streams if stream.error]:
        raise ServerError(f"a fast reader's stream failed: {errors[0]}")
    gaps = [gap for stream in streams for gap in stream.gaps]
    if not gaps:
        raise ServerError("no fast reader got two tokens in a run", "give it more time:  --minutes N")
    return percentile(gaps, 99)


async def _longest(address: Address, target: SoakTarget) -> int:
    """Tokens of a stream that fills the context."""
    place = SocketEndpoint(address.lmtp, loopback=True, authorization=address.authorization)
    async with LmtpClient(place) as client:
        info = await client.info(target.model or None)
    return max(2, min(400, (info.context_length or 512) - 64))
