"""Loads of many connections, each judged by its own bars: a crowd that is served in order, and idle ones."""

from __future__ import annotations

import asyncio
import time
from random import Random
from typing import TYPE_CHECKING

from lmtool.core.errors import ServerError
from lmtool.measure.bench.record import percentile
from lmtool.protocol.lmtp.client import LmtpClient
from lmtool.protocol.lmtp.endpoint import SocketEndpoint
from tests.lab.soak.finding import Finding, need_lmtp
from tests.lab.soak.lmtp_client import BareClient
from tests.lab.soak.slow_reader import slow_reader
from tests.lab.soak.watch import leaks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.lab.soak.connection import Address
    from tests.lab.soak.lmtp_client import StreamTimes
    from tests.lab.soak.settings import SoakBench
    from tests.lab.soak.watch import ServerState, Watch
    from tests.lab.soak.wires import SoakTarget

MANY = 1000
"""Connections of a crowd, and of idle ones, unless others are asked for."""
STREAMS_EACH = 2
CROWD_TOKENS = 256
"""So many that most streams of a crowd are there before the first has ended, and have to wait for a place."""
OPENING = 50
"""Connections that are being opened at a time."""
IDLE_SHARE = 0.01
"""Of a core, at most, for idle connections."""
SETTLE = 5.0
"""Seconds after the last connection was opened before CPU time is measured."""
STEPS = 2
"""Of the median gap between tokens: by so much a stream may begin after a younger one, as steps bring several."""
FEWEST_SECONDS = 0.05
"""And at least by this: a client sees the answers of a thousand connections one after the other."""


async def crowd(
    bench: SoakBench, address: Address, target: SoakTarget, watch: Watch, note: Callable[[str], None]
) -> Finding:
    """Connections with two streams each, at once: all served, first tokens in order of arrival within a priority."""
    count = bench.connections or MANY
    need_lmtp(target, address, count)
    before = await watch.state()
    note(f"opening {count} connections")
    clients = await _open_all(address, count)
    reading = [asyncio.create_task(client.read()) for client in clients]
    random = Random(bench.seed)  # no secret
    # One for both streams of a connection: of one that has had a turn at a priority and one that has not, the latter
    # is next, whoever came first.
    priorities = [random.randrange(2) for _ in clients]
    order: list[tuple[int, StreamTimes]] = []
    began = time.perf_counter()
    try:
        note(f"{STREAMS_EACH * count} streams, each once the server has read the one before")
        for number in range(STREAMS_EACH * count):
            client, priority = clients[number % count], priorities[number % count]
            await _send(client, number, priority, bench, target)
            order.append((priority, client.streams[number]))
        await _all_ended([stream for _, stream in order], bench.timeout)
    finally:
        for task in reading:
            task.cancel()
        for client in clients:
            client.abort()
        await asyncio.gather(*reading, return_exceptions=True)
    finding = Finding(f"{count} connections, {len(order)} streams", seconds=time.perf_counter() - began)
    _judge_crowd(finding, order)
    await _judge_leaks(finding, watch, before)
    return finding


async def _send(client: BareClient, number: int, priority: int, bench: SoakBench, target: SoakTarget) -> None:
    members = {"prompt": f"Once upon a time {number}", "max_tokens": CROWD_TOKENS, "priority": priority}
    members |= {"model": target.model} if target.model else {}
    try:
        async with asyncio.timeout(bench.timeout):
            await client.generate(number, **members)
            await client.round_trip()
    except TimeoutError:
        raise ServerError(f"the server has read no frame of stream {number} for {bench.timeout:g} s") from None


def _judge_crowd(finding: Finding, order: Sequence[tuple[int, StreamTimes]]) -> None:
    streams = [stream for _, stream in order]
    served = sum(stream.ended and stream.error is None for stream in streams)
    finding.judge("streams served", f"{served:,}", f"all {len(streams):,}", ok=served == len(streams))
    if errors := {stream.error for stream in streams if stream.error}:
        finding.breaches += [f"a stream failed: {error}" for error in sorted(errors)[:3]]
    gaps = [gap for stream in streams for gap in stream.gaps] or [0.0]
    allowed = max(FEWEST_SECONDS, STEPS * percentile(gaps, 50))
    late = overtaken(order)
    worst, over = max(late, default=0.0), sum(one > allowed for one in late)
    said = f"{over} of {waited(order):,} that waited, by {worst:.3f} s at most"
    finding.judge("streams that a younger one of their priority overtook", said, f"by {allowed:.3f} s", ok=not over)
    waits = [stream.stamps[0] - stream.sent for stream in streams if stream.stamps] or [0.0]
    finding.figures |= {
        "served": served,
        "streams": len(streams),
        "waited": waited(order),
        "overtaken": over,
        "overtaken_most_s": worst,
        "ttft_p50_s": percentile(waits, 50),
        "ttft_p99_s": percentile(waits, 99),
        "gap_p50_s": percentile(gaps, 50),
        "gap_p99_s": percentile(gaps, 99),
    }
    finding.rows.append(("first token, s, p50/p99", f"{percentile(waits, 50):.2f}/{percentile(waits, 99):.2f}", ""))
    finding.rows.append(("all streams, s", f"{finding.seconds:.1f}", ""))


def overtaken(order: Sequence[tuple[int, StreamTimes]]) -> list[float]:
    """For each stream that began after a younger one of the same priority, by how many seconds at most.

    order: priority and times of each stream, as they were sent.
    """
    earliest: dict[int, float] = {}
    found = []
    for priority, stream in reversed(order):
        if not stream.stamps:
            continue
        first = stream.stamps[0]
        if first > earliest.get(priority, first):
            found.append(first - earliest[priority])
        earliest[priority] = min(first, earliest.get(priority, first))
    return found


def waited(order: Sequence[tuple[int, StreamTimes]]) -> int:
    """How many streams could have been overtaken: a younger one of their priority was sent before they began.

    order: as for `overtaken`.
    """
    next_sent: dict[int, float] = {}
    count = 0
    for priority, stream in reversed(order):
        younger = next_sent.get(priority)
        count += bool(stream.stamps) and younger is not None and younger < stream.stamps[0]
        next_sent[priority] = stream.sent
    return count


async def idle(
    bench: SoakBench, address: Address, target: SoakTarget, watch: Watch, note: Callable[[str], None]
) -> Finding:
    """Connections that do nothing but answer pings: the CPU time that they cost."""
    count = bench.connections or MANY
    need_lmtp(target, address, count)
    if watch.process is None:
        raise ServerError("the CPU time of a server elsewhere is not known", "run this on its machine, with  --pid N")
    before = await watch.state()
    note(f"the server without connections, for {min(10.0, bench.seconds):g} s")
    alone = await _cpu_share(watch, min(10.0, bench.seconds))
    place = SocketEndpoint(address.lmtp, loopback=True, authorization=address.authorization)
    clients = [LmtpClient(place) for _ in range(count)]
    try:
        note(f"opening {count} connections")
        for start in range(0, count, OPENING):
            await asyncio.gather(*(client.models() for client in clients[start : start + OPENING]))
        await asyncio.sleep(SETTLE)
        memory = watch.memory()
        note(f"idle for {bench.seconds:g} s")
        share = await _cpu_share(watch, bench.seconds)
    finally:
        await asyncio.gather(*(client.close() for client in clients))
    finding = Finding(f"{count} idle connections", seconds=bench.seconds)
    finding.judge("share of a core", f"{share:.4f}", f"at most {IDLE_SHARE:g}", ok=share <= IDLE_SHARE)
    finding.rows.append(("share of a core without them", f"{alone:.4f}", ""))
    finding.figures |= {"cpu_share": share, "cpu_share_alone": alone}
    if memory is not None and before.memory is not None:
        each = (memory - before.memory) / count
        finding.rows.append(("memory of each, kB", f"{each / 1000:.1f}", ""))
        finding.figures["bytes_each"] = each
    await _judge_leaks(finding, watch, before)
    return finding


async def _cpu_share(watch: Watch, seconds: float) -> float:
    began, used = time.perf_counter(), watch.cpu_seconds()
    await asyncio.sleep(seconds)
    now = watch.cpu_seconds()
    if used is None or now is None:
        raise ServerError(f"the process {watch.process} is gone", "start the server again, and read what it said last")
    return (now - used) / (time.perf_counter() - began)


async def _open_all(address: Address, count: int) -> list[BareClient]:
    clients: list[BareClient] = []
    try:
        for start in range(0, count, OPENING):
            wanted = (BareClient.open(address) for _ in range(min(OPENING, count - start)))
            clients += await asyncio.gather(*wanted)
    except BaseException:
        for client in clients:
            client.abort()
        raise
    return clients


async def _all_ended(streams: Sequence[StreamTimes], patience: float) -> None:
    """Return once all streams have ended, or nothing has come for so many seconds."""
    last, progress = time.perf_counter(), -1
    while not all(stream.ended for stream in streams):
        await asyncio.sleep(0.1)
        now = sum(len(stream.stamps) for stream in streams)
        if now != progress:
            last, progress = time.perf_counter(), now
        elif time.perf_counter() - last > patience:
            return


async def _judge_leaks(finding: Finding, watch: Watch, before: ServerState) -> None:
    after = await watch.settled(before)
    finding.breaches += [f"left open: {one}" for one in leaks(before, after)]
    if before.memory is not None and after.memory is not None:
        finding.rows.append(("memory before and after, MB", f"{before.memory / 1e6:.0f}/{after.memory / 1e6:.0f}", ""))
        finding.figures |= {"memory_before": before.memory, "memory_after": after.memory}


SCENARIOS = {"crowd": crowd, "idle": idle, "slow-reader": slow_reader}
"""By the names of `--scenario`."""
